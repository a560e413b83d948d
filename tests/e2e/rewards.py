"""A reward for runs that shall last until a test is done with them: it takes its time, and it can be held up."""

from __future__ import annotations

import asyncio
from pathlib import Path

from astraflow.problems import Problem


class Unhurried:
    """Scores like ``exact``, after ``seconds``, and not while the file ``hold`` is there."""

    def __init__(self, *, seconds: float = 0.3, hold: str = "") -> None:
        self._seconds = seconds
        self._hold = Path(hold) if hold else None

    async def __call__(self, problem: Problem, text: str) -> float:
        await asyncio.sleep(self._seconds)
        while self._hold is not None and self._hold.exists():
            await asyncio.sleep(0.05)
        return float(text == problem.answer)
