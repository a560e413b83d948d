"""Publishing beside the training: a version is written while the next batch is trained.

What a step has to say (the version, the record that its batch is consumed, its row) is one piece of work, done in
order by one thread. At most one step's is under way: the next waits until it is out, and so does a checkpoint. So a
trainer that is killed has trained at most one step that nobody knows of, which its next life trains again.

Ranks of one trainer take turns in what they say to each other, so there the work is done in place.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class Publishing:
    """Does one step's work at a time, in a thread of its own unless it is ``in_place``. It is waited for at the end."""

    def __init__(self, *, in_place: bool = False) -> None:
        self.in_place = in_place
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="publish")
        self._work: Future[None] | None = None
        self._ended_s = float("-inf")

    def __enter__(self) -> Publishing:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(wait=True)

    @property
    def is_busy(self) -> bool:
        """Whether something is being written."""
        return self._work is not None and not self._work.done()

    def begin(self, work: Callable[[], None]) -> None:
        """Have ``work`` done, once what was begun before is out. Raises what that raised."""
        self.settle()
        if self.in_place:
            work()
        else:
            self._work = self._thread.submit(self._timed, work)

    def check(self) -> None:
        """Raise what the work raised, if it has ended so."""
        if self._work is not None and self._work.done():
            self.settle()

    def settle(self) -> None:
        """Wait until what was begun is out. Raises what it raised, once."""
        if self._work is not None:
            work, self._work = self._work, None
            work.result()

    def busy_s(self, begin_s: float, end_s: float) -> float:
        """Seconds between two readings of the monotonic clock, up to now, in which something was being written.

        Only of what was begun before ``begin_s``.
        """
        ended_s = end_s if self.is_busy else self._ended_s
        return min(max(0.0, ended_s - begin_s), end_s - begin_s)

    def _timed(self, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            self._ended_s = time.monotonic()
