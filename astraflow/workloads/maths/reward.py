"""The reward ``maths``: 1 if the answer in the last box is the right one.

An answer without a box earns 0, or is looked for as the last number with ``find = "number"``. A verdict that the
machine prevented is no verdict: the episode fails and is played again.
"""

from __future__ import annotations

import asyncio

from astraflow.problems import Problem
from astraflow.workloads.maths.checker import Checker
from astraflow.workloads.maths.extract import boxed, last_number
from storage.errors import ConfigError, EpisodeError


class MathsReward:
    """``find``: ``box``, ``number``, or ``any`` (the box if there is one)."""

    def __init__(self, *, find: str = "box", workers: int = 2) -> None:
        if find not in ("box", "number", "any"):
            raise ConfigError(
                f"find = {find!r}",
                where="problems.reward.options",
                remedy="Say 'box', 'number' or 'any'",
                kind="options",
            )
        self._find = find
        self._workers = workers
        self._checker: Checker | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __call__(self, problem: Problem, text: str) -> float:
        loop = asyncio.get_running_loop()
        if self._checker is None or self._loop is not loop:
            self._checker, self._loop = Checker(workers=self._workers), loop
        answer = self.answer(text)
        gold = boxed(problem.answer) or problem.answer
        verdict = await self._checker.check(gold, answer)
        if verdict.kind == "error":
            raise EpisodeError(
                f"the answer could not be checked: {verdict.reason}", where=f"problem {problem.id}", kind="reward"
            )
        return float(verdict.kind == "correct")

    async def close(self) -> None:
        """End the worker processes."""
        if self._checker is not None:
            await self._checker.close()

    def answer(self, text: str) -> str | None:
        """What counts as the answer of a text."""
        found = boxed(text) if self._find != "number" else None
        return last_number(text) if found is None and self._find != "box" else found
