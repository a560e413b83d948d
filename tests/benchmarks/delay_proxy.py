"""A TCP proxy that makes a near server far: bytes, and opening a connection, take their share of a round trip.

Bytes are delayed, not slowed: what is sent together arrives together. A new connection waits one round trip before its
first byte, as a TCP handshake would.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator


class DelayProxy:
    """Forwards connections to ``host:port``; ``rtt_s`` may be changed while it runs."""

    def __init__(self, host: str, port: int, rtt_s: float) -> None:
        self.host, self.port, self.rtt_s = host, port, rtt_s
        self.endpoint = ""

    async def serve(self, started: threading.Event, ended: asyncio.Event) -> None:
        """Forward until ``ended``."""
        server = await asyncio.start_server(self._forward, "127.0.0.1", 0)
        self.endpoint = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        started.set()
        async with server:
            await ended.wait()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(self.rtt_s)
        with contextlib.suppress(OSError, asyncio.CancelledError):
            far_reader, far_writer = await asyncio.open_connection(self.host, self.port)
            await asyncio.gather(self._pipe(reader, far_writer), self._pipe(far_reader, writer))

    async def _pipe(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read at once, write half a round trip later, in order."""
        loop, queue = asyncio.get_running_loop(), asyncio.Queue[tuple[float, bytes]]()

        async def write() -> None:
            while True:
                due, data = await queue.get()
                await asyncio.sleep(max(0.0, due - loop.time()))
                if not data:
                    break
                writer.write(data)
                await writer.drain()
            writer.close()

        writing = asyncio.create_task(write())
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                queue.put_nowait((loop.time() + self.rtt_s / 2, data))
        queue.put_nowait((loop.time() + self.rtt_s / 2, b""))
        with contextlib.suppress(OSError):
            await writing


@contextlib.contextmanager
def delayed(host: str, port: int, rtt_s: float) -> Iterator[str]:
    """The endpoint of a proxy in a thread of its own."""
    proxy = DelayProxy(host, port, rtt_s)
    started = threading.Event()
    loop = asyncio.new_event_loop()
    ended = asyncio.Event()

    def live() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:  # ends what is still under way, too
            runner.run(proxy.serve(started, ended))

    thread = threading.Thread(target=live, daemon=True)
    thread.start()
    started.wait(10)
    try:
        yield proxy.endpoint
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(10)
