"""Houses, their problems and the processes that play them; the real games are played by ``tests/household``."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from astraflow.config import Problems
from astraflow.problems import Problem, load_problems
from astraflow.workloads.household.environment import Household, Households
from astraflow.workloads.household.houses import house
from astraflow.workloads.household.kinds import CAN_BE, CHORES, ROOMS, TREATED_AT
from astraflow.workloads.household.worker import names
from storage.errors import ConfigError, EpisodeError


def test_things_are_called_as_alfworld_calls_them() -> None:
    ids = ["apple_bar_b", "apple_bar_a", "sink_bar__minus_01_bar_sinkbasin", "agent1", "SinkBasin_bar_1".lower()]
    assert names(ids) == {
        "apple_bar_a": "apple 2",
        "apple_bar_b": "apple 1",
        "sink_bar__minus_01_bar_sinkbasin": "sinkbasin 2",
        "sinkbasin_bar_1": "sinkbasin 1",
        "agent1": "agent1",
    }


def test_a_room_has_what_its_chores_need() -> None:
    for room in ROOMS.values():
        assert set(room.holds) == set(room.receptacles)
        assert all(set(held) <= set(room.things) for held in room.holds.values())
        for chore in room.chores:
            how = {"clean": "clean", "heat": "heat", "cool": "cool"}.get(chore.split("_")[1], "")
            if how:
                assert room.receptacles[TREATED_AT[how]][0] >= 1 and set(room.things) & CAN_BE[how]
            if chore == "look_at_obj_in_light":
                assert {"Desk", "SideTable"} & set(room.receptacles)
    assert {chore for room in ROOMS.values() for chore in room.chores} == set(CHORES)


@pytest.mark.parametrize("chore", CHORES)
def test_houses_are_those_of_their_seed_and_undone_at_the_beginning(chore: str) -> None:
    made = [house(7, index, [chore]) for index in range(40)]
    assert (
        made == [house(7, index, [chore]) for index in range(40)] != [house(8, index, [chore]) for index in range(40)]
    )
    assert len({one.pddl for one in made}) == 40 and {one.chore for one in made} == {chore}
    for one in made:
        takes = [command for command in one.commands if command.startswith("take ")]
        assert len(takes) == (2 if chore == "pick_two_obj_and_place" else 1)
        assert not any(a == b for a, b in zip(one.commands, one.commands[1:], strict=False))
        if chore != "look_at_obj_in_light":
            place = one.commands[-1].split(" to ")[1].split()[0]
            kind = takes[0].split()[1]
            where = {
                line.split()[2].rstrip(")").split("_bar_")[0].lower()
                for line in one.pddl.splitlines()
                if line.strip().lower().startswith(f"(inreceptacle {kind}_bar_")
            }
            assert where and place not in where


def test_household_problems_say_the_task_and_keep_the_way_to_themselves() -> None:
    problems = load_problems(Problems(source="household", options={"count": 12}), 3)
    assert [problem.meta["chore"] for problem in problems] == [*CHORES, *CHORES]
    assert all(json.loads(problem.answer) and len(json.dumps(problem.meta)) < 500 for problem in problems)
    only = load_problems(Problems(source="household", options={"count": 2, "chores": [CHORES[3]]}), 3)
    assert all(problem.prompt.startswith("put a hot ") for problem in only)
    for options in ({"count": 0}, {"chores": []}, {"chores": ["wash_the_car"]}):
        with pytest.raises(ConfigError, match="no household of") as caught:
            load_problems(Problems(source="household", options=options), 0)
        assert caught.value.where == "problems.options"


def _published(folder: Path, trial: str, **changed: Any) -> None:
    """A game file with the published names."""
    file = folder / trial / "game.tw-pddl"
    file.parent.mkdir(parents=True)
    game = {
        "pddl_domain": "d",
        "grammar": '"rhs": "Your task is to: put some mug in desk."',
        "pddl_problem": "p",
        "walkthrough": ["look"],
        "solvable": True,
    }
    file.write_text(json.dumps({**game, **changed}))


def test_published_games_are_found_by_chore(tmp_path: Path) -> None:
    _published(tmp_path, "pick_and_place_simple-Mug-None-Desk-308/trial_1")
    _published(tmp_path, "pick_two_obj_and_place-Mug-None-Desk-308/trial_2", solvable=False)
    _published(tmp_path, "pick_cool_then_place_in_recep-Mug-None-Desk-1/trial_3")
    _published(tmp_path, "pick_and_place_with_movable_recep-Mug-Bowl-Desk-1/trial_4")
    options: dict[str, Any] = {"path": str(tmp_path)}
    problems = load_problems(Problems(source="alfworld", options=options), 0)
    assert [problem.meta["chore"] for problem in problems] == [
        "pick_and_place_simple",
        "pick_cool_then_place_in_recep",
    ]
    assert problems[0].prompt == "put some mug in desk." and json.loads(problems[0].answer) == ["look"]
    assert len(load_problems(Problems(source="alfworld", options={**options, "count": 1}), 0)) == 1
    _published(tmp_path, "pick_and_place_simple-Cup-None-Desk-308/trial_5", grammar=None, pddl_problem=None)
    (tmp_path / "pick_and_place_simple-Cup-None-Desk-308/trial_5/game.tw-pddl").write_text("{}")
    with pytest.raises(ConfigError, match="pddl_problem or grammar is missing"):
        load_problems(Problems(source="alfworld", options=options), 0)
    with pytest.raises(ConfigError, match="there is no game"):
        load_problems(Problems(source="alfworld", options={"path": str(tmp_path / "none")}), 0)


PROBLEM = Problem(0, "p", "task", "", {"path": "a game"})
# A player that is told what to do by the actions: it echoes, breaks, dies or hangs.
FAKE = """#!{python}
import json, sys, time
print(json.dumps({ready}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    action = asked.get("action", "")
    if action == "die":
        sys.exit(3)
    if action == "hang":
        time.sleep(60)
    answer = {{"text": action, "actions": ["help", "go"], "won": action == "win"}}
    print(json.dumps({{"error": "broken"}} if action == "break" else answer), flush=True)
"""


def _players(folder: Path, ready: str = "{'ready': True}", timeout_s: float = 20.0) -> Households:
    folder.joinpath("python").write_text(FAKE.format(python=sys.executable, ready=ready))
    folder.joinpath("python").chmod(0o755)
    return Households(python=str(folder / "python"), processes=1, timeout_s=timeout_s)


async def _said(world: Household, action: str) -> str:
    try:
        return (await world.step(action)).text
    except EpisodeError as error:
        return error.kind


def test_games_share_a_process_and_end_apart(tmp_path: Path) -> None:
    async def play() -> None:
        worlds = _players(tmp_path)
        async with worlds.play(PROBLEM) as one, worlds.play(PROBLEM) as two:
            begun = await one.reset()
            assert begun.actions == ("go",) and not begun.done
            await two.reset()
            assert await _said(one, "break") == "environment" and await _said(two, " Hello ") == "hello"
            seen = await two.step("win")
            assert seen.done and seen.score == 1.0
        await worlds.close()

    asyncio.run(play())


@pytest.mark.parametrize("how", ["die", "hang"])
def test_a_lost_process_loses_its_games_and_is_replaced(tmp_path: Path, how: str) -> None:
    async def play() -> None:
        worlds = _players(tmp_path, timeout_s=1.0 if how == "hang" else 20.0)
        async with worlds.play(PROBLEM) as one, worlds.play(PROBLEM) as two:
            await one.reset()
            await two.reset()
            assert await _said(one, how) == "environment"
            async with worlds.play(PROBLEM) as three:
                await three.reset()
                assert await _said(two, "hello") == "environment"  # it was played by the process before
                assert await _said(three, "hello") == "hello"
        await worlds.close()

    asyncio.run(play())


def test_an_episode_cut_short_leaves_no_answer_for_the_next(tmp_path: Path) -> None:
    async def play() -> None:
        worlds = _players(tmp_path)
        async with worlds.play(PROBLEM) as one:
            await one.reset()
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):
                    await one.step("hang")
        async with worlds.play(PROBLEM) as two:
            await two.reset()
            assert await _said(two, "hello") == "hello"
        await worlds.close()

    asyncio.run(play())


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    async def play(worlds: Households) -> None:
        async with worlds.play(PROBLEM) as world:
            await world.reset()

    with pytest.raises(ConfigError, match=r"astraflow-prefect\[household\]"):
        asyncio.run(play(_players(tmp_path, ready="{'missing': 'textworld'}")))
    with pytest.raises(ConfigError, match="Name the Python"):
        asyncio.run(play(Households(python=str(tmp_path / "nobody"))))
