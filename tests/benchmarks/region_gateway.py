"""A region of ``region_network``: its S3 server, and the ways from its processes to it and to the other region's.

    ip netns exec NAMESPACE python tests/benchmarks/region_gateway.py SPEC.json

Run in the region's namespace until SIGTERM or the end of its stdin; prints where its server is when it serves.
A process has one endpoint for all its buckets, as one that speaks to AWS has: the gateway of its lane, which sends a
request to the near server or over the link by the bucket in its path. What goes over the link is held back for half
a round trip either way, and a new connection for a whole one, as a handshake would. The rate is the link's own.
A connection's slow start is not imitated: it would take a few more round trips for the first megabytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import socket
import sys
import urllib.parse
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from region_network import ADDRESSES, LANES, claim

from infra.s3_server import S3Server, s3_server

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run by path, beside the tests it borrows from

from tests.line import CHUNK, Held

GATES = {lane: 8100 + number for number, lane in enumerate(LANES)}
"""Where on the loopback a process of each lane asks; a region's namespace has no other ports."""
DOORS = {lane: 8200 + number for number, lane in enumerate(LANES)}
"""Where on the link the other region comes in."""
_HEAD = re.compile(rb"^[A-Z]+ /([^/?\s]*)")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding:", re.IGNORECASE)
_REFUSAL = b"HTTP/1.1 501 Not Implemented\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Spec:
    """A region: its name is its bucket's, too. ``keys_of`` is a server whose keys open this region's, too."""

    region: str
    folder: str
    rtt_s: float
    first_port: int
    keys_of: dict[str, str] | None = None


class Gate:
    """The endpoint of a region's processes of one lane."""

    def __init__(self, region: str, lane: str, server: S3Server, rtt_s: float) -> None:
        self._region, self._lane, self._rtt_s = region, lane, rtt_s
        near = urllib.parse.urlsplit(server.endpoint)
        self._near = (str(near.hostname), int(near.port or 80))
        (other,) = set(ADDRESSES) - {region}
        self._far = (ADDRESSES[other], DOORS[lane])
        self._answers: set[asyncio.Task[None]] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send each request of a connection where its bucket lies; an answer comes before the next request is sent."""
        ways: dict[bool, Held] = {}
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                found = _HEAD.match(head)
                if found is None or _CHUNKED.search(head):
                    writer.write(_REFUSAL)
                    break
                is_far = found[1].decode() not in ("", self._region)
                if is_far not in ways:
                    ways[is_far] = await self._way(writer, is_far=is_far)
                ways[is_far].write(head)
                length = _LENGTH.search(head)
                left = int(length[1]) if length else 0
                while left:
                    data = await reader.read(min(left, CHUNK))
                    if not data:
                        raise asyncio.IncompleteReadError(data, left)
                    ways[is_far].write(data)
                    left -= len(data)
        for way in ways.values():
            way.write(b"")
        if not ways:
            writer.close()

    async def _way(self, client: asyncio.StreamWriter, *, is_far: bool) -> Held:
        """A connection whose answers go to ``client``."""
        delay_s = self._rtt_s / 2 if is_far else 0.0
        sock = socket.socket()
        if is_far:
            claim(sock, self._lane)  # before the handshake
            await asyncio.sleep(self._rtt_s)
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(sock, self._far if is_far else self._near)
        reader, writer = await asyncio.open_connection(sock=sock)
        self._answers.add(task := asyncio.create_task(_pour(reader, Held(client, delay_s))))
        task.add_done_callback(self._answers.discard)
        return Held(writer, delay_s)


async def _pour(reader: asyncio.StreamReader, into: Held) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(CHUNK):
            into.write(data)
    into.write(b"")


def door(server: S3Server, lane: str) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """Takes in the other region's connections of a lane."""
    near = urllib.parse.urlsplit(server.endpoint)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        claim(writer.get_extra_info("socket"), lane)
        try:
            inner, outer = await asyncio.open_connection(near.hostname, near.port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_pour(reader, Held(outer, 0.0)), _pour(inner, Held(writer, 0.0)))

    return serve


async def live(spec: Spec, server: S3Server) -> None:
    """Serve until told to end."""
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    loop.add_reader(sys.stdin, lambda: ended.set() if not sys.stdin.buffer.raw.read(1) else None)  # type: ignore[attr-defined]
    listening = []
    for lane in LANES:
        gate = Gate(spec.region, lane, server, spec.rtt_s)
        listening.append(await asyncio.start_server(gate.serve, "127.0.0.1", GATES[lane]))
        listening.append(await asyncio.start_server(door(server, lane), ADDRESSES[spec.region], DOORS[lane]))
    print(json.dumps(asdict(server)), flush=True)
    await ended.wait()  # connections that are open end with the loop


def main() -> None:
    """Be the region that the file says."""
    signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))  # until ``live``: the server is ended, too
    spec = Spec(**json.loads(Path(sys.argv[1]).read_text()))
    other = S3Server(**spec.keys_of) if spec.keys_of else None
    with s3_server(Path(spec.folder), start_timeout_s=240, first_port=spec.first_port, keys_of=other) as server:
        server.create_bucket(spec.region)
        asyncio.run(live(spec, server))


def write_spec(spec: Spec, path: Path) -> None:
    """For ``main``."""
    path.write_text(json.dumps(asdict(spec)))


if __name__ == "__main__":
    main()
