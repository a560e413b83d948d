"""A server on this machine in a cloud provider's place: every request gets the same answer, and is remembered."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from storage.store import ObjectStore

Answer = tuple[int, str]
"""Status, and the code of an error; empty for an answer without a body."""


@dataclass
class Answering:
    """``seen`` holds the verb, path and headers (names in small letters) of each request."""

    answer: Answer
    text: str  # of an error's message
    url: str = ""
    seen: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)


@contextmanager
def answering(answer: Answer, text: str) -> Iterator[Answering]:
    """Serve until the block ends; ``answer`` may be changed meanwhile."""
    served = Answering(answer, text)

    class Handler(BaseHTTPRequestHandler):
        def _do(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            served.seen.append((self.command, self.path, {name.lower(): v for name, v in self.headers.items()}))
            status, code = served.answer
            body = f"<Error><Code>{code}</Code><Message>{served.text}</Message></Error>".encode() if code else b""
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", '"0"')
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _do

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    served.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield served
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def six_verbs(store: ObjectStore) -> list[Callable[[], object]]:
    """Each verb of a store once, for a server that answers all of them alike."""
    return [
        lambda: store.get("a/x"),
        lambda: store.get_range("a/x", 0, 3),
        lambda: store.put("a/x", b"1"),
        lambda: store.create("a/x", b"1"),
        lambda: list(store.list("a/")),
        lambda: store.delete("a/x"),
    ]
