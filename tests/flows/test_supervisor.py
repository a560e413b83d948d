"""The supervisor against a fake launcher and a memory store: who is started, adopted, restarted, given up."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import count, pairwise
from typing import Any

import pytest

from astraflow.config import RunConfig
from astraflow.follow import RunFollower
from astraflow.participant import Outbox
from astraflow.records import (
    Committed,
    Consumed,
    DecisionRecord,
    Ended,
    FactRecord,
    Status,
    Stopped,
    Wanted,
    decode,
    encode,
    new_id,
)
from astraflow.scale_view import ScaleView
from flows.children import ChildSpec, Need, children_of
from flows.launcher import NO_HEARTBEAT, ChildRun
from flows.supervisor import MAX_RESTARTS, START_TIMEOUT_S, Supervisor
from storage.errors import ServiceError
from storage.keys import RunKeys
from storage.memory import MemoryStore

_numbers = count()


class FakeLauncher:
    """Flow runs as a dictionary that a test edits."""

    def __init__(self) -> None:
        self.runs: dict[str, tuple[str, ChildRun]] = {}
        self.cancelled: list[str] = []
        self.deployment = ""
        self.faults: list[str] = []  # what the next calls are to fail at: «start», or «answer» once it was done

    def start(self, spec: ChildSpec, life: int) -> ChildRun:
        fault = self.faults.pop(0) if self.faults else ""
        if fault == "start":
            raise ServiceError("away", kind="unreachable")
        known = [run for key, run in self.runs.values() if key == spec.key and run.life == life]
        run = known[0] if known else self._new(spec, life)
        if fault == "answer":
            raise ServiceError("away", kind="unreachable")
        return run

    def _new(self, spec: ChildSpec, life: int) -> ChildRun:
        run = ChildRun(f"0000-{len(self.runs):08d}", life, "SCHEDULED", deployment=self.deployment)
        self.runs[run.id] = (spec.key, run)
        return run

    def find(self, spec: ChildSpec) -> list[ChildRun]:
        return sorted((run for key, run in self.runs.values() if key == spec.key), key=lambda run: -run.life)

    def states(self, ids: Sequence[str]) -> dict[str, ChildRun]:
        return {id: self.runs[id][1] for id in ids}

    def cancel(self, id: str) -> None:
        self.cancelled.append(id)

    def newest(self, key: str) -> ChildRun:
        return max((run for own, run in self.runs.values() if own == key), key=lambda run: run.life)

    def set(self, key: str, state: str, message: str = "") -> None:
        run = self.newest(key)
        self.runs[run.id] = (key, replace(run, state=state, message=message))


class World:
    """A run with one supervisor, a clock that the test moves, and hands to write what participants would."""

    def __init__(self, pools: Sequence[str] = ("local",), policies: dict[str, Any] | None = None) -> None:
        self.config = RunConfig.model_validate(
            {
                "name": f"run-{next(_numbers)}",
                "store": "memory://supervisor",
                "policies": policies or {"solver": {"model": "tiny-qwen3"}},
                "problems": {"source": "addition"},
                "pools": {name: {} for name in pools},
                "dataflow": {"silence_s": 60},
            }
        )
        self.store, self.keys = MemoryStore("memory://supervisor"), RunKeys(self.config.name)
        self.launcher, self.now, self.beats = FakeLauncher(), 0.0, count(1)
        self.here: set[int] = set()  # pids that run on this machine
        self.supervisor = self.new_supervisor("experiment-1")

    def new_supervisor(self, participant: str) -> Supervisor:
        follower = RunFollower(self.store, self.config)
        follower.poll()
        return Supervisor(
            config=self.config,
            launcher=self.launcher,
            follower=follower,
            scaling=ScaleView(self.store, self.config),
            outbox=Outbox(self.store, self.keys, participant),
            log=lambda text: None,
            clock=lambda: self.now,
            is_here=self.here.__contains__,
        )

    def tick(self, seconds: float = 1.0) -> None:
        self.now += seconds
        self.supervisor.follower.poll()
        self.supervisor.tick()

    def beat(self, key: str) -> str:
        """The newest flow run of a child runs and beats; its participant's name."""
        run = self.launcher.newest(key)
        if run.state == "SCHEDULED":
            self.launcher.set(key, "RUNNING")
        role = key.partition("-")[0]
        name = "manager" if role == "manager" else f"{key}-{run.id[-8:]}"
        pid = 1000 + int(run.id[-8:])
        status = Status(participant=name, role=role, state="running", beat=next(self.beats), pid=pid)
        self.store.put(self.keys.status(name), encode(status))
        return name

    def beat_all(self) -> None:
        for spec in children_of(self.config):
            self.beat(spec.key)

    def say(self, participant: str, seq: int, *facts: object) -> None:
        record = FactRecord(id=new_id(), participant=participant, facts=list(facts))  # type: ignore[arg-type]
        self.store.create(self.keys.outbox(participant, seq), encode(record))

    def wishes(self, participant: str = "experiment-1") -> list[Wanted]:
        objects = self.store.list(f"{self.keys.outboxes}{participant}/")
        records = [decode(self.store.get(info.key), FactRecord, where=info.key) for info in objects]
        return [fact for record in records for fact in record.facts if isinstance(fact, Wanted)]

    def lives(self, key: str) -> int:
        return self.launcher.newest(key).life


@pytest.fixture
def world() -> World:
    world = World()
    world.supervisor.begin(adopt=False)
    world.beat_all()
    world.tick()
    return world


def test_children_of_a_run() -> None:
    specs = children_of(World(("east", "west")).config)
    assert [spec.key for spec in specs] == ["manager", "trainer-solver", "pool-east", "pool-west"]
    assert specs[1].parameters["policy"] == "solver"
    assert "policy:solver" in specs[2].tags


def test_a_healthy_run_is_left_alone(world: World) -> None:
    for _ in range(200):
        world.beat_all()
        world.tick()
    assert len(world.launcher.runs) == 3
    assert world.wishes() == []
    assert world.launcher.cancelled == []


@pytest.mark.parametrize("state", ["CRASHED", "FAILED", "COMPLETED"])
def test_a_dead_trainer_is_said_lost_and_started_again_at_once(world: World, state: str) -> None:
    name = world.beat("trainer-solver")
    world.launcher.set("trainer-solver", state, "status code -9")
    world.tick()
    assert world.lives("trainer-solver") == 2
    assert [(wish.what, wish.target) for wish in world.wishes()] == [("lost", name)]
    assert "status code -9" in world.supervisor.notes[-1]


def test_a_dead_manager_is_started_again_without_a_wish(world: World) -> None:
    world.launcher.set("manager", "CRASHED")
    world.tick()
    assert world.lives("manager") == 2
    assert world.wishes() == []


def test_an_orphan_that_goes_silent_is_replaced(world: World) -> None:
    name = world.beat("pool-local")
    for _ in range(70):
        world.beat("manager")
        world.beat("trainer-solver")
        world.tick()
    assert world.lives("pool-local") == 2
    assert world.launcher.cancelled == ["0000-00000002"]
    assert world.wishes()[0].target == name


def test_an_orphan_whose_process_is_gone_is_replaced_soon() -> None:
    world = World()
    world.here.update({1000, 1001, 1002})
    world.supervisor.begin(adopt=False)
    world.beat_all()
    world.tick()
    world.beat("trainer-solver")  # its last beat, seen only after its death
    world.here.remove(1001)
    for _ in range(3):
        world.tick()
    assert world.lives("trainer-solver") == 2
    assert world.lives("manager") == world.lives("pool-local") == 1
    assert "process 1001 is gone" in world.supervisor.notes[-1]


def test_a_process_that_has_just_ended_waits_for_prefects_word() -> None:
    world = World()
    world.here.update({1000, 1001, 1002})
    world.supervisor.begin(adopt=False)
    world.beat_all()
    world.tick()
    world.here.remove(1002)
    world.tick()
    world.launcher.set("pool-local", "COMPLETED")
    for _ in range(5):
        world.tick()
    assert world.lives("pool-local") == 1
    assert world.wishes() == []


def test_a_flow_run_that_no_runner_takes_is_asked_for_again() -> None:
    world = World()
    world.supervisor.begin(adopt=False)
    world.tick(START_TIMEOUT_S - 1)
    assert world.lives("pool-local") == 1
    world.tick(2)
    world.tick(2)
    assert world.lives("pool-local") == 2
    assert "never showed a sign of life" in " ".join(world.supervisor.notes)


def test_a_manager_that_starts_slowly_is_given_time(world: World) -> None:
    """Its status object is still its predecessor's: that says nothing about the new life."""
    world.launcher.set("manager", "CRASHED")
    for _ in range(int(START_TIMEOUT_S) - 10):
        world.beat("trainer-solver")
        world.beat("pool-local")
        world.tick()
    assert world.lives("manager") == 2
    world.beat("manager")
    for _ in range(70):
        world.beat("trainer-solver")
        world.beat("pool-local")
        world.tick()
    assert world.lives("manager") == 3
    assert "went silent" in " ".join(world.supervisor.notes)


def test_restarts_wait_longer_and_longer_and_end_with_an_error(world: World) -> None:
    starts = []
    with pytest.raises(ServiceError, match="died 6 times without progress") as caught:
        for _ in range(300):
            if world.launcher.newest("trainer-solver").is_living:
                starts.append(world.now)
                world.launcher.set("trainer-solver", "CRASHED", "boom")
            world.beat("manager")
            world.beat("pool-local")
            world.tick()
    assert "--resume" in caught.value.remedy
    assert len(starts) == MAX_RESTARTS + 1
    gaps = [b - a for a, b in pairwise(starts)]
    assert gaps == sorted(gaps)
    assert gaps[-1] >= 16


def test_progress_refills_the_budget(world: World) -> None:
    for step in range(1, 3 * MAX_RESTARTS):
        name = world.beat("trainer-solver")
        world.say(name, 0, Consumed(policy="solver", batch=step - 1, step=step, incarnation=0))
        world.supervisor.follower.poll()
        world.launcher.set("trainer-solver", "CRASHED")
        world.beat("manager")
        world.beat("pool-local")
        world.tick()
        assert world.lives("trainer-solver") == step + 1


def test_progress_of_another_policy_does_not_refill_the_budget() -> None:
    both = {"solver": {"model": "tiny-qwen3"}, "verifier": {"model": "tiny-qwen3"}}
    world = World(policies=both)
    world.supervisor.begin(adopt=False)
    world.beat_all()
    world.tick()
    with pytest.raises(ServiceError, match="trainer-verifier died 6 times without progress"):
        for step in range(1, 300):
            if world.launcher.newest("trainer-verifier").is_living:
                world.launcher.set("trainer-verifier", "CRASHED", "boom")
            world.beat("manager")
            world.beat("pool-local")
            solver = world.beat("trainer-solver")
            consumed = Consumed(policy="solver", batch=step - 1, step=step, incarnation=0)
            world.say(solver, step - 1, consumed)
            world.tick()
    assert world.lives("trainer-verifier") == MAX_RESTARTS + 1
    assert world.lives("trainer-solver") == 1


def test_a_pool_gets_on_by_what_it_commits_itself() -> None:
    """Others' steps keep no pool alive that dies at its start; one that plays groups may die as often as it likes."""
    world = World(("east", "west"))
    world.supervisor.begin(adopt=False)
    world.beat_all()
    world.tick()
    for step in range(1, 200):
        for key in ("pool-east", "pool-west"):
            if world.launcher.newest(key).is_living and world.supervisor.clock() % 5 == 0:
                name = world.beat(key)
                if key == "pool-west":
                    world.say(name, 0, Committed(groups=[step], attempts=[0], objects=[]))
                world.supervisor.follower.poll()
                world.launcher.set(key, "CRASHED", "boom")
        world.beat("manager")
        trainer = world.beat("trainer-solver")
        world.say(trainer, step - 1, Consumed(policy="solver", batch=step - 1, step=step, incarnation=0))
        world.tick()
    assert world.lives("pool-east") == MAX_RESTARTS + 1
    assert "pool-east died 6 times" in " ".join(world.supervisor.notes)
    assert world.lives("pool-west") > 20


def test_a_life_that_never_showed_itself_is_not_followed_at_once(world: World) -> None:
    world.launcher.set("pool-local", "CRASHED")
    world.tick()
    assert world.lives("pool-local") == 2
    world.launcher.set("pool-local", "CRASHED")
    world.tick()
    assert world.lives("pool-local") == 2
    assert "in 2 s" in world.supervisor.notes[-1]
    first = World()
    first.supervisor.begin(adopt=False)
    first.launcher.set("manager", "CRASHED")
    first.tick()
    assert first.lives("manager") == 1
    first.tick(2)
    assert first.lives("manager") == 2


@pytest.mark.parametrize("fault", ["start", "answer"])
def test_a_beginning_that_the_server_interrupts_goes_on(fault: str) -> None:
    world = World()
    world.launcher.faults = ["", fault]
    with pytest.raises(ServiceError):
        world.supervisor.begin(adopt=False)
    world.launcher.faults = [fault]
    with pytest.raises(ServiceError):
        world.supervisor.begin(adopt=False)
    world.supervisor.begin(adopt=False)
    world.tick()
    assert [child.spec.key for child in world.supervisor.children] == [spec.key for spec in children_of(world.config)]
    assert sorted(key for key, _ in world.launcher.runs.values()) == ["manager", "pool-local", "trainer-solver"]
    assert {run.life for _, run in world.launcher.runs.values()} == {1}


def test_the_end_is_seen_while_prefect_does_not_answer(world: World) -> None:
    def away(ids: Sequence[str]) -> dict[str, ChildRun]:
        raise ServiceError("away", kind="unreachable")

    world.launcher.states = away  # type: ignore[method-assign]
    name = world.beat("trainer-solver")
    world.say(name, 0, Consumed(policy="solver", batch=0, step=1, incarnation=0))
    with pytest.raises(ServiceError):
        world.supervisor.tick()
    assert world.supervisor.follower.steps == 1
    record = DecisionRecord(id="x", epoch=1, now=0, cursors={}, observations={}, decisions=[Stopped(reason="told")])
    world.store.create(world.keys.decision(0), encode(record))
    world.supervisor.tick()
    assert world.supervisor.follower.is_over


def test_a_deployment_that_is_not_known_is_noted() -> None:
    world = World()
    world.launcher.deployment = "raas_pool/elsewhere"
    world.supervisor.begin(adopt=False)
    assert "Prefect does not know raas_pool/local, so raas_pool/elsewhere is used" in " ".join(world.supervisor.notes)


def test_a_cancelled_pool_is_left_out_while_another_plays() -> None:
    world = World(("east", "west"))
    world.supervisor.begin(adopt=False)
    world.beat_all()
    world.tick()
    world.launcher.set("pool-east", "CANCELLED")
    world.tick()
    assert world.lives("pool-east") == 1
    assert [wish.target for wish in world.wishes()] == ["pool-east-00000002"]
    world.launcher.set("pool-west", "CANCELLED")
    with pytest.raises(ServiceError, match="no pool is left"):
        world.tick()


def test_a_cancelled_trainer_ends_the_experiment(world: World) -> None:
    world.launcher.set("trainer-solver", "CANCELLED")
    with pytest.raises(ServiceError, match="cancelled"):
        world.tick()


def test_a_trainer_that_has_ended_is_not_started_again(world: World) -> None:
    name = world.beat("trainer-solver")
    world.say(name, 0, Ended(policy="solver"))
    world.launcher.set("trainer-solver", "COMPLETED")
    for _ in range(100):
        world.beat("manager")
        world.beat("pool-local")
        world.tick()
    assert world.lives("trainer-solver") == 1


def test_the_end_is_seen_before_the_children_are_judged(world: World) -> None:
    """Between two ticks the run stops, all children leave, and Prefect knows it already."""
    states = world.launcher.states

    def states_at_the_end(ids: Sequence[str]) -> dict[str, ChildRun]:
        stopped = Stopped(reason="told")
        record = DecisionRecord(id="x", epoch=1, now=0, cursors={}, observations={}, decisions=[stopped])
        world.store.create(world.keys.decision(0), encode(record))
        for key in ("manager", "trainer-solver", "pool-local"):
            world.launcher.set(key, "COMPLETED")
        return states(ids)

    world.launcher.states = states_at_the_end  # type: ignore[method-assign]
    world.tick()
    assert len(world.launcher.runs) == 3


def test_nobody_is_started_again_after_the_end(world: World) -> None:
    record = DecisionRecord(
        id="x", epoch=1, now=0, cursors={}, observations={}, decisions=[Stopped(reason="all ended")]
    )
    world.store.create(world.keys.decision(0), encode(record))
    for key in ("manager", "trainer-solver", "pool-local"):
        world.launcher.set(key, "COMPLETED")
    world.supervisor.follower.poll()
    assert world.supervisor.follower.stopped == "all ended"
    assert world.supervisor.living() == []
    assert len(world.launcher.runs) == 3


def test_a_new_experiment_adopts_the_living_and_starts_the_rest(world: World) -> None:
    world.launcher.set("trainer-solver", "CRASHED")
    second = world.supervisor = world.new_supervisor("experiment-2")
    second.begin(adopt=True)
    assert world.lives("manager") == world.lives("pool-local") == 1
    assert world.lives("trainer-solver") == 2
    world.beat_all()
    world.tick()
    assert len(world.launcher.runs) == 4


def test_a_fresh_run_of_a_used_name_starts_new_lives(world: World) -> None:
    second = world.new_supervisor("experiment-2")
    second.begin(adopt=False)
    assert [world.lives(spec.key) for spec in children_of(world.config)] == [2, 2, 2]


def test_cancel_all_reaches_the_living_only(world: World) -> None:
    world.launcher.set("pool-local", "CRASHED")
    states = world.launcher.states(list(world.launcher.runs))
    for child in world.supervisor.children:
        child.run = states[child.run.id] if child.run else None
    world.supervisor.cancel_all()
    assert len(world.launcher.cancelled) == 2


def test_cancel_all_reaches_one_that_is_presumed_dead_and_one_that_was_being_started(world: World) -> None:
    world.launcher.set("trainer-solver", "CRASHED", f"{NO_HEARTBEAT} for 180 s")
    world.beat("trainer-solver")
    world.tick()
    pool = next(child for child in world.supervisor.children if child.spec.role == "pool")
    pool.run = None  # the signal came between Prefect's answer and this
    world.supervisor.cancel_all()
    assert world.launcher.cancelled == ["0000-00000000", "0000-00000001", "0000-00000002"]


def test_cancel_all_reaches_what_a_beginning_that_was_cut_short_has_started(world: World) -> None:
    world.supervisor.children.pop()
    world.supervisor.cancel_all()
    assert len(world.launcher.cancelled) == 3


def test_one_that_cannot_be_cancelled_does_not_save_the_others(world: World) -> None:
    cancel = world.launcher.cancel

    def only_others(id: str) -> None:
        if id == "0000-00000000":
            raise ServiceError("away", kind="unreachable")
        cancel(id)

    world.launcher.cancel = only_others  # type: ignore[method-assign]
    world.supervisor.cancel_all()
    assert world.launcher.cancelled == ["0000-00000001", "0000-00000002"]
    assert "manager could not be cancelled: away" in world.supervisor.notes[-1]


def test_a_trainer_that_has_ended_before_a_resume_is_not_started(world: World) -> None:
    name = world.beat("trainer-solver")
    world.say(name, 0, Ended(policy="solver"))
    world.launcher.set("trainer-solver", "COMPLETED")
    second = world.supervisor = world.new_supervisor("experiment-2")
    second.begin(adopt=True)
    world.tick()
    assert world.lives("trainer-solver") == 1


def test_what_a_childs_end_means() -> None:
    frozen = {"solver": {"model": "tiny-qwen3"}, "judge": {"model": "tiny-qwen3", "frozen": True}}
    needs = {spec.key: spec.need for spec in children_of(World(policies=frozen).config)}
    assert needs == {
        "manager": Need.THROUGHOUT,
        "trainer-judge": Need.ONCE,
        "trainer-solver": Need.THROUGHOUT,
        "pool-local": Need.SPARE,
    }


def test_only_a_region_with_a_store_has_a_mirror() -> None:
    base = World().config
    regions = {"east": {"store": "s3://east/x"}, "west": {"work_pool": "gpus"}, "idle": {"store": "s3://idle/x"}}
    pools = {"a": {"region": "east"}, "b": {"region": "west"}}
    config = RunConfig.model_validate({**base.model_dump(), "regions": regions, "pools": pools})
    specs = {spec.key: spec.deployments for spec in children_of(config)}
    assert specs["mirror-east"] == specs["pool-a"] == ("east", "local")
    assert specs["pool-b"] == ("west", "local")
    assert [key for key in specs if key.startswith("mirror")] == ["mirror-east"]


def test_a_child_that_beats_is_not_dead_because_the_server_heard_nothing() -> None:
    world = World()
    world.supervisor.begin(adopt=False)
    for _ in range(3):
        world.beat("trainer-solver")
        world.tick()
    world.launcher.set("trainer-solver", "CRASHED", f"{NO_HEARTBEAT} for 180 s")
    for _ in range(10):
        world.beat("trainer-solver")
        world.tick(10)
    assert world.launcher.newest("trainer-solver").life == 1
    for _ in range(8):  # the store hears nothing either
        world.beat("manager")
        world.beat("pool-local")
        world.tick(10)
    assert world.launcher.newest("trainer-solver").life == 2


def test_the_trainer_of_a_frozen_policy_ends_after_its_one_publish() -> None:
    world = World(policies={"solver": {"model": "tiny-qwen3"}, "judge": {"model": "tiny-qwen3", "frozen": True}})
    world.supervisor.begin(adopt=False)
    assert sorted(key for key, _ in world.launcher.runs.values() if key.startswith("trainer")) == [
        "trainer-judge",
        "trainer-solver",
    ]
    world.launcher.set("trainer-judge", "COMPLETED")
    world.supervisor.tick()
    assert world.launcher.newest("trainer-judge").life == 1
    assert next(child for child in world.supervisor.children if child.spec.key == "trainer-judge").over == "done"
