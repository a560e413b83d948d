"""Passing faults of the store and of the Prefect server: the experiment waits for them to end, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType

from storage.errors import AstraFlowError, ServiceError, StoreError

PATIENCE_S = 900.0


class Patience:
    """``with patience:`` swallows «unreachable» until it has lasted ``PATIENCE_S``; anything else goes through."""

    def __init__(self, note: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._note = note
        self._clock = clock
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
            self._since[type(error)] = now
            self._note(f"waiting, for at most {PATIENCE_S:g} s: {error}")
        return now - self._since[type(error)] < PATIENCE_S
