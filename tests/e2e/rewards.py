"""A reward for runs that shall last: it takes its time, so that a run is still going when a test disturbs it."""

from __future__ import annotations

import asyncio

from astraflow.problems import Problem


class Unhurried:
    """Scores like ``exact``, after ``seconds``."""

    def __init__(self, *, seconds: float = 0.5) -> None:
        self._seconds = seconds

    async def __call__(self, problem: Problem, text: str) -> float:
        await asyncio.sleep(self._seconds)
        return float(text == problem.answer)
