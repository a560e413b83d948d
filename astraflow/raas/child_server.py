"""A server that a pool starts for itself, watches, and takes with it when it ends.

The server runs under ``child_guard``, which holds a pipe of this process: however this process ends, the server does.
Its last lines of output are kept, because they say why it died.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import os
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from astraflow.raas.child_guard import Lifeline
from storage.errors import ConfigError, DeadlineError, EngineError

T = TypeVar("T")

_KEPT_LINES = 40
_SHOWN_LINES = 12
_STOP_S = 8.0
_LOOK_EVERY_S = 0.2


class ChildServer:
    """One server process. ``dead`` is an error from the moment it ended by itself."""

    def __init__(self, command: Sequence[str], process: asyncio.subprocess.Process, lifeline: Lifeline) -> None:
        self.dead: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.tail: collections.deque[str] = collections.deque(maxlen=_KEPT_LINES)
        self._command = command
        self._process = process
        self._lifeline = lifeline
        self._stopping = False
        self._watching = asyncio.create_task(self._watch())

    @classmethod
    async def start(cls, command: Sequence[str], environment: Mapping[str, str] | None = None) -> ChildServer:
        """Start ``command``; one that is not there dies at once, and says so."""
        lifeline = Lifeline.for_command(command)
        try:
            process = await asyncio.create_subprocess_exec(
                *lifeline.argv,
                pass_fds=lifeline.pass_fds,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,  # a Ctrl-C in the terminal is for the pool, which then ends this
                env={**os.environ, **(environment or {})},
                limit=1 << 20,
            )
        finally:
            lifeline.started()
        return cls(command, process, lifeline)

    @property
    def pid(self) -> int:
        """Of the guard."""
        return self._process.pid

    async def until_ready(self, is_ready: Callable[[], Awaitable[bool]], timeout_s: float) -> None:
        """Wait until it answers. Raises ``EngineError`` if it dies before, ``DeadlineError`` after ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                while not await is_ready():
                    await asyncio.wait({self.dead}, timeout=_LOOK_EVERY_S)
                    self.check()
        except TimeoutError as error:
            raise DeadlineError(
                f"{self._command[0]} was not ready after {timeout_s:g} s; its last lines:\n{self.last_lines()}",
                where="pools.….servers",
                remedy="Look at what it waits for, or set a longer start_timeout_s",
                kind="timeout",
            ) from error

    def check(self) -> None:
        """Raise ``EngineError`` if it has died."""
        if self.dead.done():
            self.dead.result()

    async def unless_dead(self, work: Awaitable[T]) -> T:
        """Do ``work``; the server's death ends it with ``EngineError``."""
        task = asyncio.ensure_future(work)
        try:
            both: set[asyncio.Future[Any]] = {task, self.dead}
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                self.check()
            return await task
        finally:
            task.cancel()

    def last_lines(self) -> str:
        """The end of its output."""
        return "\n".join(list(self.tail)[-_SHOWN_LINES:]) or "(it said nothing)"

    async def stop(self) -> None:
        """End it and all that it started."""
        self._stopping = True
        self._lifeline.cut()
        try:
            await asyncio.wait_for(asyncio.shield(self._watching), _STOP_S)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._watching

    async def _watch(self) -> None:
        output = self._process.stdout
        assert output is not None
        while True:
            try:
                line = await output.readline()
            except ValueError:  # a line longer than the limit
                continue
            if not line:
                break
            self.tail.append(line.decode(errors="replace").rstrip())
        code = await self._process.wait()
        if not self._stopping:
            self.dead.set_exception(
                EngineError(
                    f"{self._command[0]} ended with code {code}; its last lines:\n{self.last_lines()}",
                    where="pools.….servers",
                    remedy="The pool ends; start it again when that is mended",
                    kind="died",
                )
            )
            self.dead.exception()  # seen: who asks later gets it by result()


def free_port() -> int:
    """A port of the loopback that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def fill(command: Sequence[str], **values: str) -> list[str]:
    """The command with ``{port}``, ``{model}``, ``{name}`` and ``{python}`` put in."""
    try:
        return [part.format(python=sys.executable, **values) for part in command]
    except (KeyError, IndexError, ValueError) as error:
        raise ConfigError(
            f"the command has a placeholder that is not known: {error}",
            where="pools.….servers.….command",
            remedy="There are {python}, {model} (the folder), {name} (of the model), {port}",
            kind="command",
        ) from error
