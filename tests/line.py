"""A TCP proxy that makes a near server far, and the line to it one that can be cut.

Bytes are delayed, not slowed: what is sent together arrives together. A new connection waits one round trip before its
first byte, as a TCP handshake would.

A line that is cut either refuses (connections die, new ones are refused) or hangs (nothing is heard any more, as when
a router drops what is sent). Connections from before a cut stay lost when it is mended: routers have forgotten them.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Literal

Cut = Literal["refuses", "hangs"]
CHUNK = 1 << 16
"""Bytes that are read at once."""


class Line:
    """Forwards connections to ``host:port``; ``rtt_s`` may be changed while it runs."""

    def __init__(self, host: str, port: int, rtt_s: float) -> None:
        self.host, self.port, self.rtt_s = host, port, rtt_s
        self.address = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._server: asyncio.Server | None = None
        self._port = 0
        self._is_hanging = False
        self._ends: set[asyncio.StreamWriter] = set()  # of living connections, on both sides
        self._lost: list[asyncio.StreamWriter] = []  # kept open, so that their owners hear nothing
        self._forwarding: set[asyncio.Task[None]] = set()

    @property
    def endpoint(self) -> str:
        """As a URL."""
        return f"http://{self.address}"

    def cut(self, how: Cut) -> None:
        """From here on nothing gets through (called from another thread)."""
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(self._cut(how), self._loop).result(10)

    def mend(self) -> None:
        """New connections get through again (called from another thread)."""
        assert self._loop is not None
        asyncio.run_coroutine_threadsafe(self._mend(), self._loop).result(10)

    async def serve(self, started: threading.Event, ended: asyncio.Event) -> None:
        """Forward until ``ended``."""
        self._loop = asyncio.get_running_loop()
        await self._mend()
        started.set()
        await ended.wait()
        if self._server is not None:
            self._server.close()

    async def _cut(self, how: Cut) -> None:
        for task in self._forwarding:
            task.cancel()
        if how == "hangs":
            self._is_hanging = True
            self._lost += self._ends
        else:
            assert self._server is not None
            self._server.close()
            self._server = None
            for end in self._ends:
                end.transport.abort()
        self._ends.clear()

    async def _mend(self) -> None:
        self._is_hanging = False
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)
            self._port = self._server.sockets[0].getsockname()[1]
            self.address = f"127.0.0.1:{self._port}"

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._is_hanging:
            self._lost.append(writer)
            return
        self._ends.add(writer)
        task = asyncio.create_task(self._forward(reader, writer))
        self._forwarding.add(task)
        task.add_done_callback(self._forwarding.discard)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(self.rtt_s)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            far_reader, far_writer = await asyncio.open_connection(self.host, self.port)
            self._ends.add(far_writer)
            await asyncio.gather(self._pipe(reader, far_writer), self._pipe(far_reader, writer))
            self._ends -= {writer, far_writer}

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read at once, write half a round trip later, in order."""
        held = Held(writer)
        try:
            with contextlib.suppress(OSError):
                while data := await reader.read(CHUNK):
                    held.delay_s = self.rtt_s / 2
                    held.write(data)
            held.write(b"")
            await held.writing
        finally:
            held.writing.cancel()


class Held:
    """Writes to a connection ``delay_s`` later, in order."""

    def __init__(self, writer: asyncio.StreamWriter, delay_s: float = 0.0) -> None:
        self.delay_s = delay_s
        self._writer = writer
        self._queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        self.writing = asyncio.create_task(self._write())

    def write(self, data: bytes) -> None:
        """Send it when it is due; nothing at all closes the connection then."""
        self._queue.put_nowait((asyncio.get_running_loop().time() + self.delay_s, data))

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while True:
                due, data = await self._queue.get()
                await asyncio.sleep(max(0.0, due - loop.time()))
                if not data:
                    break
                self._writer.write(data)
                await self._writer.drain()
        self._writer.close()


@contextlib.contextmanager
def line(host: str, port: int, rtt_s: float = 0.0) -> Iterator[Line]:
    """A line in a thread of its own."""
    between = Line(host, port, rtt_s)
    started = threading.Event()
    loop = asyncio.new_event_loop()
    ended = asyncio.Event()

    def live() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:  # ends what is still under way, too
            runner.run(between.serve(started, ended))

    thread = threading.Thread(target=live, daemon=True)
    thread.start()
    started.wait(10)
    try:
        yield between
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(10)
