"""What other algorithms would have done with a run's outcomes: the real ``step``, virtual pools and trainers.

The pools are those of the run, with their capacities; a leased group takes the time and brings the rows of a recorded
outcome of its problem (``outcomes``), a step takes its usual time. Rewards are as they were recorded: what other
data would have made of the policy is not known. So runs are compared with a replay of their own config, which meets
the same simplifications, and not with what was recorded.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import msgspec

from astraflow import records as r
from astraflow.config import RunConfig
from astraflow.dataflow.outcomes import Outcome, Outcomes, Recorded, Tally
from astraflow.dataflow.parts import PartRows
from astraflow.dataflow.replay import fold
from astraflow.dataflow.state import RunState
from astraflow.dataflow.step import Incoming, step
from storage.keys import RunKeys

MOST_SPENT = 20
"""A replay that has leased so many times the recorded groups ends unfinished."""
_TICK_S = 0.05


@dataclass(slots=True)
class Replayed:
    """One replay."""

    tally: Tally
    seconds: float
    is_finished: bool
    borrowed: int
    reused: int


@dataclass(slots=True)
class _Pool:
    """A virtual pool: groups by when they are done."""

    name: str
    joined: r.PoolJoined
    applied: dict[str, int] = field(default_factory=dict)
    playing: list[tuple[float, int, int, dict[str, int], Outcome]] = field(default_factory=list)


def replay_outcomes(recorded: Recorded, config: RunConfig) -> Replayed:
    """Run ``config`` on the recorded outcomes until its policies have done the recorded steps."""
    return _World(recorded, config).run()


class _World:
    def __init__(self, recorded: Recorded, config: RunConfig) -> None:
        config = config.model_copy(update={"evaluations": {}})
        self.recorded, self.config = recorded, config
        self.state = RunState(config)
        self.state.steps = {policy: recorded.tally.steps[policy] for policy in self.state.batch_size}
        self.outcomes = Outcomes(recorded, config.seed)
        self.tally = Tally()
        self.pools = {f"pool-{name}-0": _Pool(f"pool-{name}-0", joined) for name, joined in recorded.pools.items()}
        self.published = dict.fromkeys(config.policies, 0)
        self.training: dict[str, float] = {}  # policy -> when its step is done
        self.sent: dict[str, int] = {}
        self.keys = RunKeys(config.name)

    def run(self) -> Replayed:
        """Begin, then jump from event to event."""
        epoch = r.Epoch(n=1, holder="replay", data_hash="", config_hash="", code="")
        fold(self.state, r.DecisionRecord(id="", epoch=1, now=0, cursors={}, observations={}, decisions=[epoch]), [])
        self._step(0.0, self._joins())
        most = MOST_SPENT * max(1, self.recorded.tally.leased)
        now = 0.0
        while not self.state.all_ended and self.tally.leased <= most and (after := self._next_event()) is not None:
            now = max(now, after)
            self._step(now, self._events(now))
        self.tally.steps = {policy: self.state.policies[policy].consumed for policy in self.state.batch_size}
        self.tally.take(self.state)
        return Replayed(self.tally, now, self.state.all_ended, self.outcomes.borrowed, self.outcomes.reused)

    # --- what participants say --------------------------------------------------------------------

    def _joins(self) -> dict[str, list[r.AnyFact]]:
        said: dict[str, list[r.AnyFact]] = {}
        for policy in self.state.batch_size:
            begun = r.TrainerJoined(policy=policy, incarnation=0)
            said[f"trainer-{policy}"] = [begun, self._published(policy)]
            if not self.state.steps[policy]:
                said[f"trainer-{policy}"].append(r.Ended(policy=policy))
        for name, pool in self.pools.items():
            joined = msgspec.structs.replace(pool.joined, data_hash=self.config.data_hash)
            said[name] = [joined, *self._applied(pool)]
        return said

    def _published(self, policy: str) -> r.Published:
        version = self.published[policy]
        return r.Published(policy=policy, version=version, step=version, incarnation=0, digest=str(version))

    def _applied(self, pool: _Pool) -> list[r.AnyFact]:
        facts: list[r.AnyFact] = []
        for policy in pool.joined.policies:
            version = self.published[policy]
            if pool.applied.get(policy) != version:
                pool.applied[policy] = version
                facts.append(r.Applied(policy=policy, version=version, step=version, digest=str(version)))
        return facts

    def _next_event(self) -> float | None:
        times = [pool.playing[0][0] for pool in self.pools.values() if pool.playing]
        times += self.training.values()
        return min(times, default=None)

    def _events(self, now: float) -> dict[str, list[r.AnyFact]]:
        """What happened until shortly after ``now``."""
        said: dict[str, list[r.AnyFact]] = {}
        for policy in [policy for policy, done_at in self.training.items() if done_at <= now + _TICK_S]:
            del self.training[policy]
            said[f"trainer-{policy}"] = self._trained(policy)
        for name, pool in self.pools.items():
            facts = self._applied(pool)
            done = []
            while pool.playing and pool.playing[0][0] <= now + _TICK_S:
                done.append(heapq.heappop(pool.playing))
            if done:
                facts.append(self._committed(pool, done))
            if facts:
                said[name] = facts
        return said

    def _trained(self, policy: str) -> list[r.AnyFact]:
        batch = self.state.policies[policy].consumed
        self.published[policy] = batch + 1
        metrics = {"step_s": self.recorded.usual_step_s(policy)}
        facts: list[r.AnyFact] = [
            self._published(policy),
            r.Consumed(policy=policy, batch=batch, step=batch + 1, incarnation=0, metrics=metrics),
        ]
        return [*facts, r.Ended(policy=policy)] if batch + 1 >= self.state.steps[policy] else facts

    def _committed(self, pool: _Pool, done: list[tuple[float, int, int, dict[str, int], Outcome]]) -> r.Committed:
        objects = [
            self._object(pool, group, policy, versions[policy], rows)
            for _, group, _, versions, outcome in done
            for policy, rows in outcome.parts.items()
        ]
        return r.Committed(groups=[g for _, g, *_ in done], attempts=[a for _, _, a, *_ in done], objects=objects)

    def _object(self, pool: _Pool, group: int, policy: str, version: int, rows: PartRows) -> r.PartsObject:
        """The outcome's rows, sampled by the version that the pool had when it began."""
        count = rows.stop - rows.start
        return r.PartsObject(
            policy=policy,
            path=self.keys.trajectory(policy, version, pool.name, str(group)),
            size_bytes=0,
            hash="",
            groups=[group],
            row_starts=[0],
            row_counts=[count],
            episodes=rows.episodes,
            roles=rows.roles,
            slots=rows.slots,
            version_min=[version] * count,
            version_max=[version] * count,
            rewards=rows.rewards,
            prompt_tokens=rows.prompt_tokens,
            response_tokens=rows.response_tokens,
        )

    # --- the manager ------------------------------------------------------------------------------

    def _step(self, now: float, said: dict[str, list[r.AnyFact]]) -> None:
        incoming = []
        for name, facts in sorted(said.items()):
            seq = self.sent.get(name, 0)
            self.sent[name] = seq + 1
            incoming.append(Incoming(name, seq, r.FactRecord(id=f"{name}-{seq}", participant=name, facts=facts)))
        names = [*self.pools, *map("trainer-{}".format, self.state.batch_size)]
        beats = {name: self.sent.get(name, 0) + 1 for name in names}
        decisions = step(self.state, incoming, beats, now, watch=lambda one: self.tally.watch(self.state, one))
        for decision in decisions:
            self._hear(decision, now)
        for policy in self.state.batch_size:
            queue = self.state.policies[policy]
            if queue.unconsumed and policy not in self.training:
                self.training[policy] = now + self.recorded.usual_step_s(policy)

    def _hear(self, decision: r.AnyDecision, now: float) -> None:
        if not isinstance(decision, r.Leased):
            return
        pool = self.pools[decision.pool]
        version = max(pool.applied[policy] for policy in self.state.batch_size)
        for group, problem, attempt in zip(decision.groups, decision.problems, decision.attempts, strict=True):
            outcome = self.outcomes.give(problem, version, group)
            heapq.heappush(pool.playing, (now + outcome.seconds, group, attempt, dict(pool.applied), outcome))
