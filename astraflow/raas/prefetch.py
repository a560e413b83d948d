"""How many leases a pool holds beyond those that it plays, so that no place is idle while the next one is on its way.

Between a group's end and the lease that it makes room for lie its upload, its commit, the manager and the pool's next
look at the log: on a far store seconds. By Little's law a pool whose places all play has capacity · turnaround / play
groups on that way; it asks for as many leases ahead, so none of them waits for longer than one turnaround. Pure: times
come from the caller.
"""

from __future__ import annotations

from collections import deque
from statistics import median

RECENT = 32
"""Groups whose times count."""
LEAST = 5
"""Groups that must have been seen before anything is asked for."""
STEP = 8
"""A number that differs by less than one in so many places (and by less than one lease) is not worth a word."""


class Prefetch:
    """The leases ahead of one pool of ``capacity`` places; ``ahead`` is what it asked for last."""

    def __init__(self, capacity: int) -> None:
        self.ahead = 0
        self._capacity = capacity
        self._plays: deque[float] = deque(maxlen=RECENT)
        self._turnarounds: deque[float] = deque(maxlen=RECENT)
        self._ended: dict[int, float] = {}  # group -> when it had been played; oldest first

    def played(self, group: int, began_s: float, ended_s: float) -> None:
        """A group has been played and is on its way."""
        self._plays.append(ended_s - began_s)
        self._ended[group] = ended_s
        while len(self._ended) > RECENT + 2 * self._capacity:  # that nothing was heard of
            del self._ended[next(iter(self._ended))]

    def admitted(self, group: int, heard_s: float) -> None:
        """The decision that took the group in was read: what is leased in its place stands beside it."""
        ended_s = self._ended.pop(group, None)
        if ended_s is not None:
            self._turnarounds.append(heard_s - ended_s)

    def asks(self) -> int | None:
        """Another number of leases ahead, if it is time to say one."""
        if min(len(self._plays), len(self._turnarounds)) < LEAST:
            return None
        play_s = max(1e-9, median(self._plays))
        wanted = min(float(self._capacity), self._capacity * median(self._turnarounds) / play_s)
        if abs(wanted - self.ahead) < max(1.0, self._capacity / STEP):
            return None
        self.ahead = round(wanted)
        return self.ahead
