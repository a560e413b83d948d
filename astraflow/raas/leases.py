"""What the decisions log tells one pool: which groups to play, which to give up, and when to go.

A pure fold; the pool acts on it. Invariant: a lease is in ``waiting``, in ``playing`` or forgotten.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from astraflow.records import (
    Admitted,
    AnyDecision,
    DrainRequested,
    EvalExpired,
    EvalLeased,
    EvalReported,
    Expired,
    Leased,
    Rejected,
    Stopped,
)


@dataclass(frozen=True, slots=True)
class Lease:
    """One attempt at one group, or at one item of an evaluation; ``problem`` is a row number of its data set."""

    group: int
    problem: int
    attempt: int
    evaluation: str = ""  # of which it is an item; then ``group`` is ``-1 - item``, so that no two leases look alike

    @property
    def item(self) -> int:
        """The item's number, if it is one of an evaluation."""
        return -1 - self.group


@dataclass(slots=True)
class Leases:
    """The leases of ``participant``. ``drain`` and ``stopped`` are reasons, None until decided."""

    participant: str
    waiting: deque[Lease] = field(default_factory=deque)
    playing: dict[int, Lease] = field(default_factory=dict)
    drain: str | None = None
    stopped: str | None = None
    quarantined: str | None = None

    def fold(self, decisions: Iterable[AnyDecision]) -> list[Lease]:
        """Take decisions in; returns leases that were being played and are void now."""
        void: list[Lease] = []
        for decision in decisions:
            match decision:
                case Leased(pool=pool) if pool == self.participant:
                    given = zip(decision.groups, decision.problems, decision.attempts, strict=True)
                    self.waiting.extend(Lease(*lease) for lease in given)
                case Admitted():
                    for group, attempt in zip(decision.groups, decision.attempts, strict=True):
                        void += self._end(group, None if decision.participant != self.participant else attempt)
                case Expired(pool=pool) if pool == self.participant:
                    for group, attempt in zip(decision.groups, decision.attempts, strict=True):
                        if self._attempt(group) == attempt:
                            void += self._end(group, None)
                case EvalLeased() | EvalExpired() | EvalReported():
                    void += self._fold_evaluation(decision)
                case DrainRequested() if not decision.participants or self.participant in decision.participants:
                    self.drain = decision.reason or "drained"
                case Rejected(participant=name, quarantined=True) if name == self.participant:
                    self.quarantined = decision.reason
                case Stopped():
                    self.stopped = decision.reason or "stopped"
                case _:
                    pass
        return void

    def _fold_evaluation(self, decision: EvalLeased | EvalExpired | EvalReported) -> list[Lease]:
        void: list[Lease] = []
        match decision:
            case EvalLeased(pool=pool, evaluation=name) if pool == self.participant:
                given = zip(decision.items, decision.problems, decision.attempts, strict=True)
                self.waiting.extend(Lease(-1 - item, problem, attempt, name) for item, problem, attempt in given)
            case EvalExpired(pool=pool) if pool == self.participant:
                for item, attempt in zip(decision.items, decision.attempts, strict=True):
                    if self._attempt(-1 - item) == attempt:
                        void += self._end(-1 - item, None)
            case EvalReported(evaluation=name):
                for lease in [*self.waiting, *self.playing.values()]:
                    if lease.evaluation == name:
                        void += self._end(lease.group, None)
            case _:
                pass
        return void

    def next(self) -> Lease:
        """Take the lease that waits longest; it is being played from here on."""
        lease = self.waiting.popleft()
        self.playing[lease.group] = lease
        return lease

    def done(self, lease: Lease) -> None:
        """The lease was played, or failed."""
        if self.playing.get(lease.group) == lease:
            del self.playing[lease.group]

    def _attempt(self, group: int) -> int | None:
        """The attempt that this pool has of a group."""
        if group in self.playing:
            return self.playing[group].attempt
        return next((lease.attempt for lease in self.waiting if lease.group == group), None)

    def _end(self, group: int, mine: int | None) -> list[Lease]:
        """Forget every lease of ``group`` but attempt ``mine``; returns the one that was being played."""
        if any(lease.group == group for lease in self.waiting):
            self.waiting = deque(x for x in self.waiting if x.group != group or x.attempt == mine)
        lease = self.playing.get(group)
        if lease is None or lease.attempt == mine:
            return []
        del self.playing[group]
        return [lease]
