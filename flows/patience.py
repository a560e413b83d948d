"""Passing faults of the store and of the Prefect server: the experiment waits for them to end, with a deadline.

The server is advisory: while a run gets on without it, the deadline moves with the run's progress.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from storage.errors import AstraFlowError, ServiceError, StoreError

PATIENCE_S = 900.0


class Patience:
    """``with patience:`` swallows «unreachable» until it has lasted ``PATIENCE_S``; anything else goes through.

    ``progress`` is a mark that moves while the run gets on: the time counts from its last move.
    """

    def __init__(
        self,
        note: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        progress: Callable[[], int] = lambda: 0,
    ) -> None:
        self._note = note
        self._clock = clock
        self._progress = progress
        self._mark = 0
        self._since: dict[type, float] = {}

    def __enter__(self) -> Patience:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> bool:
        if kind is None:
            self._since.clear()
            return False
        if not (isinstance(error, ServiceError | StoreError) and error.kind == "unreachable"):
            return False
        return self._is_borne(error)

    def _is_borne(self, error: AstraFlowError) -> bool:
        now = self._clock()
        if type(error) not in self._since:
            self._note(f"waiting, for at most {PATIENCE_S:g} s without progress: {error}")
            self._since[type(error)] = now
        if (mark := self._progress()) != self._mark:
            self._mark, self._since[type(error)] = mark, now
        return now - self._since[type(error)] < PATIENCE_S
