"""The reward ``code``: 1 if the program in the last code block passes the problem's tests.

``partial = true`` pays the share of cases that pass. ``complete = true`` takes an answer without a block as the rest
of the problem's prompt, as base models answer. What fails for reasons of the machine fails the episode, and no sandbox
means no reward at all.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import Iterable

from astraflow.problems import Problem
from astraflow.workloads.code.judge import Judge, Verdict
from astraflow.workloads.code.suite import Checks, Suite, from_json
from astraflow.workloads.sandbox import Limits, Sandbox
from astraflow.workloads.sandbox.sandbox import KINDS

_BLOCK = re.compile(r"```[ \t]*([\w+-]*)[^\n]*\n(.*?)(?:```|\Z)", re.DOTALL)
_LANGUAGES = {"", "py", "python", "python3"}


class CodeReward:
    """Limits are those of one case; ``sandbox`` restricts the kinds that may be used."""

    def __init__(
        self,
        *,
        partial: bool = False,
        complete: bool = False,
        cpu_s: int = 6,
        wall_s: float = 12.0,
        memory_mb: int = 1024,
        max_cases: int = 0,
        sandbox: Iterable[str] = KINDS,
    ) -> None:
        self._partial = partial
        self._complete = complete
        self._limits = Limits(cpu_s=cpu_s, wall_s=wall_s, memory_mb=memory_mb)
        self._max_cases = max_cases
        self._kinds = tuple(kind for kind in KINDS if kind in tuple(sandbox))
        self._opening: dict[asyncio.AbstractEventLoop, asyncio.Task[Sandbox]] = {}

    async def __call__(self, problem: Problem, text: str) -> float:
        suite = self._short(suite_of(problem))
        source = self.source(text, suite)
        if source is None:
            return 0.0
        verdicts = await self.verdicts(source, suite)
        if self._partial and not isinstance(suite, Checks):
            return sum(verdict.passed for verdict in verdicts) / len(suite.cases)
        return float(all(verdict.passed for verdict in verdicts))

    async def verdicts(self, source: str, suite: Suite) -> list[Verdict]:
        """The verdicts of a program."""
        judge = Judge(await self._sandbox(), self._limits)
        return await judge.judge(source, suite, to_the_end=self._partial)

    def source(self, text: str, suite: Suite) -> str | None:
        """The program in an answer, with what a check's prefix would say twice taken out."""
        block = code_block(text)
        if block is not None:
            return block
        return text if self._complete and isinstance(suite, Checks) else None

    def _short(self, suite: Suite) -> Suite:
        if isinstance(suite, Checks) or not self._max_cases:
            return suite
        return dataclasses.replace(suite, cases=suite.cases[: self._max_cases])  # type: ignore[arg-type]

    async def _sandbox(self) -> Sandbox:
        """One for all episodes of the pool, opened when the first needs it."""
        loop = asyncio.get_running_loop()
        task = self._opening.get(loop)
        if task is None or (task.done() and (task.cancelled() or task.exception())):
            task = self._opening[loop] = loop.create_task(Sandbox.open(self._kinds))
        return await asyncio.shield(task)


def suite_of(problem: Problem) -> Suite:
    """The tests of a problem. Raises ``DataError`` if it has none."""
    return from_json(problem.meta.get("tests", ""))


def code_block(text: str) -> str | None:
    """The last fenced block of Python (or of no language), closed or cut off by the end."""
    blocks = [found[2] for found in _BLOCK.finditer(text) if found[1].lower() in _LANGUAGES]
    return blocks[-1] if blocks else None
