"""The curator behind a net: what is asked of own code here never raises, so that no record stops a manager for good.

Every fold of a record meets the same errors, so they are part of what is folded: a curator that cannot select, or names
a problem that is not there, is passed over for the problem in file order, and what it cannot be told is lost on it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from operator import index

from astraflow.dataflow.algorithms import Curator
from astraflow.dataflow.parts import PartRows

log = logging.getLogger("astraflow.dataflow")


class GuardedCurator:
    """``faults`` are the times it raised, or named no problem, since this process began; for the eye."""

    def __init__(self, curator: Curator, problem_count: int) -> None:
        self._curator = curator
        self._problem_count = problem_count
        self.faults = 0

    def select(self, group: int) -> int:
        """The problem of a new ``group``; changes nothing."""
        try:
            problem = index(self._curator.select())
            if 0 <= problem < self._problem_count:
                return problem
            self._note(f"it named problem {problem} of {self._problem_count}")
        except Exception as error:  # noqa: BLE001 - the boundary to own code
            self._note(error)
        return group % self._problem_count

    def leased(self, problem: int) -> None:
        """A new group of ``problem``, as selected, was leased."""
        try:
            self._curator.leased(problem)
        except Exception as error:  # noqa: BLE001 - the boundary to own code
            self._note(error)

    def observe(self, problem: int, rows: PartRows) -> None:
        """A part of ``problem`` was admitted."""
        try:
            self._curator.observe(problem, rows)
        except Exception as error:  # noqa: BLE001 - the boundary to own code
            self._note(error)

    def counts(self) -> dict[str, int]:
        """What it did so far, if it tells."""
        try:
            counts: Callable[[], dict[str, int]] | None = getattr(self._curator, "counts", None)
            return {name: index(count) for name, count in counts().items()} if counts is not None else {}
        except Exception as error:  # noqa: BLE001 - the boundary to own code
            self._note(error)
            return {}

    def _note(self, error: Exception | str) -> None:
        self.faults += 1
        if self.faults == 1:  # the rest would fill the log: the manager's status has their number
            log.warning("the curator %s: %r", type(self._curator).__name__, error)
