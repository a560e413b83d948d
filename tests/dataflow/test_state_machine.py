"""Any order of events that Hypothesis thinks of keeps the books; any bytes in an outbox leave the manager standing."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from astraflow import records as r
from astraflow.config import Component, Evaluation, Pool, Problems
from astraflow.dataflow.replay import read_incoming
from astraflow.dataflow.step import step
from storage.keys import RunKeys
from storage.memory import MemoryStore
from tests.dataflow.drive import Drive, make_config, make_parts, of

POLICIES = ("solver", "verifier")


class ManagerMachine(RuleBasedStateMachine):
    """Pools and a trainer for each policy, in any order; ``Drive`` compares fold and step after every one."""

    @initialize(
        max_staleness=st.integers(0, 2),
        batch_size=st.integers(1, 3),
        filters=st.booleans(),
        coupling=st.sampled_from(["none", "slowest"]),
    )
    def begin(self, max_staleness: int, batch_size: int, filters: bool, coupling: str) -> None:
        chosen = [Component(name="zero_advantage")] if filters else []
        self.config = make_config(
            policies={name: {} for name in POLICIES},
            steps=3,
            batch_size=batch_size,
            max_staleness=max_staleness,
            filters=chosen,
            max_redraw=1,
            coupling=coupling,
            report_every=1,
            silence_s=10,
            group_timeout_s=30,
        ).model_copy(update={"pools": {"local": Pool(), "far": Pool(region="west")}})
        self.drive = Drive(self.config)
        self.steps = dict.fromkeys(POLICIES, 0)
        self.applied: dict[str, dict[str, int]] = {}
        self.is_stopped = False
        for policy in POLICIES:
            self.drive.join_trainer(policy)

    @rule(after_s=st.sampled_from([0.0, 0.5, 3.0, 11.0, 31.0]))
    def tick(self, after_s: float) -> None:
        if not self.is_stopped:
            decisions = self.drive.step(after_s)
            self.is_stopped = bool(of(decisions, r.Stopped))

    @rule(pool=st.sampled_from(["pool-a", "pool-b"]), capacity=st.integers(1, 5))
    def join(self, pool: str, capacity: int) -> None:
        self.drive.join_pool(pool, capacity=capacity, region="local" if pool == "pool-a" else "west")
        self.applied.setdefault(pool, dict.fromkeys(POLICIES, 0))

    @rule(pool=st.sampled_from(["pool-a", "pool-b"]), ahead=st.integers(0, 1))
    def want_leases(self, pool: str, ahead: int) -> None:
        if pool in self.applied:
            self.drive.say(pool, r.LeasesWanted(ahead=ahead))

    @rule(pool=st.sampled_from(["pool-a", "pool-b"]))
    def beat(self, pool: str) -> None:
        self.drive.beat(pool, *(f"trainer-{policy}" for policy in POLICIES))

    @rule(
        pool=st.sampled_from(["pool-a", "pool-b"]),
        count=st.integers(1, 4),
        same=st.booleans(),
        both=st.booleans(),
        attempt=st.integers(1, 2),
    )
    def commit(self, pool: str, count: int, same: bool, both: bool, attempt: int) -> None:
        book = self.drive.state.leases
        groups = [group for group, found in book.open.items() if found.was_held_by(pool, attempt)][:count]
        rewards = (1.0, 1.0) if same else (0.0, 1.0)
        if groups:
            objects = [
                make_parts(pool, groups, policy=policy, version=self.applied[pool][policy], rewards=rewards)
                for policy in POLICIES[: 2 if both else 1]
            ]
            self.drive.say(pool, r.Committed(groups=groups, attempts=[attempt] * len(groups), objects=objects))

    @rule(pool=st.sampled_from(["pool-a", "pool-b"]), kind=st.sampled_from(["environment", "drained"]))
    def fail(self, pool: str, kind: str) -> None:
        if pool in self.drive.state.participants:
            for group, attempt in list(self.drive.state.participants[pool].held.items())[:2]:
                self.drive.say(pool, r.Failed(group=group, attempt=attempt, kind=kind))

    @rule(policy=st.sampled_from(POLICIES), skip=st.booleans())
    def train(self, policy: str, skip: bool) -> None:
        queue, step_ = self.drive.state.policies[policy], self.steps[policy]
        if step_ in queue.batches and not queue.ended:
            parts = queue.batches[step_]
            self.drive.train(step_, policy=policy, skipped=[parts[0].group] if skip and parts else [])
            self.steps[policy] += 1

    @rule(pool=st.sampled_from(["pool-a", "pool-b"]), policy=st.sampled_from(POLICIES))
    def apply(self, pool: str, policy: str) -> None:
        if pool in self.applied:
            step_ = self.steps[policy]
            self.applied[pool][policy] = step_
            self.drive.say(pool, self.drive.applied(policy, step_, step_))

    @rule(what=st.sampled_from(["pause", "resume"]), policy=st.sampled_from(["", *POLICIES]))
    def wish(self, what: str, policy: str) -> None:
        self.drive.say("operator-1", r.Wanted(what=what, target=policy))

    @rule(what=st.sampled_from(["pause", "resume"]), region=st.sampled_from(["local", "west"]))
    def wish_region(self, what: str, region: str) -> None:
        self.drive.say("operator-1", r.Wanted(what=what, region=region))

    @rule(what=st.sampled_from(["lost", "drain"]), pool=st.sampled_from(["pool-a", "pool-b"]), really=st.integers(0, 3))
    def wish_away(self, what: str, pool: str, really: int) -> None:
        if really == 0:
            self.drive.say("operator-1", r.Wanted(what=what, target=pool))

    @rule(policy=st.sampled_from(POLICIES))
    def end(self, policy: str) -> None:
        if self.steps[policy] >= 3:
            self.drive.say(f"trainer-{policy}", r.Ended(policy=policy), r.Left())

    @rule(really=st.integers(0, 9))
    def stop(self, really: int) -> None:
        if really == 0:
            self.drive.say("operator-1", r.Wanted(what="stop"))

    @invariant()
    def every_group_has_one_place(self) -> None:
        state = getattr(self, "drive", None) and self.drive.state
        if not state:
            return
        book = state.leases
        assert set(book.leased) | set(book.waiting) == set(book.open) and not set(book.leased) & set(book.waiting)
        held = {group for participant in state.participants.values() for group in participant.held}
        assert held == set(book.leased)
        for queue in state.policies.values():
            assert queue.batched == sum(map(len, queue.batches.values()))
            ended = queue.trained + sum(queue.dropped.values())
            assert book.next_group == len(book.open) + len(queue.ready) + queue.batched + ended
            assert not queue.skipped
            assert sorted(queue.batches) == list(range(queue.consumed, queue.formed))

    @invariant()
    def asking_again_changes_nothing(self) -> None:
        if not hasattr(self, "drive") or self.is_stopped or self.drive._inbox:
            return
        before = self.drive.state.snapshot()
        if not step(self.drive.state, [], {}, self.drive.now):
            assert self.drive.state.snapshot() == before


TestManagerMachine = ManagerMachine.TestCase
TestManagerMachine.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


# --- anything in an outbox -------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**80), 2**80) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def _fields(fact: r.AnyFact) -> dict[str, Any]:
    return json.loads(r.encode(r.FactRecord(id="a", participant="pool-a", facts=[fact])))["facts"][0]


FACTS = [
    _fields(r.Committed(groups=[0], attempts=[1], objects=[make_parts("pool-a", [0])])),
    _fields(r.Applied(policy="solver", version=1, step=0, digest="d")),
    _fields(r.Failed(group=1, attempt=1, kind="x")),
    _fields(r.Evaluated(evaluation="held", item=0, attempt=1, scores=[0.5], low={"solver": 0}, high={"solver": 0})),
    _fields(r.EvalFailed(item=0, attempt=1, kind="x")),
    _fields(r.PoolJoined(pool="l", region="h", policies=["solver"], capacity=2, engine="x", data_hash="abc")),
    _fields(r.TrainerJoined(policy="solver", incarnation=0)),
    _fields(r.Published(policy="solver", version=1, step=0, incarnation=0, digest="d")),
    _fields(r.Consumed(policy="solver", batch=0, step=1, incarnation=0, metrics={"a": 1.0})),
    _fields(r.Ended(policy="solver")),
    _fields(r.LeasesWanted(ahead=2)),
    _fields(r.Wanted(what="drain", target="pool-a")),
    _fields(r.Wanted(what="pause")),
    _fields(r.Wanted(what="resume", region="local")),
]


@st.composite
def damaged_records(draw: st.DrawFn) -> bytes:
    """A record that is nearly right: some field of some fact is something else."""
    fact = json.loads(json.dumps(draw(st.sampled_from(FACTS))))
    where = fact
    if fact["type"] == "Committed" and draw(st.booleans()):
        where = fact["objects"][0]
    for name in draw(st.lists(st.sampled_from(sorted(where)), max_size=2)):
        other = draw(
            JSON
            | st.lists(st.floats(allow_nan=False), min_size=2, max_size=2)
            | st.lists(st.integers(-1, 2), max_size=4)
            | st.sampled_from(["solver", "pool-a", 0, 1, 2**63])
        )
        where[name] = other
    return json.dumps({"id": "a", "participant": "pool-a", "facts": [fact]}).encode()


@given(
    st.lists(damaged_records() | st.binary(max_size=20), min_size=1, max_size=4), st.sampled_from(["pool-a", "new-1"])
)
@settings(max_examples=300, deadline=None)
def test_no_record_stops_the_manager(texts: list[bytes], name: str) -> None:
    held = Evaluation(problems=Problems(source="none"), problem_count=2, data_hash="x")
    drive = Drive(make_config().model_copy(update={"evaluations": {"held": held}}))
    drive.ready()
    drive.commit([2, 3])
    drive.step()
    store, keys = MemoryStore(), RunKeys("run")
    for index, text in enumerate(texts):
        store.put(keys.outbox(name, index), text)
        drive.beat(name)
        incoming = read_incoming(store, keys, name, index)
        assert incoming is not None
        drive._inbox.append((name, incoming.record))
        drive.step()
    drive.step(100.0)
