"""The boundary to the user's code: what goes wrong in an episode, or has no stored form, fails the episode alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from astraflow.raas.facts import FactWriter
from astraflow.raas.group import PlayedGroup, Playing, play_episode
from astraflow.raas.leases import Lease, Leases
from astraflow.raas.player import HOPELESS, Player
from astraflow.raas.rows import Origin, bundle, describe, to_table
from astraflow.records import Leased
from astraflow.rewards import ScoredProblem, exact
from astraflow.trajectory import SCHEMA, Trajectory
from astraflow.workflows import Roles, user, workflow
from storage.errors import EpisodeError
from storage.tables import Written
from tests.workflows.conftest import Stage

pytestmark = pytest.mark.anyio

PROBLEM = ScoredProblem(0, "p", "1+1=", "2", reward=exact)
Set = Callable[[Any], None]


async def play(touch: Callable[[Any], Awaitable[None] | None], stage: Stage | None = None) -> list[Trajectory]:
    @workflow(roles=["solver"])
    async def played(problem: ScoredProblem, roles: Roles) -> None:
        answer = await roles.solver.chat([user(problem.prompt)])
        answer.reward = 1.0
        done = touch(answer)
        if done is not None:
            await done

    stage = stage or Stage().role("solver", "2", top_p=0.9, top_k=3, stop=["x"])
    return await play_episode(PROBLEM, Playing(played.bind({}), stage.voices, 1, 60, 0), "seed")


def set_on(name: str, value: Any) -> Callable[[Any], None]:
    return lambda answer: getattr(answer, name).__setitem__("k", value)


async def test_what_a_workflow_notes_is_stored_as_the_schema_has_it() -> None:
    [row] = await play(set_on("meta", 3))
    assert row.meta == {"k": "3"}
    [row] = await play(set_on("reward_parts", "0.5"))
    assert row.reward_parts == {"k": 0.5}
    for name, value in (("reward_parts", "half"), ("reward_parts", None)):
        with pytest.raises(EpisodeError, match=r"reward_parts\['k'\] of role 'solver'"):
            await play(set_on(name, value))


async def test_the_log_and_the_row_say_the_same_reward() -> None:
    [row] = await play(lambda answer: setattr(answer, "reward", 0.1))
    lease = Lease(0, 0, 1)
    [item] = bundle([PlayedGroup(lease, "p", [[row]])])
    table = to_table(item.rows, Origin("run", "pool", "local", "scripted"))
    assert table.schema.equals(SCHEMA)
    assert describe(item, "path", Written(1, "h")).rewards == table["reward"].to_pylist()
    [sampler] = table["sampler"].to_pylist()
    assert sampler["seeds"] == row.seeds and len(row.seeds) == 1
    assert (round(sampler["top_p"], 6), sampler["top_k"], sampler["min_p"], sampler["stop"]) == (0.9, 3, 0.0, ["x"])
    with pytest.raises(EpisodeError, match="reward"):
        await play(lambda answer: setattr(answer, "reward", 1e39))


async def test_a_task_that_the_workflow_cancelled_is_its_own_error() -> None:
    async def cancelled(_: Any) -> None:
        task = asyncio.create_task(asyncio.sleep(60))
        task.cancel()
        await task

    with pytest.raises(EpisodeError, match="awaited a cancelled task"):
        await play(cancelled)
    episode = asyncio.create_task(play(lambda _: asyncio.sleep(60)))
    await asyncio.sleep(0.05)
    episode.cancel()
    with pytest.raises(asyncio.CancelledError):  # from outside it stays what it is
        await episode


class NoCommitter:
    groups = 0

    def put(self, group: PlayedGroup) -> None:
        raise AssertionError(group)

    def hurry(self) -> None: ...


class Heard(FactWriter):
    def __init__(self) -> None:
        self.said: list[Any] = []

    def put(self, *facts: Any) -> None:
        self.said.extend(facts)


@pytest.mark.parametrize("kind", ["reward", "empty", "workflow"])
async def test_code_that_always_breaks_ends_the_pool(kind: str) -> None:
    @workflow(roles=["solver"])
    async def broken(problem: ScoredProblem, roles: Roles) -> None:
        if kind == "reward":
            await roles.solver.chat([user("a")])  # and no reward
        if kind == "workflow":
            raise NameError("typo")

    leases, writer = Leases("pool"), Heard()
    player = Player(leases, writer, NoCommitter(), capacity=4, may_start=lambda: True)  # type: ignore[arg-type]
    stage = Stage().role("solver", *["1"] * HOPELESS)
    player.prepare(Playing(broken.bind({}), stage.voices, 1, 60, 0), [PROBLEM])
    count = HOPELESS - 1
    leases.fold([Leased(pool="pool", groups=list(range(count)), problems=[0] * count, attempts=[1] * count)])
    player.start()
    while len(writer.said) < count:
        await asyncio.sleep(0.001)
    assert not player.fatal.done()
    leases.fold([Leased(pool="pool", groups=[99], problems=[0], attempts=[1])])
    player.start()
    with pytest.raises(EpisodeError) as caught:
        await asyncio.wait_for(player.fatal, 10)
    assert caught.value.kind == kind and {fact.kind for fact in writer.said} == {kind}


def test_a_workflow_is_a_coroutine() -> None:
    from storage.errors import ConfigError

    with pytest.raises(ConfigError, match="async def"):

        @workflow(roles=["solver"])
        def plain(problem: ScoredProblem, roles: Roles) -> None:  # type: ignore[misc]
            ...
