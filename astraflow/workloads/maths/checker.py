"""Comparing an answer with the right one: exact arithmetic here, algebra in worker processes that can be killed.

A worker that does not answer within its deadline is killed and another one started. If it had computed for longer than
the limit of its processor time, the answer is to blame: ``timeout``. If not, the machine is: the pair is tried once
more, as is one whose worker died, and then ``error``. Callers must not take ``error`` for wrong.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from astraflow.workloads.maths import normal
from storage.errors import ConfigError

Kind = Literal["correct", "wrong", "unparsed", "timeout", "error"]
_START_S = 60.0
_TRIES = 2


@dataclass(frozen=True, slots=True)
class Verdict:
    """``algebra`` says whether a worker was asked."""

    kind: Kind
    algebra: bool = False
    reason: str = ""


class Checker:
    """Checks answers; ``workers`` processes start when they are first needed and live until ``close``."""

    def __init__(self, *, workers: int = 2, limit_s: float = 2.0, deadline_s: float = 5.0) -> None:
        self._limit_s = limit_s
        self._deadline_s = deadline_s
        self._idle: asyncio.Queue[_Worker] = asyncio.Queue()
        for _ in range(workers):
            self._idle.put_nowait(_Worker(limit_s))
        self._all = list(self._idle._queue)  # type: ignore[attr-defined]

    async def check(self, gold: str, prediction: str | None) -> Verdict:
        """Compare ``prediction`` (what stood in the box) with ``gold``."""
        if prediction is None or not prediction.strip():
            return Verdict("unparsed")
        left, right = normal.normal(gold), normal.normal(prediction)
        decided = at_once(left, right)
        if decided is not None:
            return Verdict("correct" if decided else "wrong")
        return await self._by_algebra(left, right)

    async def close(self) -> None:
        """End the workers."""
        for worker in self._all:
            await worker.kill()

    async def _by_algebra(self, gold: str, prediction: str) -> Verdict:
        """Ask a worker for each pair that is not decided at once."""
        pairs = _pairs(gold, prediction)
        if pairs is None:
            return Verdict("wrong")
        for pair in pairs:
            decided = at_once(*pair)
            if decided is None:
                verdict = await self._ask(*pair)
                if verdict.kind != "correct":
                    return verdict
            elif not decided:
                return Verdict("wrong")
        return Verdict("correct", algebra=True)

    async def _ask(self, gold: str, prediction: str) -> Verdict:
        reason = ""
        for _ in range(_TRIES):
            worker = await self._idle.get()
            try:
                return Verdict(await worker.compare(gold, prediction, self._deadline_s), algebra=True)
            except TimeoutError:
                used_s = worker.cpu_s()
                await worker.kill()
                if used_s >= self._limit_s:
                    return Verdict("timeout", algebra=True)
                reason = f"a worker did not answer within {self._deadline_s:g} s, having computed {used_s:.1f} s"
            except (OSError, EOFError, ValueError) as error:
                reason = f"a worker died: {error or type(error).__name__}"
                await worker.kill()
            except BaseException:  # cancelled in the middle of an exchange: its answer must not meet the next pair
                await worker.kill()
                raise
            finally:
                self._idle.put_nowait(worker)
        return Verdict("error", algebra=True, reason=reason)


def at_once(gold: str, prediction: str) -> bool | None:
    """Whether two normal forms are equal, if that can be told without algebra."""
    if gold == prediction:
        return True
    left, right = normal.without_name(gold), normal.without_name(prediction)
    if left == right:
        return True
    expected, given = normal.number(left), normal.number(right)
    if expected is not None and given is not None:
        return expected == given
    if len(gold) == 1 and gold in "ABCDEFGHIJ" and len(prediction) == 1:
        return False
    return None


def _pairs(gold: str, prediction: str) -> list[tuple[str, str]] | None:
    """What has to be equal for the two to be; None if they are lists of different kind or length."""
    left, right = normal.items(gold), normal.items(prediction)
    if left is None and right is None:
        if "=" in gold and "=" in prediction:
            return [(gold, prediction)]
        return [(normal.without_name(gold), normal.without_name(prediction))]
    if left is None or right is None or left.brackets != right.brackets or len(left.items) != len(right.items):
        return None
    if left.brackets:
        return list(zip(left.items, right.items, strict=True))
    return _matched(list(left.items), list(right.items))


def _matched(left: list[str], right: list[str]) -> list[tuple[str, str]]:
    """Pairs of two lists whose order says nothing: those that are equal at once first, the rest sorted."""
    pairs = []
    for item in list(left):
        partner = next((other for other in right if at_once(item, other)), None)
        if partner is not None:
            left.remove(item)
            right.remove(partner)
            pairs.append((item, partner))
    return [*pairs, *zip(sorted(left), sorted(right), strict=True)]


class _Worker:
    """One process; started at its first pair."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._process: asyncio.subprocess.Process | None = None
        self._used_s = 0.0

    async def compare(self, gold: str, prediction: str, deadline_s: float) -> Kind:
        """Raises ``TimeoutError`` after the deadline, ``EOFError`` or ``OSError`` if the process died."""
        process = self._process or await self._start()
        self._used_s = _cpu_s(process.pid)
        async with asyncio.timeout(deadline_s):
            answer = await self._exchange(process, json.dumps([gold, prediction]))
        kind: Kind = answer["kind"]
        return kind

    def cpu_s(self) -> float:
        """Processor time of the pair in hand."""
        return _cpu_s(self._process.pid) - self._used_s if self._process else 0.0

    async def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            process._transport.close()  # type: ignore[attr-defined]

    async def _start(self) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "astraflow.workloads.maths.worker",
            str(self._limit_s),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        self._process = process
        try:
            async with asyncio.timeout(_START_S):
                await self._exchange(process, None)
        except EOFError as error:
            await self.kill()
            raise _missing() from error
        return process

    @staticmethod
    async def _exchange(process: asyncio.subprocess.Process, line: str | None) -> dict[str, Kind]:
        if process.stdin is None or process.stdout is None:
            raise EOFError("no pipes")
        if line is not None:
            process.stdin.write(f"{line}\n".encode())
            await process.stdin.drain()
        answer = await process.stdout.readline()
        if not answer.endswith(b"\n"):
            raise EOFError("the worker ended")
        found: dict[str, Kind] = json.loads(answer)
        return found


def _cpu_s(pid: int) -> float:
    """Processor time of a process so far; 0 where that cannot be told."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _missing() -> ConfigError:
    return ConfigError(
        "the maths checker's worker does not start",
        where="problems.reward",
        remedy="Install math-verify: pip install 'astraflow-prefect' brings it",
        kind="missing_package",
    )
