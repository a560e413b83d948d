"""Drives ``step`` without a store: facts in, decisions out, and after every step the recorded fold must agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from astraflow import records as r
from astraflow.config import Component, Dataflow, Policy, Pool, Problems, RunConfig, Trainer
from astraflow.dataflow.replay import fold
from astraflow.dataflow.state import RunState
from astraflow.dataflow.step import Incoming, step

D = TypeVar("D")


def make_config(
    *,
    policies: dict[str, dict[str, Any]] | None = None,
    steps: int = 10,
    batch_size: int = 2,
    problem_count: int = 100,
    **dataflow: Any,
) -> RunConfig:
    """A small run; ``dataflow`` overrides [dataflow]."""
    flow = {"group_size": 2, "max_staleness": 1, "curator": Component(name="sequential"), "max_attempts": 2}
    return RunConfig(
        name="run",
        policies={name: Policy(model="none", **p) for name, p in (policies or {"solver": {}}).items()},
        problems=Problems(source="none"),
        problem_count=problem_count,
        data_hash="abc",
        pools={"local": Pool()},
        trainer=Trainer(steps=steps, batch_size=batch_size),
        dataflow=Dataflow(**{**flow, **dataflow}),
    )


def make_parts(
    participant: str,
    groups: Sequence[int],
    *,
    policy: str = "solver",
    version: int | Sequence[int] = 0,
    rewards: Sequence[float] = (0.0, 1.0),
    **columns: Any,
) -> r.PartsObject:
    """One object with one row an episode for each group; ``rewards`` are those of each group."""
    size = len(rewards)
    versions = [version] * len(groups) if isinstance(version, int) else list(version)
    rows = [v for v in versions for _ in range(size)]
    first = min(groups, default=0)
    fields = {
        "policy": policy,
        "path": f"run/trajectories/policy={policy}/version={min(rows, default=0)}/{participant}-{first}.parquet",
        "size_bytes": 1,
        "hash": f"hash-{policy}-{first}",
        "groups": list(groups),
        "row_starts": [i * size for i in range(len(groups))],
        "row_counts": [size] * len(groups),
        "episodes": list(range(size)) * len(groups),
        "roles": [policy] * len(rows),
        "slots": [0] * len(rows),
        "version_min": rows,
        "version_max": rows,
        "rewards": list(rewards) * len(groups),
        "prompt_tokens": [3] * len(rows),
        "response_tokens": [5] * len(rows),
    }
    return r.PartsObject(**{**fields, **columns})


class Drive:
    """One run's state, with everything that happened to it."""

    def __init__(self, config: RunConfig) -> None:
        self.config = config
        self.state = RunState(config)
        self.mirror = RunState(config)  # folds what was recorded, as a recovery would
        self.now = 0.0
        self.log: list[r.AnyDecision] = []
        self._inbox: list[tuple[str, r.FactRecord | None]] = []
        self._beats: dict[str, int] = {}
        self._sent: dict[str, int] = {}
        self._attempts: dict[int, int] = {}
        self.new_epoch()

    # --- what participants do -------------------------------------------------------------------

    def beat(self, *names: str) -> None:
        for name in names:
            self._beats[name] = self._beats.get(name, 0) + 1

    def say(self, name: str, *facts: r.AnyFact) -> None:
        if name not in self.state.participants:
            self._beats.setdefault(name, 1)
        self._inbox.append((name, r.FactRecord(id=r.new_id(), participant=name, facts=list(facts))))

    def garble(self, name: str) -> None:
        self._inbox.append((name, None))

    def join_pool(
        self,
        name: str = "pool-a",
        *,
        capacity: int = 8,
        policies: Sequence[str] | None = None,
        region: str = "here",
    ) -> None:
        names = sorted(self.config.policies) if policies is None else list(policies)
        joined = r.PoolJoined(
            pool="local", region=region, policies=names, capacity=capacity, engine="x", data_hash="abc"
        )
        self.say(name, joined, *(self.applied(policy) for policy in names))

    def applied(self, policy: str = "solver", version: int = 0, step: int = 0) -> r.Applied:
        return r.Applied(policy=policy, version=version, step=step, digest=f"{policy}{version}")

    def join_trainer(self, policy: str = "solver") -> None:
        joined = r.TrainerJoined(policy=policy, incarnation=0)
        self.say(f"trainer-{policy}", joined, self.published(policy, 0, 0))

    def published(self, policy: str, version: int, step: int) -> r.Published:
        return r.Published(policy=policy, version=version, step=step, incarnation=0, digest=f"{policy}{version}")

    def train(self, batch: int, *, policy: str = "solver", skipped: Sequence[int] = (), version: int = -1) -> None:
        """The trainer's word after batch ``batch``."""
        consumed = r.Consumed(
            policy=policy,
            batch=batch,
            step=batch + 1,
            incarnation=0,
            skipped=list(skipped),
            reasons=["hash"] * len(skipped),
            metrics={"step_s": 2.0},
        )
        number = batch + 1 if version < 0 else version
        self.say(f"trainer-{policy}", self.published(policy, number, batch + 1), consumed)

    def commit(
        self, groups: Sequence[int], *, name: str = "pool-a", attempt: int | None = None, **columns: Any
    ) -> None:
        """A pool brings groups, with a part of every policy."""
        attempts = [self._attempts.get(group, 1) if attempt is None else attempt for group in groups]
        objects = [make_parts(name, groups, policy=policy, **columns) for policy in sorted(self.config.policies)]
        self.say(name, r.Committed(groups=list(groups), attempts=attempts, objects=objects))

    def ready(self, count: int | None = None) -> None:
        """Start a trainer of every policy and a pool; take the first leases."""
        for policy in self.config.trained:
            self.join_trainer(policy)
        self.join_pool(capacity=count or 8)
        self.step()

    # --- the manager ----------------------------------------------------------------------------

    def new_epoch(self) -> None:
        """Another manager takes over; its clock starts at 0."""
        self.now = 0.0
        n = self.state.ledger.epoch + 1
        for state in (self.state, self.mirror):
            record = r.DecisionRecord(id=str(n), epoch=n, now=0.0, cursors={}, observations={}, decisions=[epoch(n)])
            fold(state, record, [])

    def step(self, after_s: float = 1.0) -> list[r.AnyDecision]:
        self.now += after_s
        incoming = []
        for name, record in sorted(self._inbox, key=lambda item: item[0]):
            seq = self._sent.get(name, 0)
            self._sent[name] = seq + 1
            incoming.append(Incoming(name, seq, record, "" if record else "not a FactRecord"))
        observations = {name: beats for name, beats in self._beats.items() if self._known_beats(name) != beats}
        self._inbox.clear()
        decisions = step(self.state, incoming, observations, self.now)
        self.state.ledger.seq += 1
        self._mirror(incoming, observations, decisions)
        for leased in of(decisions, r.Leased):
            self._attempts |= dict(zip(leased.groups, leased.attempts, strict=True))
        self.log += decisions
        return decisions

    def _known_beats(self, name: str) -> int:
        known = self.state.participants.get(name)
        return known.beats if known else 0

    def _mirror(self, incoming: list[Incoming], observations: dict[str, int], decisions: list[r.AnyDecision]) -> None:
        cursors = {i.participant: self.state.participants[i.participant].cursor for i in incoming}
        record = r.DecisionRecord(
            id="x", epoch=1, now=self.now, cursors=cursors, observations=observations, decisions=decisions
        )
        record = r.decode(r.encode(record), r.DecisionRecord, where="")
        fold(self.mirror, record, [i for i in incoming if i.seq < cursors[i.participant]])
        assert self.mirror.snapshot() == self.state.snapshot(), "the fold of the record differs from the step"
        again = RunState.restore(self.config, self.state.snapshot(), where="")
        assert again.snapshot() == self.state.snapshot(), "a snapshot does not come back exactly"

    def open_groups(self, pool: str = "pool-a") -> list[int]:
        return list(self.state.participants[pool].held)


def epoch(n: int = 1) -> r.Epoch:
    return r.Epoch(n=n, holder="test", data_hash="abc", config_hash="c", code="1")


def of(decisions: Sequence[r.AnyDecision], kind: type[D]) -> list[D]:
    """Decisions of one kind."""
    return [decision for decision in decisions if isinstance(decision, kind)]


def leased_groups(decisions: Sequence[r.AnyDecision], pool: str | None = None) -> list[int]:
    return [group for d in of(decisions, r.Leased) if pool in (None, d.pool) for group in d.groups]


def drops(decisions: Sequence[r.AnyDecision]) -> dict[tuple[str, str], list[int]]:
    """(policy, reason) -> groups."""
    found: dict[tuple[str, str], list[int]] = {}
    for dropped in of(decisions, r.Dropped):
        found.setdefault((dropped.policy, dropped.reason), []).extend(dropped.groups)
    return found
