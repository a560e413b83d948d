"""The book of groups: which are open, who plays them, which wait to be leased again.

A group that is neither open nor new is terminal, so a number below ``next_group`` that is missing here needs
no memory. Attempts count from 1; attempt k is the group's k-th lease.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec


class OpenGroup(msgspec.Struct, array_like=True, gc=False):
    """A group without a result. ``holders[k - 1]`` is the participant of attempt k."""

    problem: int
    holders: list[str]
    dropped: int = 0  # policies whose part is dropped already

    @property
    def attempt(self) -> int:
        return len(self.holders)

    def was_held_by(self, participant: str, attempt: int) -> bool:
        """Whether this attempt was ever leased to this participant."""
        return 1 <= attempt <= len(self.holders) and self.holders[attempt - 1] == participant


class Handback(msgspec.Struct, frozen=True):
    """A lease (of a group, or of an item of an evaluation) that its pool gave back in this step."""

    participant: str
    group: int
    attempt: int
    kind: str


class LeaseBook(msgspec.Struct):
    """All open groups: leased ones in the order of their leases, waiting ones in the order they came back."""

    next_group: int = 0
    open: dict[int, OpenGroup] = {}
    leased: dict[int, float] = {}  # group -> when, oldest first
    waiting: dict[int, int] = {}  # group -> attempt that ended
    returned: list[int] = []  # problems that are leased again, in new groups, before others
    time_s: float = 0.0  # that went by on the managers' clocks
    played_s: float = 0.0  # places that leased groups fill, summed over that time
    marked_at: float = 0.0

    def mark(self, now: float, playing: float) -> None:
        """Count what was played until now, by that many places: before any lease of this moment begins or ends.

        Only moments with decisions are marked, because those are the moments that every fold of the log meets.
        """
        elapsed_s = max(0.0, now - self.marked_at)  # a new epoch's clock begins again
        self.time_s += elapsed_s
        self.played_s += playing * elapsed_s
        self.marked_at = now

    def lease_new(self, holder: str, problems: Sequence[int], now: float) -> range:
        """Lease a new group of each problem; they are numbered on."""
        groups = range(self.next_group, self.next_group + len(problems))
        self.next_group = groups.stop
        self.open |= zip(groups, [OpenGroup(problem, [holder]) for problem in problems], strict=True)
        self.leased |= dict.fromkeys(groups, now)
        return groups

    def lease_again(self, group: int, holder: str, now: float) -> None:
        """Lease a waiting group."""
        self.waiting.pop(group, None)
        self.open[group].holders.append(holder)
        self.leased[group] = now

    def expire(self, group: int, attempt: int) -> None:
        """End an attempt; the group waits for the next one. Nothing happens if that is not its attempt."""
        found = self.open.get(group)
        if found is not None and found.attempt == attempt and self.leased.pop(group, None) is not None:
            self.waiting[group] = attempt

    def ages(self, groups: Iterable[int], attempts: Iterable[int], now: float) -> list[float]:
        """Seconds since their lease of those ``groups`` whose present attempt this is."""
        leased, found = self.leased, self.open
        pairs = zip(groups, attempts, strict=True)
        return [now - leased[g] for g, attempt in pairs if g in leased and len(found[g].holders) == attempt]

    def close(self, group: int) -> OpenGroup:
        """The group is terminal."""
        if self.leased.pop(group, None) is None:
            self.waiting.pop(group, None)
        return self.open.pop(group)

    def expired(self, now: float, timeout_s: float) -> list[int]:
        """Groups leased longer ago than ``timeout_s``."""
        found: list[int] = []
        for group, leased_at in self.leased.items():
            if now - leased_at <= timeout_s:
                break
            found.append(group)
        return found

    def restart_timers(self) -> None:
        """A new epoch's clock begins at 0."""
        self.leased = dict.fromkeys(self.leased, 0.0)
