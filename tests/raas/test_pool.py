"""A whole pool over a memory store; the test writes the decisions a manager would."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pytest
import torch

from astraflow import config as cfg
from astraflow.models import TINY_VOCABULARY, build_tiny_qwen3, load_causal_lm, upload_model_files
from astraflow.participant import DecisionsReader
from astraflow.problems import data_hash, load_problems, problems_table
from astraflow.raas.engine import GenerationRequest
from astraflow.raas.pool import run_pool
from astraflow.raas.prefetch import LEAST
from astraflow.raas.scripted_engine import ScriptedEngine
from astraflow.records import (
    Admitted,
    AnyDecision,
    AnyFact,
    Applied,
    Committed,
    DecisionRecord,
    Draining,
    DrainRequested,
    Expired,
    FactRecord,
    Failed,
    Leased,
    LeasesWanted,
    Left,
    PartsObject,
    PoolJoined,
    Rejected,
    Status,
    Stopped,
    decode,
    encode,
    new_id,
)
from astraflow.trajectory import SCHEMA, from_runs
from astraflow.weights.publisher import Publisher
from storage.errors import DataError, DeadlineError, EngineError, EpisodeError, Fenced
from storage.keys import RunKeys
from storage.log import NumberedLog
from storage.memory import FaultPlan, MemoryStore
from storage.tables import read_table, write_table

pytestmark = pytest.mark.anyio

POOL = "pool-local-1"
EOS = TINY_VOCABULARY.index("<eos>")
F = TypeVar("F", bound=AnyFact)


def ids(text: str) -> list[int]:
    return [TINY_VOCABULARY.index(character) for character in text]


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny")
    build_tiny_qwen3(folder, 0)
    return folder


class Bench:
    """A run in a memory store: the manager's pen, and what the pool did."""

    def __init__(self, folder: Path, faults: FaultPlan | None = None, **changes: Any) -> None:
        self.truth = MemoryStore(changes.pop("url", ""))
        self.store = self.truth.client(faults) if faults else self.truth
        self.keys = RunKeys("test")
        problems = cfg.Problems(
            source="addition", options={"count": 20}, reward=changes.pop("reward", cfg.Component(name="exact"))
        )
        self.problems = load_problems(problems, 0)
        sampling = {"sampling": {"max_tokens": 4}}
        self.config = cfg.RunConfig.model_validate(
            {
                "name": "test",
                "policies": {"solver": {"model": "tiny-qwen3", **sampling}},
                "problems": problems.model_dump(),
                "data_hash": data_hash(self.problems),
                "problem_count": 20,
                "dataflow": {"group_size": 2, "drain_s": 1.0},
                **changes,
            }
        )
        write_table(self.truth, self.keys.problems(self.config.data_hash), problems_table(self.problems))
        self.publishers: dict[str, Publisher] = {}
        self.model = load_causal_lm(folder, torch.bfloat16)
        for policy in self.config.policies:
            upload_model_files(self.truth, self.keys, policy, folder)
            self.publishers[policy] = Publisher(self.truth, self.keys, policy, anchor_every=64)
        self.seq = 0
        self.stop = asyncio.Event()

    def publish(self, policy: str = "solver", *, step: int = 0, shift: float = 0.0) -> int:
        """Publish the start weights, moved a little; returns the version."""
        weights = {name: (value + shift).contiguous() for name, value in self.model.state_dict().items()}
        return self.publishers[policy].publish(weights, step=step, incarnation=1, batch=step - 1, skipped={}).version

    def decide(self, *decisions: AnyDecision) -> None:
        record = DecisionRecord(id=new_id(), epoch=1, now=0.0, cursors={}, observations={}, decisions=list(decisions))
        self.truth.create(self.keys.decision(self.seq), encode(record))
        self.seq += 1

    def lease(self, *groups: int, problem: int = 3, attempt: int = 1) -> None:
        self.decide(
            Leased(pool=POOL, groups=list(groups), problems=[problem] * len(groups), attempts=[attempt] * len(groups))
        )

    def records(self) -> list[FactRecord]:
        log, found = NumberedLog(self.truth, lambda seq: self.keys.outbox(POOL, seq)), []
        while (data := log.read(len(found))) is not None:
            found.append(decode(data, FactRecord, where="outbox"))
        return found

    def facts(self, kind: type[F]) -> list[F]:
        return [fact for record in self.records() for fact in record.facts if isinstance(fact, kind)]

    def status(self) -> Status:
        return decode(self.truth.get(self.keys.status(POOL)), Status, where="status")

    async def until(self, done: Callable[[], object], what: str = "") -> None:
        async with asyncio.timeout(30):
            while not done():
                await asyncio.sleep(0.005)

    def table(self, item: PartsObject) -> pa.Table:
        return read_table(self.truth, item.path, item.hash)

    def run(self, engine: ScriptedEngine | None = None) -> asyncio.Task[None]:
        """Start the pool, with ``engine`` or the real one."""

        async def scripted(folder: Path, pool: cfg.Pool) -> ScriptedEngine:
            assert (folder / "config.json").is_file() and engine is not None
            return engine

        more = {} if engine is None else {"engines": scripted}
        return asyncio.create_task(
            run_pool(self.store, self.config, "local", participant=POOL, stop=self.stop, **more)  # type: ignore[arg-type]
        )

    @contextlib.asynccontextmanager
    async def pool(self, engine: ScriptedEngine | None = None) -> AsyncIterator[asyncio.Task[None]]:
        """A running pool that has joined; it is stopped at the end."""
        self.publish()
        task = self.run(engine)
        await self.until(lambda: self.facts(PoolJoined) or task.done())
        yield task
        self.stop.set()
        await asyncio.wait_for(task, 30)


def always(text: str) -> Callable[[GenerationRequest], Sequence[int]]:
    return lambda request: [*ids(text), EOS]


async def test_a_pool_joins_plays_commits_and_leaves(tiny: Path) -> None:
    bench = Bench(tiny)
    async with bench.pool():
        joined = bench.records()[0].facts
        assert [type(fact) for fact in joined] == [PoolJoined, Applied]
        assert joined[0] == PoolJoined(
            pool="local", region="local", policies=["solver"], capacity=64, engine="transformers",
            data_hash=bench.config.data_hash,
        )  # fmt: skip
        manifest = bench.publishers["solver"].head()
        assert manifest is not None
        assert joined[1] == Applied(policy="solver", version=0, step=0, digest=manifest.digest)
        bench.lease(0, 1, 2, problem=3)
        await bench.until(lambda: sum(len(c.groups) for c in bench.facts(Committed)) == 3)
    assert isinstance(bench.records()[-1].facts[-1], Left)
    assert bench.facts(Draining)
    assert bench.status().state == "left"
    assert not bench.facts(Failed)


@pytest.mark.parametrize("url", ["s3://far", "memory://pool-ahead"])
async def test_a_pool_on_a_far_store_asks_for_leases_ahead(tiny: Path, url: str) -> None:
    bench = Bench(tiny, url=url, pools={"local": {"capacity": 2, "flush_s": 0.0}})
    is_far = url.startswith("s3:")
    async with bench.pool(ScriptedEngine(always("12"))):
        for group in range(LEAST + 1):  # played at once, and admitted a while later
            assert not bench.facts(LeasesWanted)
            bench.lease(group)
            await bench.until(lambda group=group: sum(len(c.groups) for c in bench.facts(Committed)) == group + 1)  # type: ignore[misc]
            if group == LEAST:
                break
            await asyncio.sleep(0.3)
            bench.decide(Admitted(groups=[group], attempts=[1], participant=POOL))
        if is_far:
            await bench.until(lambda: bench.facts(LeasesWanted))
    assert bench.facts(LeasesWanted) == ([LeasesWanted(ahead=2)] if is_far else [])


async def test_the_log_says_what_the_rows_say(tiny: Path) -> None:
    bench = Bench(tiny)
    async with bench.pool():
        bench.lease(0, 1, problem=3)
        bench.lease(2, problem=4, attempt=2)
        await bench.until(lambda: sum(len(c.groups) for c in bench.facts(Committed)) == 3)
    attempts = {g: a for c in bench.facts(Committed) for g, a in zip(c.groups, c.attempts, strict=True)}
    assert attempts == {0: 1, 1: 1, 2: 2}
    seen = []
    for item in [item for c in bench.facts(Committed) for item in c.objects]:
        parsed = bench.keys.parse_trajectory(item.path)
        assert parsed is not None and (parsed.policy, parsed.version) == ("solver", 0)
        assert parsed.stem.startswith(f"{POOL}-")
        assert item.size_bytes == len(bench.truth.get(item.path))
        table = bench.table(item)
        assert table.schema.equals(SCHEMA)
        rows = table.to_pylist()
        for column, name in (
            (item.episodes, "episode"), (item.roles, "role"), (item.slots, "slot"), (item.rewards, "reward"),
            (item.version_min, "version_min"), (item.version_max, "version_max"),
        ):  # fmt: skip
            assert column == [row[name] for row in rows]
        assert item.prompt_tokens == [len(row["prompt_ids"]) for row in rows]
        assert item.response_tokens == [len(row["response_ids"]) for row in rows]
        for group, start, count in zip(item.groups, item.row_starts, item.row_counts, strict=True):
            assert {row["group_id"] for row in rows[start : start + count]} == {group}
            assert [row["episode"] for row in rows[start : start + count]] == [0, 1]
            seen.append(group)
        for row in rows:
            problem = bench.problems[4 if row["group_id"] == 2 else 3]
            length = len(row["response_ids"])
            assert row["trajectory_id"] == f"{row['group_id']}-{row['attempt']}-{row['episode']}-solver-0"
            assert row["problem_id"] == problem.id
            assert row["prompt_ids"] == [1, *ids(problem.prompt)]
            assert 1 <= length <= 4 and len(row["logprobs"]) == length and row["loss_mask"] == [True] * length
            assert all(logprob < 0 for logprob in row["logprobs"])
            assert from_runs(row["version_start"], row["version_id"], length) == [0] * length
            assert row["turns"][0]["finish_reason"] == ("stop" if row["response_ids"][-1] == EOS else "length")
            assert (row["run"], row["pool"], row["temperature"]) == ("test", POOL, 1.0)
    assert sorted(seen) == [0, 1, 2]


@pytest.mark.parametrize("is_away", [False, True])
async def test_a_pool_of_a_region_with_a_store_writes_its_rows_there(tiny: Path, is_away: bool) -> None:
    near = MemoryStore.at(f"memory://pool-near-{is_away}")
    faults = FaultPlan(error_before=1.0 if is_away else 0.0)
    bench = Bench(
        tiny,
        regions={"west": {"store": near.url, "mirror_timeout_s": 0.05}},
        pools={"local": {"region": "west"}},
    )
    near._faults = faults
    async with bench.pool(ScriptedEngine(always("1"))):
        bench.lease(0, 1, problem=3)
        await bench.until(lambda: sum(len(c.groups) for c in bench.facts(Committed)) == 2)
        await bench.until(lambda: bench.status().figures.get("committed_groups") == 2)
        figures = bench.status().figures
    items = [item for c in bench.facts(Committed) for item in c.objects]
    store, other = (bench.truth, near.client()) if is_away else (near, bench.truth)
    assert {item.store for item in items} == {"" if is_away else near.url}
    assert sum(read_table(store, item.path, item.hash).num_rows for item in items) == 4
    assert not list(other.list(bench.keys.trajectories))
    assert figures["far_objects"] == (len(items) if is_away else 0)
    assert all(item.path.startswith(bench.keys.trajectories) for item in items)


async def test_rewards_are_the_workflows(tiny: Path) -> None:
    bench = Bench(tiny)
    right = bench.problems[3].answer
    async with bench.pool(ScriptedEngine(always(right))):
        bench.lease(0, problem=3)
        bench.lease(1, problem=4)
        await bench.until(lambda: sum(len(c.groups) for c in bench.facts(Committed)) == 2)
    rewards = {}
    for item in [item for c in bench.facts(Committed) for item in c.objects]:
        for group, start in zip(item.groups, item.row_starts, strict=True):
            rewards[group] = item.rewards[start : start + 2]
    assert rewards == {0: [1.0, 1.0], 1: [0.0, 0.0]}


async def test_new_weights_are_announced_before_they_are_used(tiny: Path) -> None:
    bench = Bench(tiny)
    async with bench.pool() as task:
        for step in range(1, 6):
            bench.lease(step * 2, step * 2 + 1)
            bench.publish(step=step, shift=0.01 * step)
            await bench.until(lambda step=step: bench.facts(Applied)[-1].version == step or task.done())
        bench.lease(100)
        await bench.until(lambda: any(100 in c.groups for c in bench.facts(Committed)))
    announced = -1
    for record in bench.records():
        for fact in record.facts:
            if isinstance(fact, Applied):
                assert fact.version == announced + 1 == fact.step
                announced = fact.version
            elif isinstance(fact, Committed):
                assert all(max(item.version_max) <= announced for item in fact.objects)
    last = next(c for c in bench.facts(Committed) if 100 in c.groups)
    assert [item.version_min for item in last.objects] == [[5, 5]]


async def test_failures_hand_the_whole_group_back(tiny: Path) -> None:
    calls = iter(range(100))

    def script(request: GenerationRequest) -> list[int]:
        if next(calls) == 1:
            raise EpisodeError("no", kind="too_long")
        return ids("1")

    bench = Bench(tiny)
    async with bench.pool(ScriptedEngine(script)):
        bench.lease(0)
        await bench.until(lambda: bench.facts(Failed))
        bench.lease(1)
        bench.lease(2, problem=99)
        await bench.until(lambda: bench.facts(Committed) and len(bench.facts(Failed)) == 2)
    assert [(f.group, f.attempt, f.kind) for f in bench.facts(Failed)] == [(0, 1, "too_long"), (2, 1, "problem")]
    assert [c.groups for c in bench.facts(Committed)] == [[1]]


async def test_an_episode_has_a_deadline(tiny: Path) -> None:
    bench = Bench(tiny)
    bench.config = bench.config.model_copy(update={"workflow": cfg.Workflow(episode_timeout_s=0.05)})
    slow = ScriptedEngine(always("1"), delay_s=5)
    async with bench.pool(slow):
        bench.lease(0)
        await bench.until(lambda: bench.facts(Failed))
    assert [f.kind for f in bench.facts(Failed)] == ["timeout"]


async def test_a_drained_pool_finishes_what_it_can_and_hands_back_the_rest(tiny: Path) -> None:
    asked = iter(range(100))

    class Uneven(ScriptedEngine):
        async def generate(self, request: GenerationRequest) -> Any:
            self._delay_s = 0.1 if next(asked) < 2 else 60
            return await super().generate(request)

    bench = Bench(tiny, pools={"local": {"capacity": 2}})
    engine = Uneven(always("1"))
    async with bench.pool(engine) as task:
        bench.lease(0, 1, 2)
        await bench.until(lambda: len(engine.requests) == 4)
        bench.decide(DrainRequested(participants=["pool-other"], reason="not me"))
        bench.decide(DrainRequested(participants=[POOL], reason="scale down"))
        await bench.until(task.done)
    assert [c.groups for c in bench.facts(Committed)] == [[0]]
    assert sorted((f.group, f.kind) for f in bench.facts(Failed)) == [(1, "drained"), (2, "drained")]
    facts = [fact for record in bench.records() for fact in record.facts]
    assert facts[-1] == Left(reason="scale down")
    assert [f.reason for f in bench.facts(Draining)] == ["scale down"]


async def test_stopped_ends_at_once_and_a_late_pool_sees_it(tiny: Path) -> None:
    bench = Bench(tiny)
    engine = ScriptedEngine(always("1"), delay_s=60)
    async with bench.pool(engine) as task:
        bench.lease(0)
        await bench.until(lambda: engine.requests)
        bench.decide(Stopped(reason="all ended"))
        await bench.until(task.done)
    assert bench.facts(Left)[-1].reason == "all ended"
    # A snapshot of the last record is the newest: the late pool must still read that record.
    bench.truth.put(bench.keys.snapshot(bench.seq - 1), b"{}")
    late = asyncio.create_task(run_pool(bench.truth, bench.config, "local", participant="pool-late"))
    await asyncio.wait_for(late, 30)


@pytest.mark.parametrize("end", ["admitted elsewhere", "expired", "own older attempt"])
async def test_a_void_lease_is_given_up_in_silence(tiny: Path, end: str) -> None:
    bench = Bench(tiny)
    engine = ScriptedEngine(always("1"), delay_s=60)
    async with bench.pool(engine):
        bench.lease(7, attempt=2)
        await bench.until(lambda: len(engine.requests) == 2)
        match end:
            case "admitted elsewhere":
                bench.decide(Admitted(groups=[7], attempts=[1], participant="pool-other"))
            case "expired":
                bench.decide(Expired(pool=POOL, groups=[7], attempts=[2], reason="timeout"))
            case _:
                bench.decide(Admitted(groups=[7], attempts=[1], participant=POOL))
        engine._delay_s = 0
        bench.lease(8)
        await bench.until(lambda: bench.facts(Committed))
    assert [c.groups for c in bench.facts(Committed)] == [[8]]
    assert not bench.facts(Failed)


async def test_leases_of_others_and_news_of_old_attempts_change_nothing(tiny: Path) -> None:
    bench = Bench(tiny)
    async with bench.pool(ScriptedEngine(always("1"), delay_s=0.05)):
        bench.lease(1, attempt=2)
        bench.decide(Leased(pool="pool-other", groups=[0], problems=[0], attempts=[1]))
        bench.decide(Expired(pool=POOL, groups=[1], attempts=[1], reason="old"))
        bench.decide(Expired(pool="pool-other", groups=[1], attempts=[2], reason="not mine"))
        bench.decide(Rejected(participant="pool-other", seq=0, reason="bad", quarantined=True))
        await bench.until(lambda: bench.facts(Committed))
    assert [c.groups for c in bench.facts(Committed)] == [[1]]


async def test_a_wrong_digest_is_refused_and_the_old_version_plays_on(tiny: Path) -> None:
    bench = Bench(tiny)
    bench.publish()
    task = bench.run()
    await bench.until(lambda: bench.facts(PoolJoined))
    broken = {}
    version = bench.publish(step=1, shift=0.5)
    for number in (0, version):  # the delta, and the snapshot that recovery would start from
        for info in list(bench.truth.list(bench.keys.version("solver", number))):
            if "manifest" not in info.key:
                broken[info.key] = bench.truth.get(info.key)
                bench.truth.put(info.key, broken[info.key][:-1] + bytes([broken[info.key][-1] ^ 1]))
    await asyncio.sleep(0.3)  # at least one try
    bench.lease(0)
    await bench.until(lambda: bench.facts(Committed))
    assert {v for c in bench.facts(Committed) for o in c.objects for v in o.version_max} == {0}
    for key, data in broken.items():
        bench.truth.put(key, data)
    await bench.until(lambda: bench.facts(Applied)[-1].version == version)
    await bench.until(lambda: bench.status().figures.get("refused_updates", 0) >= 1)
    bench.stop.set()
    await asyncio.wait_for(task, 30)
    assert [applied.version for applied in bench.facts(Applied)] == [0, version]


async def test_weights_that_stay_wrong_end_the_pool(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("astraflow.raas.serving._FIRST_RETRY_S", 0.001)
    bench = Bench(tiny)
    bench.publish()
    [key] = [i.key for i in bench.truth.list(bench.keys.version("solver", 0)) if "manifest" not in i.key]
    bench.truth.put(key, bench.truth.get(key)[:-1] + b"?")
    with pytest.raises(DataError) as caught:
        await asyncio.wait_for(bench.run(), 30)
    assert caught.value.kind == "digest"
    assert "refused 5 times" in caught.value.what
    assert not bench.facts(PoolJoined)


async def test_a_dead_engine_ends_the_pool(tiny: Path) -> None:
    def die(request: GenerationRequest) -> list[int]:
        raise EngineError("no device", kind="died")

    bench = Bench(tiny)
    bench.publish()
    task = bench.run(ScriptedEngine(die))
    await bench.until(lambda: bench.facts(PoolJoined))
    bench.lease(0)
    with pytest.raises(EngineError):
        await asyncio.wait_for(task, 30)
    assert bench.status().state == "failed"
    assert not bench.facts(Committed)


async def test_a_workflow_that_always_breaks_ends_the_pool_with_its_error(tiny: Path) -> None:
    def script(request: GenerationRequest) -> list[int]:
        raise KeyError("observation")

    bench = Bench(tiny)
    bench.publish()
    task = bench.run(ScriptedEngine(script))
    await bench.until(lambda: bench.facts(PoolJoined))
    bench.lease(*range(30))
    with pytest.raises(EpisodeError, match="KeyError"):
        await asyncio.wait_for(task, 30)


async def test_a_quarantined_pool_ends(tiny: Path) -> None:
    bench = Bench(tiny)
    bench.publish()
    task = bench.run(ScriptedEngine(always("1")))
    await bench.until(lambda: bench.facts(PoolJoined))
    bench.decide(Rejected(participant=POOL, seq=0, reason="bad record", quarantined=True))
    with pytest.raises(Fenced):
        await asyncio.wait_for(task, 30)


async def test_waiting_for_the_first_version(tiny: Path) -> None:
    bench = Bench(tiny)
    task = bench.run(ScriptedEngine(always("1")))
    await asyncio.sleep(0.05)
    bench.decide(DrainRequested(participants=[], reason="over"))
    await asyncio.wait_for(task, 30)
    assert bench.facts(Left)
    assert not bench.facts(PoolJoined)


async def test_no_first_version_is_an_error_after_the_deadline(tiny: Path) -> None:
    bench = Bench(tiny, trainer={"batch_timeout_s": 0.05})
    with pytest.raises(DeadlineError, match="version 0 of solver"):
        await asyncio.wait_for(bench.run(ScriptedEngine(always("1"))), 30)


async def test_cancelling_hands_back(tiny: Path) -> None:
    bench = Bench(tiny)
    bench.publish()
    engine = ScriptedEngine(always("1"), delay_s=60)
    task = bench.run(engine)
    await bench.until(lambda: bench.facts(PoolJoined))
    bench.lease(0)
    await bench.until(lambda: engine.requests)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 30)
    assert [(f.group, f.kind) for f in bench.facts(Failed)] == [(0, "drained")]
    assert bench.facts(Left)[-1].reason == "cancelled"


async def test_a_bad_network_loses_and_doubles_no_group(tiny: Path) -> None:
    plan = FaultPlan(seed=5, error_before=0.1, lost_answer=0.1, duplicate=0.05, late=0.05)
    bench = Bench(tiny, faults=plan)
    async with bench.pool(ScriptedEngine(always("1"))):
        for group in range(0, 40, 2):
            bench.lease(group, group + 1)
            await asyncio.sleep(0.01)
        await bench.until(lambda: sum(len(c.groups) for c in bench.facts(Committed)) >= 40)
    assert sorted(group for c in bench.facts(Committed) for group in c.groups) == list(range(40))
    for item in [item for c in bench.facts(Committed) for item in c.objects]:
        assert bench.table(item).num_rows == sum(item.row_counts)


async def test_nothing_new_starts_while_the_store_is_silent(tiny: Path) -> None:
    cable = FaultPlan()
    bench = Bench(tiny, cable, dataflow={"group_size": 1, "silence_s": 0.3}, pools={"local": {"capacity": 1}})
    engine = ScriptedEngine(always("1"), delay_s=1.0)
    async with bench.pool(engine):
        bench.lease(0, 1)
        await bench.until(lambda: engine.requests)
        cable.error_before = 1.0
        await asyncio.sleep(1.5)
        assert len(engine.requests) == 1  # group 0 is over, group 1 may be anybody's by now
        cable.error_before = 0.0
        await bench.until(lambda: sum(len(c.groups) for c in bench.facts(Committed)) == 2)
    assert not bench.facts(Failed)


async def test_groups_gather_for_flush_s_unless_the_pool_is_idle(tiny: Path) -> None:
    asked = iter(range(100))

    class Staggered(ScriptedEngine):
        async def generate(self, request: GenerationRequest) -> Any:
            self._delay_s = 0.02 * next(asked)
            return await super().generate(request)

    bench = Bench(tiny, dataflow={"group_size": 1}, pools={"local": {"flush_s": 60}})
    async with bench.pool(Staggered(always("1"))):
        for group in (0, 8):
            bench.lease(*range(group, group + 8))
            await bench.until(lambda group=group: sum(len(c.groups) for c in bench.facts(Committed)) == group + 8)
    assert [sorted(c.groups) for c in bench.facts(Committed)] in (
        [[0], list(range(1, 8)), list(range(8, 16))],  # the first flush does not wait
        [list(range(8)), list(range(8, 16))],
    )


async def test_two_policies_make_objects_of_their_own(tiny: Path) -> None:
    bench = Bench(
        tiny,
        policies={name: {"model": "tiny-qwen3", "sampling": {"max_tokens": 4}} for name in ("solver", "verifier")},
        workflow={
            "name": "solve_and_verify",
            "options": {"rounds": 2, "accept": "1", "reject": "0", "verify_prompt": "{prompt}{answer}?"},
        },
    )
    bench.publish("verifier")
    async with bench.pool():
        bench.lease(0, 1)
        await bench.until(lambda: sum(len(c.groups) for c in bench.facts(Committed)) == 2)
    objects = [item for c in bench.facts(Committed) for item in c.objects]
    assert {item.policy for item in objects} == {"solver", "verifier"}
    for item in objects:
        assert set(item.roles) == {item.policy}


def test_reader_starts_behind_the_snapshot() -> None:
    store, keys = MemoryStore(), RunKeys("test")
    store.put(keys.snapshot(41), b"{}")
    assert DecisionsReader.from_tail(store, keys).cursor == 42
