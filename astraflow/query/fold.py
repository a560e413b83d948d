"""What a run is at one moment, folded from its decisions and the facts they were made on.

This is the reader's own fold: it follows decisions and never makes one, so it is also a check on the manager. A part
is in exactly one state: open → ready → batched → consumed, or dropped from any of the first three.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from astraflow import records as r
from astraflow.dataflow.scale_book import ScaleBook
from astraflow.query.kept import KeptObject
from astraflow.query.logs import SeenDecision, SeenFacts

_Place = tuple[KeptObject, int]
"""A part: the object it lies in, and which of its parts it is."""


@dataclass(slots=True)
class PartView:
    """One policy's trajectories of a group. ``index`` is the part's place in ``object``'s part columns."""

    policy: str
    group: int
    problem: int
    attempt: int
    participant: str
    state: str = "open"
    reason: str = ""
    batch: int = -1
    uses: int = 0
    object: KeptObject | None = None
    index: int = -1

    @property
    def rows(self) -> slice:
        """The part's rows in the row columns of ``object``."""
        if self.object is None:
            return slice(0, 0)
        start = self.object.row_starts[self.index]
        return slice(start, start + self.object.row_counts[self.index])


@dataclass(slots=True)
class BatchView:
    """A batch, and what its trainer said when it had trained it."""

    decision: r.Batched
    seq: int
    epoch: int
    now: float
    consumed: bool = False
    step: int = -1
    skipped: frozenset[int] = frozenset()
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class VersionView:
    """A version that a trainer said it published or a pool said it applied (then without sizes)."""

    step: int
    digest: str
    incarnation: int = -1
    delta_bytes: int | None = None
    full_bytes: int | None = None


@dataclass(slots=True)
class PoolView:
    """One life of a pool. ``applied`` is the newest version of each policy; counts are groups."""

    joined: r.PoolJoined
    state: str = "live"
    ahead: int = 0  # leases that it asked for beyond its capacity
    leased: int = 0
    committed: int = 0
    admitted: int = 0
    failed: int = 0
    expired: int = 0
    rows: int = 0
    applied: dict[str, int] = field(default_factory=dict)
    applies: int = 0


@dataclass(slots=True)
class ObjectView:
    """A trajectory object with at least one admitted group; rows of its other groups never count."""

    parts: KeptObject
    admitted: set[int] = field(default_factory=set)


class RunFold:
    """The state of a run. ``policies`` are those that a leased group has parts of until it is known better."""

    def __init__(self, policies: Iterable[str]) -> None:
        self._policies = sorted(policies)
        self.state = "created"
        self.reason = ""
        self.paused: dict[str, str] = {}  # why, by policy; empty text: the run
        self.decisions: list[tuple[int, r.DecisionRecord]] = []
        self.seconds_of_epoch: dict[int, float] = {}
        self.parts: dict[tuple[str, int], PartView] = {}
        self.states: Counter[tuple[str, str]] = Counter()  # parts by policy and state
        self.drops: Counter[tuple[str, str]] = Counter()  # dropped parts by policy and reason
        self.batches: dict[tuple[str, int], BatchView] = {}
        self.versions: dict[tuple[str, int], VersionView] = {}
        self.pools: dict[str, PoolView] = {}
        self.objects: dict[str, ObjectView] = {}
        self.consumed: dict[str, int] = {}  # newest consumed batch of a policy
        self.ended: dict[str, str] = {}
        self.scaling = ScaleBook()
        self.failures: Counter[str] = Counter()
        self.rejections: Counter[str] = Counter()
        self.consumed_rows: dict[tuple[str, int], dict[str, Any]] = {}  # of consumed batches, kept by query.tables
        self._problems: dict[int, int] = {}  # of each group
        self._told_lost: set[str] = set()
        self._lost: dict[str, str] = {}  # what the state of a lost pool was before
        self._lost_early: set[str] = set()  # told lost before they joined
        self._pending: dict[int, dict[tuple[str, int], list[_Place]]] = {}  # by group: what each attempt brought

    def take(self, seen: SeenDecision) -> None:
        """Fold one decision record: first the facts it was made on, then its decisions."""
        record = seen.record
        for name in self._lost.keys() & record.observations.keys():  # a beat after all
            self.pools[name].state = self._lost.pop(name)
        self._lost_early -= record.observations.keys()
        for facts in seen.facts:
            for fact in facts.record.facts:
                self._take_fact(facts, fact)
        self._lose()
        self.decisions.append((seen.seq, record))
        self.seconds_of_epoch[record.epoch] = max(record.now, self.seconds_of_epoch.get(record.epoch, 0.0))
        for decision in record.decisions:
            self._take_decision(seen, decision)

    # --- facts ----------------------------------------------------------------------------------

    def _take_fact(self, source: SeenFacts, fact: r.AnyFact) -> None:
        match fact:
            case r.Published():
                self._take_published(fact)
            case r.Consumed():
                self._take_consumed(fact)
            case r.Ended():
                self.ended.setdefault(fact.policy, fact.reason)
            case r.Wanted(what="lost"):
                self._told_lost.add(fact.target)
            case r.PoolJoined():
                self.pools.setdefault(source.participant, PoolView(fact))
            case _ if source.participant in self.pools:
                self._take_pool_fact(source.participant, self.pools[source.participant], fact)
            case _:
                pass

    def _lose(self) -> None:
        for name in self._told_lost & self.pools.keys():
            pool = self.pools[name]
            if pool.state in ("live", "draining"):
                self._lost[name], pool.state = pool.state, "lost"
        self._lost_early |= self._told_lost - self.pools.keys()
        self._told_lost.clear()

    def _take_pool_fact(self, participant: str, pool: PoolView, fact: r.AnyFact) -> None:
        match fact:
            case r.Applied():
                self.versions.setdefault((fact.policy, fact.version), VersionView(fact.step, fact.digest))
                pool.applies += 1
                pool.applied[fact.policy] = max(fact.version, pool.applied.get(fact.policy, -1))
            case r.Committed():
                pool.committed += len(fact.groups)
                self._take_committed(participant, fact)
            case r.Failed():
                pool.failed += 1
                self.failures[fact.kind] += 1
            case r.LeasesWanted():
                pool.ahead = fact.ahead
            case r.Draining():
                pool.state = "draining"
            case r.Left():
                pool.state = "left"
            case _:
                pass

    def _take_committed(self, participant: str, fact: r.Committed) -> None:
        """Remember what was offered; the first offer of an attempt is the one that ``Admitted`` means."""
        brought: dict[int, list[_Place]] = {group: [] for group in fact.groups}
        for said in fact.objects:
            kept = KeptObject.of(said)
            for index, group in enumerate(said.groups):
                brought.setdefault(group, []).append((kept, index))
        for group, attempt in zip(fact.groups, fact.attempts, strict=False):
            if not any(part.object for part in self._parts_of(group)):
                self._pending.setdefault(group, {}).setdefault((participant, attempt), brought[group])

    def _take_published(self, fact: r.Published) -> None:
        known = self.versions.get((fact.policy, fact.version))
        if known is None or known.delta_bytes is None:
            self.versions[fact.policy, fact.version] = VersionView(
                fact.step, fact.digest, fact.incarnation, fact.delta_bytes, fact.full_bytes
            )

    def _take_consumed(self, fact: r.Consumed) -> None:
        """Every batch up to ``fact.batch`` is trained; a repeat changes nothing."""
        for n in range(self.consumed.get(fact.policy, -1) + 1, fact.batch + 1):
            batch = self.batches.get((fact.policy, n))
            if batch is None:
                return
            self.consumed[fact.policy] = n
            batch.consumed, batch.step = True, n + 1
            if n == fact.batch:
                batch.step, batch.skipped, batch.metrics = fact.step, frozenset(fact.skipped), dict(fact.metrics)
            for group in batch.decision.groups:
                part = self.parts.get((fact.policy, group))
                if part is not None and part.state == "batched" and group not in batch.skipped:
                    self._move(part, "consumed")

    # --- decisions ------------------------------------------------------------------------------

    def _take_decision(self, seen: SeenDecision, decision: r.AnyDecision) -> None:
        match decision:
            case r.Leased():
                self._take_leased(decision)
            case r.Admitted():
                for group, attempt in zip(decision.groups, decision.attempts, strict=True):
                    self._admit(decision.participant, group, attempt)
            case r.Expired():
                if decision.pool in self.pools:
                    self.pools[decision.pool].expired += len(decision.groups)
            case r.Dropped():
                self._take_dropped(decision)
            case r.Batched():
                self._take_batched(seen, decision)
            case r.Rejected():
                self.rejections[decision.reason] += 1
                if decision.quarantined and decision.participant in self.pools:
                    self.pools[decision.participant].state = "quarantined"
            case _:
                self._take_run_decision(decision)

    def _take_run_decision(self, decision: r.AnyDecision) -> None:
        match decision:
            case r.Epoch():
                self.state = "running" if self.state == "created" else self.state
            case r.DrainRequested() if not decision.participants:
                self.state, self.reason = "draining", decision.reason
            case r.Paused() | r.Resumed() if decision.region:
                self.scaling.pause(decision, {})
            case r.Paused():
                self.paused[decision.policy] = decision.reason
            case r.Resumed():
                self.paused.pop(decision.policy, None)
            case r.LoadReported():
                self.scaling.hear(decision)
            case r.Scaled():
                self.scaling.take(decision, {})
            case r.Stopped():
                self.state, self.reason = "stopped", decision.reason
            case _:
                pass

    def _take_leased(self, decision: r.Leased) -> None:
        if decision.pool in self.pools:
            self.pools[decision.pool].leased += len(decision.groups)
        for group, problem, attempt in zip(decision.groups, decision.problems, decision.attempts, strict=True):
            self._problems[group] = problem
            for policy in self._policies:
                part = self._part(policy, group, attempt, decision.pool)
                if part.state == "open":
                    part.attempt, part.participant = attempt, decision.pool

    def _admit(self, participant: str, group: int, attempt: int) -> None:
        places = self._pending.pop(group, {}).get((participant, attempt), [])
        for policy in self._policies:
            part = self.parts.get((policy, group))
            if part is not None and part.state == "open" and all(kept.policy != policy for kept, _ in places):
                self.states[policy, "open"] -= 1
                del self.parts[policy, group]
        for kept, index in places:
            self._admit_part(participant, group, attempt, kept, index)
        if participant in self.pools:
            self.pools[participant].admitted += 1

    def _admit_part(self, participant: str, group: int, attempt: int, kept: KeptObject, index: int) -> None:
        part = self._part(kept.policy, group, attempt, participant)
        part.object, part.index = kept, index
        part.attempt, part.participant = attempt, participant
        if part.state == "open":
            self._move(part, "ready")
        self.objects.setdefault(kept.path, ObjectView(kept)).admitted.add(group)
        if participant in self.pools:
            self.pools[participant].rows += kept.row_counts[index]

    def _take_dropped(self, decision: r.Dropped) -> None:
        for group in decision.groups:
            part = self._part(decision.policy, group, -1, "")
            if part.state == "dropped":
                self.drops[part.policy, part.reason] -= 1
            self._move(part, "dropped")
            part.reason = decision.reason
            self.drops[part.policy, part.reason] += 1

    def _take_batched(self, seen: SeenDecision, decision: r.Batched) -> None:
        self.batches[decision.policy, decision.n] = BatchView(decision, seen.seq, seen.record.epoch, seen.record.now)
        for group in decision.groups:
            part = self.parts.get((decision.policy, group))
            if part is None:
                continue
            part.uses += 1
            if part.state == "ready":
                self._move(part, "batched")
                part.batch = decision.n

    def _part(self, policy: str, group: int, attempt: int, participant: str) -> PartView:
        """The part, made open if the group is new."""
        part = self.parts.get((policy, group))
        if part is None:
            part = PartView(policy, group, self._problems.get(group, -1), attempt, participant)
            self.parts[policy, group] = part
            self.states[policy, part.state] += 1
        return part

    def _move(self, part: PartView, state: str) -> None:
        self.states[part.policy, part.state] -= 1
        self.states[part.policy, state] += 1
        part.state = state

    def _parts_of(self, group: int) -> list[PartView]:
        found = (self.parts.get((policy, group)) for policy in self._policies)
        return [part for part in found if part is not None]

    def has_come(self, participant: str) -> bool:
        """Whether it has joined as a pool, or was told dead before it could: it is not on its way any more."""
        return participant in self.pools or participant in self._lost_early

    @property
    def seconds(self) -> float:
        """Time that managers have worked on the run, by their own clocks."""
        return sum(self.seconds_of_epoch.values())
