"""Virtual time: events in the order of their times, those of one time in the order in which they were planned.

Nothing here looks at a real clock, so the same plans give the same order on every machine.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable


class Timeline:
    """What will happen, and when. ``now`` never falls."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events = 0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()

    def at(self, time_s: float, act: Callable[[], None]) -> None:
        """Do ``act`` at ``time_s``, or now if that is past."""
        heapq.heappush(self._heap, (max(time_s, self.now), next(self._order), act))

    def after(self, delay_s: float, act: Callable[[], None]) -> None:
        """Do ``act`` in ``delay_s`` seconds."""
        self.at(self.now + delay_s, act)

    def run(self, is_over: Callable[[], bool], limit_s: float) -> bool:
        """Let things happen until ``is_over`` (True), or nothing is left or ``limit_s`` is reached (False)."""
        while not is_over():
            if not self._heap or self._heap[0][0] > limit_s:
                return False
            self.now, _, act = heapq.heappop(self._heap)
            self.events += 1
            act()
        return True


class Alarm:
    """Something that is done at the earliest time that was asked for, once however often it was."""

    def __init__(self, timeline: Timeline, act: Callable[[], None]) -> None:
        self._timeline = timeline
        self._act = act
        self._at: float | None = None

    def ring_in(self, delay_s: float) -> None:
        """Do it in ``delay_s`` seconds at the latest."""
        at = self._timeline.now + delay_s
        if self._at is None or at < self._at:
            self._at = at
            self._timeline.at(at, lambda: self._ring(at))

    def _ring(self, at: float) -> None:
        if self._at == at:  # else a sooner one has rung already
            self._at = None
            self._act()
