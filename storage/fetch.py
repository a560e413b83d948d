"""Many small reads at once, where a read is a round trip.

A manager's tick, its recovery and a reader's catching up are made of independent GETs; one after the other they would
cost a round trip each. Local and memory stores answer at once and are asked in turn, which also keeps simulations
deterministic. The threads are shared by the whole process and never wait for each other: ``fetch_all`` is not called
from within a ``read``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from storage.store import ObjectStore

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 32
"""Most reads under way at once."""
_NEAR = ("file:", "memory:")


def is_near(url: str) -> bool:
    """Whether a request to the store at ``url`` costs neither a round trip nor money."""
    return url.startswith(_NEAR)


def reads_at_once(store: ObjectStore) -> int:
    """How many reads of this store are worth having under way."""
    return 1 if is_near(store.url) else AT_ONCE


def fetch_all(store: ObjectStore, read: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """``read`` of every item, in order. Raises the first item's error if several fail."""
    if min(reads_at_once(store), len(items)) < 2:
        return [read(item) for item in items]
    return list(_threads().map(read, items))


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(AT_ONCE, thread_name_prefix="fetch")
