"""Worker processes that play games, several at a time each: started when first needed, replaced when they hang.

Games take milliseconds of processor time a step, which a pool's event loop has not; and the planner below them is a C++
library whose faults must not be the pool's. A process ends with its pipe, however the pool ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

from storage.errors import ConfigError, EpisodeError

_WORKER = Path(__file__).with_name("worker.py")
_START_S = 60.0
_LONGEST_LINE = 1 << 22
WHERE = "the household's games"


class Players:
    """``processes`` of them; a game stays with the one that began it."""

    def __init__(self, python: str, processes: int, timeout_s: float) -> None:
        self._workers = [Player(python, timeout_s) for _ in range(processes)]
        self._turn = itertools.count()

    def next(self) -> Player:
        """The process with the fewest games."""
        return min(self._workers, key=lambda worker: worker.games)

    def number(self) -> int:
        """A number for a game, never given twice."""
        return next(self._turn)

    async def close(self) -> None:
        """End the processes."""
        for worker in self._workers:
            await worker.end()


class Player:
    """One process. Requests wait for each other; whoever finds it dead starts the next one."""

    def __init__(self, python: str, timeout_s: float) -> None:
        self.games = 0
        self.life = 0  # games of an earlier life are lost
        self._python = python
        self._timeout_s = timeout_s
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()

    async def begin(self, number: int, game: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Start a game. Returns the life that plays it, and what is seen."""
        async with self._lock:
            process = self._process or await self._start()
            return self.life, await self._exchange(process, {"play": number, "game": game})

    async def ask(self, life: int, request: dict[str, Any]) -> dict[str, Any]:
        """Go on with a game. Raises ``EpisodeError`` if it broke, or the process that played it is gone."""
        async with self._lock:
            if self._process is None or life != self.life:
                raise _failed("the process that played the game is gone")
            return await self._exchange(self._process, request)

    async def end(self) -> None:
        """Kill the process."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _start(self) -> asyncio.subprocess.Process:
        try:
            process = await asyncio.create_subprocess_exec(
                self._python,
                str(_WORKER),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                limit=_LONGEST_LINE,
                # What lies where is listed in the order of sets of words: the same in every process by this seed.
                env={**os.environ, "PYTHONHASHSEED": "0"},
            )
        except OSError as error:
            raise ConfigError(
                f"no game can be played by {self._python!r}: {error}",
                where="workflow.options.environment_options.python",
                remedy="Name the Python of an environment with textworld and alfworld",
                kind="python",
            ) from error
        self._process = process
        self.life += 1
        ready = await self._exchange(process, None, _START_S)
        if "missing" in ready:
            await self.end()
            raise ConfigError(
                f"{ready['missing']} is not installed for {self._python!r}",
                where="extra 'household'",
                remedy="pip install 'astraflow-prefect[household]', or name the Python of an environment that has it "
                "in environment_options.python",
                kind="missing_package",
            )
        return process

    async def _exchange(
        self, process: asyncio.subprocess.Process, request: dict[str, Any] | None, timeout_s: float = 0.0
    ) -> dict[str, Any]:
        """One line there, one line back; the process is killed if that fails, or is cut short in the middle."""
        try:
            async with asyncio.timeout(timeout_s or self._timeout_s):
                if request is not None:
                    _pipe(process.stdin).write(f"{json.dumps(request)}\n".encode())
                    await _pipe(process.stdin).drain()
                line = await _pipe(process.stdout).readline()
            answer: dict[str, Any] = json.loads(line)
        except (OSError, ValueError, TimeoutError) as error:
            await self.end()
            raise _failed(f"the process did not answer: {error or type(error).__name__}") from error
        except BaseException:  # cancelled: the answer to come must not meet the next request
            await self.end()
            raise
        if "error" in answer:
            raise _failed(str(answer["error"]))
        return answer


def _pipe(stream: Any) -> Any:
    if stream is None:
        raise OSError("no pipe")
    return stream


def python_of(named: str) -> str:
    """The Python that plays: the named one, or this one."""
    return str(Path(named).expanduser()) if named else sys.executable


def _failed(what: str) -> EpisodeError:
    return EpisodeError(f"a household game failed: {what}", where=WHERE, kind="environment")
