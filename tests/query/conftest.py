"""A run written by hand: two policies, an attempt that lost, rejected records, orphans, facts beyond the cursors."""

from __future__ import annotations

import datetime
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from astraflow import records as r
from astraflow.config import Dataflow, Policy, Problems, RunConfig
from astraflow.query import Run, open_run
from astraflow.recipe import dump_toml
from astraflow.records import DecisionRecord, FactRecord, encode, new_id
from astraflow.trajectory import SCHEMA
from astraflow.weights.manifest import Blob, Manifest, encode_manifest, seal
from storage import Created, ObjectStore, open_store
from storage.keys import RunKeys
from storage.tables import encode_table, hash_bytes

POOL_A, POOL_B = "pool-a-00000001", "pool-b-00000002"
SOLVER, VERIFIER = "trainer-solver-00000003", "trainer-verifier-00000004"


class RunWriter:
    """Writes facts, decisions and objects of one run as its participants would."""

    def __init__(self, store: ObjectStore, run: str = "hand") -> None:
        self.store, self.keys = store, RunKeys(run)
        self.objects: dict[tuple[str, int], r.PartsObject] = {}  # newest object of (policy, group)
        self._outboxes: dict[str, int] = {}
        self._decisions = 0

    def config(self) -> RunConfig:
        config = RunConfig(
            name=self.keys.run,
            store=self.store.url,
            policies={"solver": Policy(model="tiny-qwen3"), "verifier": Policy(model="tiny-qwen3")},
            problems=Problems(source="addition"),
            dataflow=Dataflow(group_size=2),
        )
        self.create(self.keys.config, dump_toml(config).encode())
        return config

    def create(self, key: str, data: bytes) -> None:
        assert self.store.create(key, data) is Created.CREATED

    def say(self, participant: str, *facts: r.AnyFact) -> int:
        """Append facts; returns the cursor behind them."""
        return self.say_raw(participant, encode(FactRecord(id=new_id(), participant=participant, facts=list(facts))))

    def say_raw(self, participant: str, data: bytes) -> int:
        seq = self._outboxes.get(participant, 0)
        self.create(self.keys.outbox(participant, seq), data)
        self._outboxes[participant] = seq + 1
        return seq + 1

    def decide(
        self, epoch: int, now: float, cursors: dict[str, int], *decisions: r.AnyDecision, beats: Sequence[str] = ()
    ) -> int:
        record = DecisionRecord(
            id=new_id(),
            epoch=epoch,
            now=now,
            cursors=cursors,
            observations=dict.fromkeys(beats, 1),
            decisions=list(decisions),
        )
        self.create(self.keys.decision(self._decisions), encode(record))
        self._decisions += 1
        return self._decisions - 1

    def parts(
        self,
        participant: str,
        policy: str,
        version: int,
        groups: dict[int, Sequence[float]],
        attempts: dict[int, int],
        *,
        elsewhere: ObjectStore | None = None,
    ) -> r.PartsObject:
        """An uploaded object: rewards of each group's rows; each row has 3 prompt and 4 response tokens."""
        rows, starts, counts = [], [], []
        for group, rewards in groups.items():
            starts.append(len(rows))
            counts.append(len(rewards))
            for episode, reward in enumerate(rewards):
                rows.append(_row(self.keys.run, policy, version, group, attempts[group], episode, reward))
        path = self.keys.trajectory(policy, version, participant, uuid.uuid4().hex)
        data = encode_table(pa.Table.from_pylist(rows, schema=SCHEMA))
        (elsewhere or self.store).put(path, data)
        count = len(rows)
        written = r.PartsObject(
            policy=policy,
            path=path,
            size_bytes=len(data),
            hash=hash_bytes(data),
            groups=list(groups),
            row_starts=starts,
            row_counts=counts,
            episodes=[row["episode"] for row in rows],
            roles=[policy] * count,
            slots=[0] * count,
            version_min=[version] * count,
            version_max=[version] * count,
            rewards=[row["reward"] for row in rows],
            prompt_tokens=[3] * count,
            response_tokens=[4] * count,
            store=elsewhere.url if elsewhere else "",
        )
        for group in groups:
            self.objects[policy, group] = written
        return written

    def commit(self, pool: str, policy: str, version: int, groups: dict[int, Sequence[float]], *, now: float) -> None:
        """Upload groups, commit them as attempt 0, and admit them."""
        attempts = dict.fromkeys(groups, 0)
        parts = self.parts(pool, policy, version, groups, attempts)
        cursor = self.say(pool, r.Committed(groups=list(groups), attempts=[0] * len(groups), objects=[parts]))
        admitted = r.Admitted(groups=list(groups), attempts=[0] * len(groups), participant=pool)
        self.decide(1, now, {pool: cursor}, admitted)

    def batched(self, policy: str, n: int, groups: list[int]) -> r.Batched:
        """The decision that names the newest objects of these groups."""
        objects = [self.objects[policy, group] for group in groups]
        unique = list({o.path: o for o in objects}.values())
        places = [o.groups.index(group) for o, group in zip(objects, groups, strict=True)]
        return r.Batched(
            policy=policy,
            n=n,
            paths=[o.path for o in unique],
            stores=[""] * len(unique),
            hashes=[o.hash for o in unique],
            groups=groups,
            objects=[unique.index(o) for o in objects],
            row_starts=[o.row_starts[place] for o, place in zip(objects, places, strict=True)],
            row_counts=[o.row_counts[place] for o, place in zip(objects, places, strict=True)],
            versions=[min(o.version_min) for o in objects],
        )

    def manifest(self, policy: str, version: int, step: int, *, kind: str = "delta", incarnation: int = 1) -> None:
        anchored = kind == "anchor"
        manifest = Manifest(
            policy=policy,
            version=version,
            step=step,
            incarnation=incarnation,
            batch=step - 1,
            skipped={},
            kind="anchor" if anchored else "delta",
            base=version - 1,
            base_digest=f"{policy}{version - 1}",
            digest=f"{policy}{version}",
            layout="layout",
            anchor=version if anchored else 0,
            delta=(),
            snapshot=(Blob(name="all.safetensors", size_bytes=1000, hash="x"),) if anchored else (),
            size_bytes=1000 if anchored else 70,
            full_bytes=1000,
            changed=0,
            writer="w",
        )
        self.create(self.keys.manifest(policy, version), encode_manifest(seal(manifest)))

    def step(self, policy: str, step: int, **metrics: float) -> None:
        table = pa.table({"step": pa.array([step], pa.int64()), **{name: [value] for name, value in metrics.items()}})
        self.store.put(self.keys.step(policy, step), encode_table(table))

    @staticmethod
    def published(policy: str, version: int, step: int, delta_bytes: int, incarnation: int = 1) -> r.Published:
        return r.Published(
            policy=policy,
            version=version,
            step=step,
            incarnation=incarnation,
            digest=f"{policy}{version}",
            delta_bytes=delta_bytes,
            full_bytes=1000,
        )

    @staticmethod
    def consumed(policy: str, batch: int, **rest: Any) -> r.Consumed:
        return r.Consumed(policy=policy, batch=batch, step=batch + 1, incarnation=1, **rest)

    @staticmethod
    def joined(pool: str, region: str) -> r.PoolJoined:
        return r.PoolJoined(
            pool=pool, region=region, policies=["solver", "verifier"], capacity=8, engine="transformers", data_hash="d"
        )

    @staticmethod
    def applied(policy: str, version: int, step: int) -> r.Applied:
        return r.Applied(policy=policy, version=version, step=step, digest=f"{policy}{version}")

    @staticmethod
    def leased(pool: str, groups: list[int], attempts: list[int]) -> r.Leased:
        return r.Leased(pool=pool, groups=groups, problems=[100 + group for group in groups], attempts=attempts)

    @staticmethod
    def epoch(n: int) -> r.Epoch:
        return r.Epoch(n=n, holder=f"manager-{n}", data_hash="d", config_hash="c", code="x")


def write_run(writer: RunWriter) -> None:
    """The run that the tables of the tests are worked out from; decision numbers stand at the right."""
    w = writer
    w.config()
    for policy in ("solver", "verifier"):
        w.manifest(policy, 0, 0, kind="anchor")
    w.decide(1, 0.0, {}, w.epoch(1))  # 0
    cursors = {
        SOLVER: w.say(SOLVER, r.TrainerJoined(policy="solver", incarnation=1), w.published("solver", 0, 0, 1000)),
        VERIFIER: w.say(
            VERIFIER, r.TrainerJoined(policy="verifier", incarnation=1), w.published("verifier", 0, 0, 1000)
        ),
        POOL_A: w.say(POOL_A, w.joined("a", "us"), w.applied("solver", 0, 0), w.applied("verifier", 0, 0)),
        POOL_B: w.say(POOL_B, w.joined("b", "eu"), w.applied("solver", 0, 0), w.applied("verifier", 0, 0)),
    }
    w.decide(1, 1.0, cursors, w.leased(POOL_A, [0, 1, 2], [0, 0, 0]), w.leased(POOL_B, [3, 4], [0, 0]))  # 1
    attempts = dict.fromkeys(range(9), 0)
    first = [
        w.parts(POOL_A, "solver", 0, {0: [0, 1], 1: [0, 0.5]}, attempts),
        w.parts(POOL_A, "verifier", 0, {0: [1, 1, 0], 1: [0, 1]}, attempts),
    ]
    cursor = w.say(POOL_A, r.Committed(groups=[0, 1], attempts=[0, 0], objects=first))
    w.decide(1, 2.0, {POOL_A: cursor}, r.Admitted(groups=[0, 1], attempts=[0, 0], participant=POOL_A))  # 2
    w.decide(  # 3
        1,
        3.0,
        {},
        r.Expired(pool=POOL_B, groups=[3], attempts=[0], reason="silence"),
        w.leased(POOL_A, [3], [1]),
        w.batched("solver", 0, [1, 0]),
        w.batched("verifier", 0, [0, 1]),
    )
    # Both attempts of group 3 come in and pool a's is admitted: pool b's object holds 4, which wins, and 3, which lost.
    late = [w.parts(POOL_B, "solver", 0, {3: [1, 1], 4: [0, 0.25]}, attempts)]
    cursor_b = w.say(POOL_B, r.Committed(groups=[3, 4], attempts=[0, 0], objects=late))
    attempts[3] = 1
    second = [w.parts(POOL_A, "solver", 0, {2: [1, 1], 3: [1, 0]}, attempts)]
    second.append(w.parts(POOL_A, "verifier", 0, {2: [0, 0.5], 3: [1, 0.5]}, attempts))
    cursor_a = w.say(POOL_A, r.Committed(groups=[2, 3], attempts=[0, 1], objects=second))
    w.decide(  # 4
        1,
        4.5,
        {POOL_A: cursor_a, POOL_B: cursor_b},
        r.Admitted(groups=[2, 3], attempts=[0, 1], participant=POOL_A),
        r.Admitted(groups=[4], attempts=[0], participant=POOL_B),
        r.Dropped(policy="solver", groups=[2], reason="zero_advantage"),
    )
    w.manifest("solver", 1, 1)
    w.step("solver", 1, reward_mean=0.375, loss=0.5)
    metrics = {"wait_s": 1.0, "step_s": 3.0}
    cursor = w.say(SOLVER, w.published("solver", 1, 1, 50), w.consumed("solver", 0, metrics=metrics))
    w.decide(1, 5.0, {SOLVER: cursor})  # 5
    # A repeat of a commit, a record that is no JSON, and one that is refused: none has an effect.
    again = [w.parts(POOL_A, "solver", 0, {2: [1, 1], 3: [1, 0]}, attempts)]
    w.say(POOL_A, r.Committed(groups=[2, 3], attempts=[0, 1], objects=again))
    foreign = [w.parts(POOL_A, "solver", 0, {4: [1, 1]}, attempts)]
    cursor_a = w.say(POOL_A, r.Committed(groups=[4], attempts=[0], objects=foreign), w.applied("solver", 7, 7))
    cursor_b = w.say_raw(POOL_B, b"{no json")
    w.objects["solver", 4], w.objects["solver", 3] = late[0], second[0]
    w.decide(  # 6
        1,
        6.0,
        {POOL_A: cursor_a, POOL_B: cursor_b},
        r.Rejected(participant=POOL_A, seq=cursor_a - 1, reason="lease"),
        r.Rejected(participant=POOL_B, seq=cursor_b - 1, reason="undecodable", quarantined=True),
    )
    w.decide(2, 0.0, {}, w.epoch(2))  # 7
    w.decide(2, 0.5, {}, w.batched("solver", 1, [3, 4]), w.leased(POOL_A, [5, 6], [0, 0]))  # 8
    # The trainer died between manifest and Published of version 2; its next life published version 3 of the same step.
    w.manifest("solver", 2, 2)
    w.manifest("solver", 3, 2, incarnation=2)
    w.step("solver", 2, reward_mean=0.5, loss=0.25)
    metrics = {"wait_s": 2.0, "step_s": 2.0}
    cursor = w.say(
        SOLVER,
        w.published("solver", 3, 2, 0, incarnation=2),
        w.consumed("solver", 0),
        w.consumed("solver", 1, skipped=[4], reasons=["digest"], metrics=metrics),
    )
    cursor_a = w.say(POOL_A, r.Failed(group=5, attempt=0, kind="timeout"), w.applied("solver", 3, 2))
    w.decide(  # 9
        2,
        2.0,
        {SOLVER: cursor, POOL_A: cursor_a},
        r.Dropped(policy="solver", groups=[4], reason="skipped"),
        *(r.Dropped(policy=policy, groups=[5], reason="failed") for policy in ("solver", "verifier")),
    )
    # Beyond the cursors, and an orphan that nobody ever committed.
    w.say(POOL_A, r.Committed(groups=[6], attempts=[0], objects=[w.parts(POOL_A, "solver", 3, {6: [1, 0]}, attempts)]))
    w.say(SOLVER, w.published("solver", 4, 3, 60), w.consumed("solver", 2))
    w.step("solver", 3, reward_mean=0.9, loss=0.1)
    w.parts(POOL_A, "solver", 3, {77: [1, 1]}, {77: 0})


@pytest.fixture(params=["memory", "local"])
def writer(request: pytest.FixtureRequest, tmp_path: Path) -> RunWriter:
    """An empty run in each kind of store that is quick; ``test_s3.py`` reads the same run from S3."""
    return RunWriter(
        open_store(f"memory://{uuid.uuid4().hex}" if request.param == "memory" else str(tmp_path / "store"))
    )


@pytest.fixture
def writer_class() -> type[RunWriter]:
    """For tests that choose their own store."""
    return RunWriter


@pytest.fixture
def run(writer: RunWriter) -> Run:
    """The run of ``write_run``, opened by its URL."""
    return hand_written(writer)


@pytest.fixture
def s3_run(s3_store_url: str) -> Run:
    """The same run on the S3 server."""
    return hand_written(RunWriter(open_store(s3_store_url)))


def hand_written(writer: RunWriter) -> Run:
    write_run(writer)
    return open_run(f"{writer.store.url}/hand")


def _row(run: str, policy: str, version: int, group: int, attempt: int, episode: int, reward: float) -> dict[str, Any]:
    return {
        "trajectory_id": f"{group}-{attempt}-{episode}-{policy}-0",
        "group_id": group,
        "problem_id": str(100 + group),
        "episode": episode,
        "attempt": attempt,
        "run": run,
        "role": policy,
        "slot": 0,
        "prompt_ids": [1, 2, 3],
        "response_ids": [4, 5, 6, 7],
        "logprobs": [-0.5] * 4,
        "loss_mask": [True] * 4,
        "version_start": [0],
        "version_id": [version],
        "version_min": version,
        "version_max": version,
        "reward": float(reward),
        "reward_parts": [("exact", float(reward))],
        "created_at": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
        "meta": [],
    }
