"""The curator behind a net: what is asked of own code here never raises, so that no record stops a manager for good.

Every fold of a record meets the same errors, so they are part of what is folded: a curator that cannot select, or names
a problem that is not there, is passed over for the problem in file order, and what it cannot be told is lost on it.
"""

from __future__ import annotations

from operator import index

from astraflow.dataflow.algorithms import Curator
from astraflow.dataflow.parts import PartRows


class GuardedCurator:
    """``faults`` are its errors in the fold since this process began; for the eye."""

    def __init__(self, curator: Curator, problem_count: int) -> None:
        self._curator = curator
        self._problem_count = problem_count
        self.faults = 0

    def select(self, group: int) -> int:
        """The problem of a new ``group``; changes nothing."""
        try:
            problem = index(self._curator.select())
        except Exception:  # noqa: BLE001 - the boundary to own code
            problem = -1
        return problem if 0 <= problem < self._problem_count else group % self._problem_count

    def leased(self, problem: int) -> None:
        """A new group of ``problem``, as selected, was leased."""
        try:
            self._curator.leased(problem)
        except Exception:  # noqa: BLE001 - the boundary to own code
            self.faults += 1

    def observe(self, problem: int, rows: PartRows) -> None:
        """A part of ``problem`` was admitted."""
        try:
            self._curator.observe(problem, rows)
        except Exception:  # noqa: BLE001 - the boundary to own code
            self.faults += 1
