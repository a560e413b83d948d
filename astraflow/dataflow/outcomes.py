"""What a finished run's rollouts came to, problem by problem: the material on which other algorithms are tried.

An outcome is one admitted group: its rows' metadata as its pool said them, and how long it took from lease to
admission. Outcomes are given again by the version that played them: for a pool that samples from version v the one
whose own version is nearest, each only once while there are unused ones.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import msgspec

from astraflow import records as r
from astraflow.config import RunConfig
from astraflow.dataflow.draws import draw
from astraflow.dataflow.parts import PartRows
from astraflow.dataflow.replay import fold, read_decisions, read_inputs
from astraflow.dataflow.state import RunState
from astraflow.dataflow.step import Incoming
from storage.errors import DataError
from storage.keys import RunKeys
from storage.store import ObjectStore


@dataclass(frozen=True, slots=True)
class Outcome:
    """One admitted group. ``version`` is the oldest that played, in the policy that played it."""

    number: int
    problem: int
    parts: dict[str, PartRows]
    version: int
    seconds: float


@dataclass(slots=True)
class Tally:
    """What a run, or a replay of it, comes to. ``leased`` and ``admitted`` count groups, the others parts."""

    leased: int = 0  # attempts included
    admitted: int = 0
    steps: dict[str, int] = field(default_factory=dict)
    trained: int = 0
    replayed: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    lags: Counter[int] = field(default_factory=Counter)  # of fresh parts, when batched
    problems: set[int] = field(default_factory=set)

    def watch(self, state: RunState, decision: r.AnyDecision) -> None:
        """Count one decision, before it is folded."""
        match decision:
            case r.Leased():
                self.leased += len(decision.groups)
                self.problems.update(decision.problems)
            case r.Admitted():
                self.admitted += len(decision.groups)
            case r.Batched():
                ready = state.policies[decision.policy].ready
                fresh = [ready[group] for group in decision.groups if group in ready]
                self.lags.update(decision.n - part.step for part in fresh)
                self.replayed += len(decision.groups) - len(fresh)

    def take(self, state: RunState) -> None:
        """The counts that the state keeps."""
        for policy in state.batch_size:
            self.trained += state.policies[policy].trained
            self.dropped.update(state.policies[policy].dropped)

    def to_dict(self, group_size: int) -> dict[str, Any]:
        """Plain values, with what they amount to."""
        parts = sum(self.lags.values())
        return {
            "steps": self.steps,
            "groups_leased": self.leased,
            "rollouts": self.leased * group_size,
            "groups_admitted": self.admitted,
            "parts_trained": self.trained,
            "parts_replayed": self.replayed,
            "kept": self.trained / (self.trained + sum(self.dropped.values())) if self.trained else 0.0,
            "dropped": dict(sorted(self.dropped.items())),
            "lag_mean": sum(lag * count for lag, count in self.lags.items()) / parts if parts else None,
            "lags": dict(sorted(self.lags.items())),
            "problems": len(self.problems),
        }


@dataclass(slots=True)
class Recorded:
    """What a run did, as far as algorithms have a say in it."""

    config: RunConfig
    outcomes: dict[int, list[Outcome]] = field(default_factory=dict)  # by problem
    count: int = 0
    pools: dict[str, r.PoolJoined] = field(default_factory=dict)  # the first life of each
    step_s: dict[str, list[float]] = field(default_factory=dict)  # by policy
    tally: Tally = field(default_factory=Tally)

    def usual_step_s(self, policy: str) -> float:
        """The median time of a step."""
        return median(self.step_s.get(policy) or [1.0])


class Outcomes:
    """Gives recorded outcomes again."""

    def __init__(self, recorded: Recorded, seed: int) -> None:
        self.borrowed = 0  # of problems that the run never played
        self.reused = 0
        self._by_problem = recorded.outcomes
        self._all = sorted((o for found in recorded.outcomes.values() for o in found), key=lambda o: o.number)
        self._uses: Counter[int] = Counter()
        self._seed = seed

    def give(self, problem: int, version: int, lease: int) -> Outcome:
        """The outcome for a lease: the least used ones of the problem, of those the one nearest in version."""
        found = self._by_problem.get(problem)
        if found is None:
            self.borrowed += 1
            found = [self._all[draw(self._seed, "borrow", lease) % len(self._all)]]
        uses = min(self._uses[outcome.number] for outcome in found)
        unused = [outcome for outcome in found if self._uses[outcome.number] == uses]
        self.reused += uses > 0
        chosen = min(unused, key=lambda outcome: (abs(outcome.version - version), outcome.number))
        self._uses[chosen.number] += 1
        return chosen


def read_outcomes(store: ObjectStore, keys: RunKeys, config: RunConfig) -> Recorded:
    """Fold the run's logs and keep its outcomes. Raises ``DataError`` if it has admitted nothing."""
    state, recorded = RunState(config), Recorded(config)
    for record in read_decisions(store, keys, 0):
        inputs = read_inputs(store, keys, state, record)
        for incoming in inputs:
            _take_facts(recorded, incoming)
        fold(state, record, inputs, watch=lambda decision: _watch(recorded, state, decision))
    recorded.tally.steps = {policy: state.policies[policy].consumed for policy in config.trained}
    recorded.tally.take(state)
    for name, joined in recorded.pools.items():  # an outcome's time goes from lease to admission: it holds one of these
        ahead = max((p.ahead for p in state.participants.values() if p.role == "pool" and p.name == name), default=0)
        recorded.pools[name] = msgspec.structs.replace(joined, capacity=joined.capacity + ahead)
    if not recorded.outcomes:
        raise DataError(
            "nothing of this run was admitted, so there is nothing to replay", where=keys.root, kind="outcomes"
        )
    return recorded


def _take_facts(recorded: Recorded, incoming: Incoming) -> None:
    for fact in incoming.record.facts if incoming.record else []:
        match fact:
            case r.PoolJoined():
                recorded.pools.setdefault(fact.pool, fact)
            case r.Consumed() if "step_s" in fact.metrics:
                recorded.step_s.setdefault(fact.policy, []).append(fact.metrics["step_s"])


def _watch(recorded: Recorded, state: RunState, decision: r.AnyDecision) -> None:
    """One decision, before it is folded."""
    recorded.tally.watch(state, decision)
    if not isinstance(decision, r.Admitted):
        return
    for group, attempt in zip(decision.groups, decision.attempts, strict=True):
        parts = state.arrival_of(group, attempt, decision.participant).parts
        played = state.leases.open[group]
        seconds = state.now - state.leases.leased.get(group, state.now)
        version = min((min(rows.versions_min) for rows in parts.values()), default=0)
        outcome = Outcome(recorded.count, played.problem, parts, version, max(0.01, seconds))
        recorded.outcomes.setdefault(played.problem, []).append(outcome)
        recorded.count += 1
