"""What the manager knows about each participant: who it is, what it has applied, what it holds, when it was heard.

Times are seconds on the manager's clock since its epoch began; they only ever compare with each other.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

PAST = 0.8
"""Weight of the past in a pool's running time of a group, at each record of it that is admitted."""


class AppliedVersion(msgspec.Struct, array_like=True):
    """The version that a pool samples from, and its step."""

    version: int
    step: int


class Participant(msgspec.Struct):
    """One life of a pool, a trainer or anyone else who writes an outbox."""

    role: str = ""  # pool, trainer, or empty until it joins
    name: str = ""  # the pool's or the policy's
    region: str = ""
    policies: list[str] = []
    capacity: int = 0
    cursor: int = 0  # next unread record of its outbox
    beats: int = 0  # changes of its status object
    heard_at: float = 0.0
    applied: dict[str, AppliedVersion] = {}
    held: dict[int, int] = {}  # unfinished leases: group -> attempt
    evals: dict[int, int] = {}  # unfinished leases of evaluations: item -> attempt
    group_s: float = 0.0  # running mean of the time from lease to admission; 0: none yet
    admitted: int = 0  # groups
    rejects: int = 0
    failures: int = 0  # leases handed back, or not done in time, since the last admitted group
    quarantined: bool = False
    lost: bool = False  # its process is known to be dead
    draining: bool = False
    left: bool = False
    ahead: int = 0  # leases that it takes beyond its capacity, to have the next one there when a place is free
    share: float = 1.0  # of its leases that fill places, as the last decision found it

    def is_silent(self, now: float, silence_s: float) -> bool:
        """No beat for longer than ``silence_s``, or known to be dead."""
        return self.lost or self.is_quiet(now, silence_s)

    def is_quiet(self, now: float, silence_s: float) -> bool:
        """No beat for longer than ``silence_s``; the last words of one that is known to be dead may still come."""
        return now - self.heard_at > silence_s

    def is_heard(self, now: float, silence_s: float) -> bool:
        """Its outbox is worth a look even though its beat did not change."""
        return not (self.left or self.quarantined or self.is_quiet(now, silence_s))

    def is_gone(self, now: float, silence_s: float) -> bool:
        """Nothing more is to be expected of it."""
        return self.left or self.quarantined or self.is_silent(now, silence_s)

    @property
    def why_gone(self) -> str:
        """One word for why nothing more is to be expected of it."""
        if self.left:
            return "left"
        if self.quarantined:
            return "quarantined"
        return "lost" if self.lost else "silent"

    def is_able(self, policies: list[str], now: float, silence_s: float) -> bool:
        """A pool that can play groups of all ``policies`` now."""
        return (
            self.role == "pool"
            and not self.draining
            and not self.is_gone(now, silence_s)
            and all(policy in self.applied for policy in policies)
        )

    def serves(self, policies: list[str]) -> bool:
        """A pool whose engines have all ``policies``."""
        return self.role == "pool" and all(policy in self.policies for policy in policies)

    @property
    def room(self) -> int:
        """Groups it can take. A pool that fails again and again gets one at a time until one succeeds."""
        leases = self.capacity + self.ahead if self.failures < 2 * self.capacity else 1
        return max(0, leases - len(self.held) - len(self.evals))

    @property
    def playing(self) -> float:
        """Places that its leases fill: of all that it may hold, the rest are on their way (Little's law)."""
        return len(self.held) * self.share

    def settle(self) -> None:
        """Let its word on leases ahead count from here on."""
        self.share = self.capacity / (self.capacity + self.ahead) if self.ahead else 1.0

    @property
    def rate(self) -> float:
        """Groups a second that it plays when it has all its leases, by its own recent times; 0: not known."""
        return (self.capacity + self.ahead) / self.group_s if self.group_s > 0 else 0.0

    def note_admitted(self, count: int, times_s: Sequence[float]) -> None:
        """``count`` groups were admitted, of which some were in time and took so long: the recent ones weigh most."""
        self.admitted += count
        if not times_s:
            return
        mean_s = max(0.001, sum(times_s) / len(times_s))  # the clock's resolution
        self.group_s = mean_s if self.group_s == 0 else PAST * self.group_s + (1 - PAST) * mean_s
