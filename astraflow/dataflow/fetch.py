"""Many small reads at once, where a read is a round trip.

A manager's tick and its recovery are made of independent GETs; one after the other they would cost a round trip
each. Local and memory stores answer at once and are asked in turn, which also keeps simulations deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from storage.store import ObjectStore

T = TypeVar("T")
R = TypeVar("R")

AT_ONCE = 32
"""Most reads under way at once."""


def reads_at_once(store: ObjectStore) -> int:
    """How many reads of this store are worth having under way."""
    return 1 if store.url.startswith(("file:", "memory:")) else AT_ONCE


def fetch_all(store: ObjectStore, read: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """``read`` of every item, in order. Raises the first item's error if several fail."""
    width = min(reads_at_once(store), len(items))
    if width < 2:
        return [read(item) for item in items]
    with ThreadPoolExecutor(max_workers=width, thread_name_prefix="fetch") as pool:
        return list(pool.map(read, items))
