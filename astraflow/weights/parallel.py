"""Work on blocks by a few threads, with results in the order of the blocks and a bounded number under way.

The array work, pcodec, zstd and xxh3 run without the interpreter's lock, so two threads are nearly twice as
fast. A block under way takes up to three times its size, so few are.

Invariant: at most ``workers`` + ``waiting`` blocks are being worked on or waiting to be taken.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

WORKERS = 2

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def in_order(
    work: Callable[[_Item], _Result], items: Sequence[_Item], workers: int = WORKERS, *, waiting: int = 1
) -> Iterator[_Result]:
    """``work`` of each of ``items``, in their order. What ``work`` raises is raised here, and nothing new is begun."""
    if len(items) < 2 or workers < 2:  # a thread would only cost
        yield from map(work, items)
        return
    with ThreadPoolExecutor(workers, thread_name_prefix="blocks") as pool:
        under_way: deque[Future[_Result]] = deque()
        try:
            for item in items:
                if len(under_way) >= workers + waiting:
                    yield under_way.popleft().result()
                under_way.append(pool.submit(work, item))
            while under_way:
                yield under_way.popleft().result()
        finally:
            for future in under_way:
                future.cancel()
