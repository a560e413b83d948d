"""The reader's fold and the manager's are two programs: over the same logs they must count the same.

A small world plays against the real manager: a pool that commits, fails, repeats itself and lies, trainers that skip
parts and publish, managers that are replaced in mid-run. Which of it happens is drawn from a seed.
"""

from __future__ import annotations

import random
import uuid
from collections import Counter
from typing import Any

import pytest

from astraflow import records as r
from astraflow.config import Component, Dataflow, RunConfig, Trainer
from astraflow.dataflow.manager import Manager
from astraflow.participant import DecisionsReader
from astraflow.query import open_run
from astraflow.recipe import dump_toml
from astraflow.records import Status, encode
from storage import open_store

POLICIES = ("solver", "verifier")


class World:
    """One pool and two trainers, who speak to a manager through the store alone."""

    def __init__(self, writer: Any, seed: int) -> None:
        self.w, self.random = writer, random.Random(seed)
        base = writer.config()
        self.config = RunConfig.model_validate(
            base.model_dump()
            | {
                "problem_count": 50,
                "trainer": Trainer(batch_size=2, steps=8).model_dump(),
                "dataflow": Dataflow(
                    group_size=2, max_attempts=2, filters=[Component(name="zero_advantage")], silence_s=1e9
                ).model_dump(),
            }
        )
        self.w.store.put(self.w.keys.config, dump_toml(self.config).encode())
        self.now = 0.0
        self.leases: dict[int, int] = {}
        self.done = dict.fromkeys(POLICIES, 0)
        self.decisions = DecisionsReader(writer.store, writer.keys)
        self.pool = "pool-a-00000001"
        self.trainers = {policy: f"trainer-{policy}-00000001" for policy in POLICIES}
        self.manager = self.new_manager()
        for name in (self.pool, *self.trainers.values()):
            self.w.store.put(self.w.keys.status(name), encode(Status(participant=name, role="pool", state="live")))
        for policy, trainer in self.trainers.items():
            self.w.manifest(policy, 0, 0, kind="anchor")
            self.w.say(trainer, r.TrainerJoined(policy=policy, incarnation=1), self.w.published(policy, 0, 0, 1000))
        self.w.say(self.pool, self.w.joined("a", "us"), *(self.w.applied(policy, 0, 0) for policy in POLICIES))

    def new_manager(self) -> Manager:
        manager = Manager(self.w.store, self.config, holder="test", clock=lambda: self.now)
        manager.start()
        return manager

    def turn(self) -> None:
        self.now += 1.0
        if self.random.random() < 0.1:
            self.manager = self.new_manager()
        self.manager.tick()
        for decision in self.news():
            match decision:
                case r.Leased():
                    self.leases |= dict(zip(decision.groups, decision.attempts, strict=True))
                case r.Batched():
                    self.train(decision)
                case _:
                    pass
        self.play()

    def news(self) -> list[r.AnyDecision]:
        return [decision for _, record in self.decisions.poll() for decision in record.decisions]

    def play(self) -> None:
        for group in self.random.sample(sorted(self.leases), min(len(self.leases), 3)):
            attempt = self.leases.pop(group)
            fate = self.random.random()
            if fate < 0.15:
                self.w.say(self.pool, r.Failed(group=group, attempt=attempt, kind="timeout"))
                continue
            objects = []
            for policy in POLICIES if fate < 0.8 else POLICIES[:1]:
                rewards = [self.random.choice([0, 0.5, 1]) for _ in range(2)]
                version = self.done[policy]
                objects.append(self.w.parts(self.pool, policy, version, {group: rewards}, {group: attempt}))
            committed = r.Committed(groups=[group], attempts=[attempt], objects=objects)
            if fate > 0.95:
                self.w.say(self.pool, r.Committed(groups=[group], attempts=[attempt + 5], objects=objects))
                self.leases[group] = attempt
                continue
            self.w.say(self.pool, committed)
            if fate < 0.3:
                self.w.say(self.pool, committed)

    def train(self, batch: r.Batched) -> None:
        policy, step = batch.policy, batch.n + 1
        skipped = batch.groups[:1] if self.random.random() < 0.2 else []
        self.w.manifest(policy, step, step)
        self.w.say(
            self.trainers[policy],
            self.w.published(policy, step, step, 50),
            self.w.consumed(policy, batch.n, skipped=skipped, reasons=["digest"] * len(skipped)),
        )
        self.done[policy] = step
        self.w.say(self.pool, self.w.applied(policy, step, step))


@pytest.fixture
def memory_writer(writer_class: type) -> Any:
    return writer_class(open_store(f"memory://{uuid.uuid4().hex}"))


@pytest.mark.parametrize("seed", range(8))
def test_the_reader_counts_what_the_manager_counts(memory_writer: Any, seed: int) -> None:
    world = World(memory_writer, seed)
    for _ in range(60):
        world.turn()
    world.manager.tick()
    run = open_run(f"{memory_writer.store.url}/hand")
    parts = run.table("parts").to_pylist()
    assert sum(queue.consumed for queue in world.manager.state.policies.values()) > 4
    for policy, queue in world.manager.state.policies.items():
        of_policy = [part for part in parts if part["policy"] == policy]
        states = Counter(part["state"] for part in of_policy)
        drops = Counter(part["reason"] for part in of_policy if part["state"] == "dropped")
        assert {part["group_id"] for part in of_policy if part["state"] == "ready"} == set(queue.ready)
        assert states["batched"] == queue.batched
        assert states["consumed"] == queue.trained
        assert dict(drops) == queue.dropped
        open_groups = [
            group
            for group in world.manager.state.leases.open
            if not any(part["group_id"] == group and part["state"] == "dropped" for part in of_policy)
        ]
        assert states["open"] == len(open_groups)
        assert run.figures().policies[policy].steps == queue.consumed
    records = [record for _, record in DecisionsReader(memory_writer.store, memory_writer.keys).poll(limit=10**6)]
    rejects = sum(isinstance(decision, r.Rejected) for record in records for decision in record.decisions)
    assert sum(run.figures().rejected.values()) == rejects


@pytest.mark.parametrize("seed", range(3))
def test_the_data_set_holds_every_batched_row_once(memory_writer: Any, seed: int) -> None:
    world = World(memory_writer, seed)
    for _ in range(40):
        world.turn()
    run = open_run(f"{memory_writer.store.url}/hand")
    rows = run.trajectories().to_table(columns=["policy", "group_id", "path", "trajectory_id"]).to_pylist()
    counted = Counter((row["policy"], row["path"], row["group_id"]) for row in rows)
    assert counted
    admitted = run.sql("select policy, path, group_id, rows from parts where path is not null").to_pylist()
    assert counted == {(part["policy"], part["path"], part["group_id"]): part["rows"] for part in admitted}
    assert len({(row["policy"], row["trajectory_id"]) for row in rows}) == len(rows)
