"""What is seen of a child: silence, a process that is gone, a start that takes too long, progress of its own."""

from __future__ import annotations

import pytest

from astraflow.config import Region
from astraflow.records import Committed, Consumed
from flows.launcher import NO_HEARTBEAT
from flows.lives import RUNNER_START_S
from flows.supervisor import MAX_RESTARTS
from storage.errors import ServiceError
from tests.flows.supervised import World, begun

START_TIMEOUT_S = Region().start_timeout_s


@pytest.fixture
def world() -> World:
    return begun()


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


def test_a_flow_run_that_a_runner_took_and_did_not_start_is_asked_for_again_soon() -> None:
    """The runner was killed in between: nobody else will ever start it."""
    world = World()
    world.supervisor.begin(adopt=False)
    world.tick(START_TIMEOUT_S / 4)  # until a runner was there
    for again, limit_s in enumerate((RUNNER_START_S, 2 * RUNNER_START_S)):
        world.launcher.set("trainer-solver", "PENDING")
        world.tick()
        world.tick(limit_s)
        assert world.lives("trainer-solver") == again + 1
        world.tick()
        world.tick(4)
        assert world.lives("trainer-solver") == again + 2
    assert "never showed a sign of life for 120 s (Prefect says pending)" in " ".join(world.supervisor.notes)
    assert world.lives("pool-local") == 1, "nobody took that one: it may still be"


def test_a_flow_run_that_began_in_time_has_all_the_time_to_show_itself(world: World) -> None:
    world.launcher.set("trainer-solver", "CRASHED")
    world.tick()
    for state, seconds in (("PENDING", RUNNER_START_S - 5), ("RUNNING", RUNNER_START_S)):
        world.launcher.set("trainer-solver", state)
        for _ in range(int(seconds)):
            world.beat("manager")
            world.beat("pool-local")
            world.tick()
    assert world.lives("trainer-solver") == 2


@pytest.mark.parametrize(("section", "limit_s"), [({}, START_TIMEOUT_S), ({"start_timeout_s": 900}, 900)])
def test_a_work_pool_has_the_time_that_its_region_gives(section: dict[str, float], limit_s: float) -> None:
    """Its worker has taken the flow run, and now a machine is made and an image pulled."""
    world = World(regions={"local": {"work_pool": "west-machines", **section}})
    world.launcher.work_pool = "west-machines"
    world.supervisor.begin(adopt=False)
    world.launcher.set("pool-local", "PENDING")
    world.tick()
    world.tick(limit_s - 1)
    assert world.lives("pool-local") == 1
    world.tick(2)
    world.tick(2)
    assert world.lives("pool-local") == 2
    assert f"never showed a sign of life for {limit_s:g} s" in " ".join(world.supervisor.notes)


def test_what_no_worker_takes_waits_as_long_as_it_must() -> None:
    """Another flow run would only lie in the same queue, and the pool be given up before its machines are back."""
    world = World(regions={"local": {"work_pool": "west-machines"}})
    world.launcher.work_pool = "west-machines"
    world.supervisor.begin(adopt=False)
    for key in ("manager", "trainer-solver"):
        world.beat(key)
    for _ in range(10 * MAX_RESTARTS):
        world.beat("manager")
        world.beat("trainer-solver")
        world.tick(50)
    assert world.lives("pool-local") == 1
    told = [note for note in world.supervisor.notes if "no worker of the work pool west-machines took it" in note]
    assert len(told) == 1
    world.launcher.set("pool-local", "PENDING")
    world.tick()
    world.tick(START_TIMEOUT_S - 1)
    assert world.lives("pool-local") == 1, "its time begins when it is taken"
    world.tick(2)
    world.tick(2)
    assert world.lives("pool-local") == 2


def test_an_adopted_manager_that_died_unseen_is_replaced_soon() -> None:
    """Its last beat was its own, and not its predecessor's: its process can be looked for."""
    world = begun()
    world.supervisor = world.new_supervisor("experiment-2")
    world.here.add(1000)
    world.supervisor.begin(adopt=True)
    world.tick()
    world.here.remove(1000)
    for _ in range(3):
        world.tick()
    assert world.lives("manager") == 2


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
    world = begun(policies=both)
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
    world = begun(("east", "west"))
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
