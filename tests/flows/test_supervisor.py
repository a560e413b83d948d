"""The supervisor against a fake launcher and a memory store: who is started, adopted, restarted, given up."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from astraflow.records import Consumed, DecisionRecord, Ended, Stopped, encode
from flows.children import children_of
from flows.launcher import NO_HEARTBEAT, ChildRun
from flows.supervisor import MAX_RESTARTS
from storage.errors import ServiceError
from tests.flows.supervised import World, begun


@pytest.fixture
def world() -> World:
    return begun()


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
    world = begun(("east", "west"))
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
