"""A way to the store that is as bad as the scenario says, behind a client that asks again, as real ones do.

Reads are repeated at once, since a repeated read does no harm; what a write's lost answer means is for the protocol to
find out, so writes are not repeated here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import TypeVar

from storage.errors import StoreError
from storage.memory import FaultPlan, MemoryStore
from storage.store import Created, ObjectInfo, ObjectStore

T = TypeVar("T")
TRIES = 4
"""Times a read is sent before its error is the caller's."""


class Client:
    """An object store that repeats reads which met a fault."""

    def __init__(self, inner: ObjectStore) -> None:
        self._inner = inner

    @property
    def url(self) -> str:
        return self._inner.url

    def get(self, key: str) -> bytes:
        return _again(lambda: self._inner.get(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return _again(lambda: self._inner.get_range(key, start, length))

    def put(self, key: str, data: bytes) -> None:
        self._inner.put(key, data)

    def create(self, key: str, data: bytes) -> Created:
        return self._inner.create(key, data)

    def list(self, prefix: str, *, after: str | None = None, limit: int | None = None) -> Iterator[ObjectInfo]:
        return iter(_again(lambda: [*self._inner.list(prefix, after=after, limit=limit)]))

    def delete(self, key: str) -> None:
        self._inner.delete(key)


def _again(read: Callable[[], T]) -> T:
    for _ in range(TRIES - 1):
        try:
            return read()
        except StoreError as error:
            if error.kind != "unreachable":
                raise
    return read()


def make_client(store: MemoryStore, faults: float, rng: random.Random) -> ObjectStore:
    """A client whose requests meet ``faults``: none is done, or none is answered, or it is done twice, or late."""
    if not faults:
        return store.client()
    each = faults / 4
    plan = FaultPlan(seed=rng.getrandbits(32), error_before=each, lost_answer=each, duplicate=each, late=each)
    return Client(store.client(plan))
