"""A log of numbered immutable objects: append is create-if-absent at the first free number.

Invariants: numbers are gapless from 0; the bytes under a number never change; one append lands under exactly one
number however often its answers are lost. The last holds because the same bytes are sent for a number until that
number is decided, and because records differ from each other (each has an id of its own).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from storage.errors import NotFound, StoreError
from storage.fetch import fetch_all, reads_at_once
from storage.store import Created, ObjectStore

T = TypeVar("T")


@dataclass(slots=True)
class Patience:
    """How long an unreachable store is asked: ``total_s`` in all, after ``first_s``, doubling up to ``most_s``."""

    total_s: float = 60.0
    first_s: float = 0.05
    most_s: float = 5.0
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic


@dataclass(slots=True)
class _Wait:
    """One operation's use of a ``Patience``."""

    patience: Patience
    deadline: float = field(init=False)
    next_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.deadline = self.patience.clock() + self.patience.total_s
        self.next_s = self.patience.first_s

    def over(self, error: StoreError) -> bool:
        """Sleep before the next try; True if ``error`` is not worth one or time is up."""
        if error.kind != "unreachable" or self.patience.clock() + self.next_s > self.deadline:
            return True
        self.patience.sleep(self.next_s)
        self.next_s = min(self.patience.most_s, self.next_s * 2)
        return False


class NumberedLog:
    """One log in ``store``; ``key_of`` gives the key of a number. It holds no position: any thread may use it."""

    def __init__(self, store: ObjectStore, key_of: Callable[[int], str], *, patience: Patience | None = None) -> None:
        self._store = store
        self._key_of = key_of
        self._patience = patience or Patience()

    def key(self, seq: int) -> str:
        """The key of number ``seq``."""
        return self._key_of(seq)

    def read(self, seq: int) -> bytes | None:
        """The record under ``seq``, or None while that number is free."""
        try:
            return self._store.get(self._key_of(seq))
        except NotFound:
            return None

    def read_from(self, start: int) -> Iterator[tuple[int, bytes]]:
        """The records from number ``start`` to the log's present end, with their numbers.

        Where a read is a round trip, more and more are under way at once; a reader at the tail costs one request
        beyond what is there. Raises ``StoreError`` behind the last record that could be read.
        """
        seq, width, most = start, 1, reads_at_once(self._store)
        while True:
            for data in fetch_all(self._store, self._attempt, range(seq, seq + width)):
                if isinstance(data, StoreError):
                    raise data
                if data is None:
                    return
                yield seq, data
                seq += 1
            if seq > start + 1:
                width = min(most, width * 2)

    def _attempt(self, seq: int) -> bytes | StoreError | None:
        """As ``read``, with the error as a value: what stands before it is not lost."""
        try:
            return self.read(seq)
        except StoreError as error:
            return error

    def create(self, seq: int, data: bytes) -> bytes | None:
        """Write ``data`` under ``seq``: None if it stands there now, else the bytes that another writer put there.

        Returns only once the number is decided. Raises ``StoreError`` when the store stayed unreachable; then the
        number is undecided, and ``data`` may still turn up there.
        """
        return self._decide(seq, data, _Wait(self._patience))

    def append(self, data: bytes, start: int = 0) -> int:
        """Write ``data`` under the first free number ≥ ``start`` and return it. Numbers below ``start`` must be taken.

        One request when ``start`` is the tail. ``data`` must differ from every other record of the log.
        """
        wait = _Wait(self._patience)
        seq = start
        while self._decide(seq, data, wait) is not None:
            seq = self._retry(partial(self._gallop, seq + 1), wait)
        return seq

    def tail(self, hint: int = 0, *, taken: bool = False) -> int:
        """The first free number, by galloping reads from ``hint`` (any number; near the tail is quickest).

        ``taken`` says that all numbers below ``hint`` are: then one request tells that nothing is new.
        """
        if hint > 0 and not taken and self.read(hint - 1) is None:
            return self._between(-1, hint - 1)
        return self._gallop(hint)

    def _decide(self, seq: int, data: bytes, wait: _Wait) -> bytes | None:
        """One number: send the same bytes until somebody's are there."""
        key = self._key_of(seq)
        while True:
            try:
                if self._store.create(key, data) is Created.CREATED:
                    return None
                failure = StoreError(
                    "the store says the object exists and that it does not", where=key, kind="unreachable"
                )
            except StoreError as error:
                if error.kind != "unreachable":
                    raise
                failure = error
            # Either the answer was lost or somebody was first: what stands there tells.
            there = self._retry(partial(self.read, seq), wait)
            if there is not None:
                return None if there == data else there
            if wait.over(failure):
                raise failure

    def _retry(self, ask: Callable[[], T], wait: _Wait) -> T:
        """``ask`` until it answers or patience ends."""
        while True:
            try:
                return ask()
            except StoreError as error:
                if wait.over(error):
                    raise

    def _gallop(self, start: int) -> int:
        """The first free number ≥ ``start``, where ``start - 1`` is taken: 1, 2, 4, … further, then between."""
        taken, step = start - 1, 1
        while self.read(taken + step) is not None:
            taken += step
            step *= 2
        return self._between(taken, taken + step)

    def _between(self, taken: int, free: int) -> int:
        """The first free number of the range (``taken``, ``free``] by halving."""
        while free - taken > 1:
            middle = (taken + free) // 2
            if self.read(middle) is None:
                free = middle
            else:
                taken = middle
        return free
