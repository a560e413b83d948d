"""The supervisor and the numbers of pools that the manager decided: who is started, asked to leave, started again."""

from __future__ import annotations

from itertools import count

import pytest

from astraflow.dataflow.state import RunState
from astraflow.records import DecisionRecord, Scaled, Status, encode
from storage.errors import ServiceError
from tests.flows.supervised import World


class ScaledWorld(World):
    """A run whose manager decides by the test's hand."""

    def __init__(self) -> None:
        super().__init__(pools=("local",))
        self.numbers = count()
        self.supervisor.begin(adopt=False)
        self.beat_all()
        self.tick()

    def scale(self, pools: int, region: str = "local") -> None:
        decision = Scaled(pools={region: pools}, held=[], reason="test")
        seq = next(self.numbers)
        record = DecisionRecord(id=str(seq), epoch=1, now=0.0, cursors={}, observations={}, decisions=[decision])
        self.store.create(self.keys.decision(seq), encode(record))

    def pools(self) -> list[str]:
        """Keys of the pools that are not over."""
        return [child.spec.key for child in self.supervisor.children if child.spec.role == "pool" and not child.over]

    def beat_pool(self, key: str) -> str:
        """The newest flow run of a copy runs and beats, under the name of its section."""
        run = self.launcher.newest(key)
        self.launcher.set(key, "RUNNING")
        name = f"pool-local-{run.id[-8:]}"
        status = Status(participant=name, role="pool", state="running", beat=next(self.beats), pid=1)
        self.store.put(self.keys.status(name), encode(status))
        return name


@pytest.fixture
def world() -> ScaledWorld:
    return ScaledWorld()


def test_missing_pools_start_and_the_last_ones_are_asked_to_leave_once(world: ScaledWorld) -> None:
    world.scale(3)
    world.tick()
    assert world.pools() == ["pool-local", "pool-local/2", "pool-local/3"]
    names = [world.beat_pool(f"pool-local/{n}") for n in (2, 3)]
    world.tick()
    world.scale(1)
    for _ in range(3):
        world.tick()
    wishes = [wish for wish in world.wishes() if wish.what == "drain"]
    assert [wish.target for wish in wishes] == names
    assert not world.launcher.cancelled
    for n in (2, 3):
        world.launcher.set(f"pool-local/{n}", "COMPLETED")
    world.tick()
    assert world.pools() == ["pool-local"]


def test_a_pool_that_has_not_shown_itself_is_cancelled(world: ScaledWorld) -> None:
    world.scale(2)
    world.tick()
    world.scale(1)
    world.tick()
    assert world.launcher.cancelled == [world.launcher.newest("pool-local/2").id]
    world.launcher.set("pool-local/2", "CANCELLED")
    world.tick()
    assert world.pools() == ["pool-local"]


def test_a_pool_that_was_to_leave_and_dies_instead_is_not_started_again(world: ScaledWorld) -> None:
    world.scale(2)
    world.tick()
    name = world.beat_pool("pool-local/2")
    world.tick()
    world.scale(1)
    world.tick()
    world.launcher.set("pool-local/2", "CRASHED")
    world.tick()
    assert world.pools() == ["pool-local"] and world.lives("pool-local/2") == 1
    assert name in [wish.target for wish in world.wishes() if wish.what == "drain"]


def test_a_pool_that_is_wanted_again_while_it_leaves_gets_another_life(world: ScaledWorld) -> None:
    world.scale(2)
    world.tick()
    world.beat_pool("pool-local/2")
    world.tick()
    world.scale(1)
    world.tick()
    world.scale(2)
    world.tick()
    assert world.lives("pool-local/2") == 1, "it is still leaving"
    world.launcher.set("pool-local/2", "COMPLETED")
    world.tick()
    world.tick()
    assert world.lives("pool-local/2") == 2


def test_a_pool_that_left_by_itself_starts_again_only_by_a_new_decision(world: ScaledWorld) -> None:
    world.scale(2)
    world.tick()
    world.beat_pool("pool-local/2")
    world.launcher.set("pool-local/2", "COMPLETED")
    world.tick()
    world.tick()
    assert world.lives("pool-local/2") == 1
    world.scale(2)
    world.tick()
    assert world.lives("pool-local/2") == 2


def test_another_experiment_comes_to_the_same_pools(world: ScaledWorld) -> None:
    world.scale(3)
    world.tick()
    for n in (2, 3):
        world.beat_pool(f"pool-local/{n}")
    world.scale(2)  # nobody acts on it: the experiment is gone
    world.supervisor = world.new_supervisor("experiment-2")
    world.supervisor.begin(adopt=True)
    world.tick()
    assert world.pools() == ["pool-local", "pool-local/2", "pool-local/3"], "adopted, and the last one is to leave"
    assert [wish.target for wish in world.wishes("experiment-2")] == [
        f"pool-local-{world.launcher.newest('pool-local/3').id[-8:]}"
    ]
    assert [world.lives(f"pool-local/{n}") for n in (2, 3)] == [1, 1]
    world.launcher.set("pool-local/3", "COMPLETED")
    world.tick()
    assert world.pools() == ["pool-local", "pool-local/2"]


def test_numbers_before_a_snapshot_are_known_by_it(world: ScaledWorld) -> None:
    state = RunState(world.config.model_copy(update={"problem_count": 5}))
    state.apply(Scaled(pools={"local": 2}, held=[], reason="long ago"))
    world.store.put(world.keys.snapshot(7), state.snapshot())
    supervisor = world.new_supervisor("experiment-3")
    supervisor.begin(adopt=True)
    assert [child.spec.key for child in supervisor.children if child.spec.role == "pool"] == [
        "pool-local",
        "pool-local/2",
    ]


def test_none_left_by_decision_is_no_fault(world: ScaledWorld) -> None:
    world.scale(0)
    world.tick()
    world.launcher.set("pool-local", "COMPLETED")
    world.tick()
    world.tick()
    assert world.pools() == []


def test_all_copies_are_cancelled_at_the_end(world: ScaledWorld) -> None:
    world.scale(2)
    world.tick()
    world.supervisor.cancel_all()
    assert world.launcher.newest("pool-local/2").id in world.launcher.cancelled


def test_a_pool_that_left_because_fewer_were_wanted_is_none_that_could_play(world: ScaledWorld) -> None:
    world.scale(2)
    world.tick()
    world.beat_pool("pool-local/2")
    world.scale(1)
    world.tick()
    world.launcher.set("pool-local/2", "COMPLETED")
    world.tick()
    assert world.pools() == ["pool-local"]
    with pytest.raises(ServiceError, match="no pool is left: pool-local died 6 times"):
        for _ in range(400):
            if world.launcher.newest("pool-local").is_living:
                world.launcher.set("pool-local", "CRASHED", "boom")
            world.beat("manager")
            world.beat("trainer-solver")
            world.tick()
    assert world.pools() == []
