"""Houses as TextWorld plays them: every chore can be done as promised, and is scored by ALFRED's own rules."""

from __future__ import annotations

import json
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from astraflow.config import Component, Problems
from astraflow.problems import Problem, load_problems
from astraflow.rewards import ScoredProblem, load_reward
from astraflow.workflows import BUILT_IN, Roles
from astraflow.workloads.household.environment import Households, game_of
from astraflow.workloads.household.kinds import CHORES
from tests.workloads.scripted_runs import check_earned, play

pytestmark = pytest.mark.anyio


@pytest.fixture
async def worlds(household_python: str) -> AsyncIterator[Households]:
    made = Households(python=household_python)
    yield made
    await made.close()


def _houses(count: int, seed: int = 0, **options: Any) -> list[Problem]:
    return load_problems(Problems(source="household", options={"count": count, **options}), seed)


async def _played(worlds: Households, problem: Problem) -> list[Any]:
    """What is seen when the problem's own way is gone."""
    async with worlds.play(problem) as world:
        seen = [await world.reset()]
        for command in json.loads(problem.answer):
            assert command in seen[-1].actions, (problem.id, command, seen[-1].actions)
            seen.append(await world.step(command))
    return seen


@pytest.mark.parametrize("chore", CHORES)
async def test_a_chore_is_done_by_the_last_action_and_not_before(worlds: Households, chore: str) -> None:
    for problem in _houses(4, seed=5, chores=[chore]):
        seen = await _played(worlds, problem)
        assert [one.done for one in seen] == [False] * (len(seen) - 1) + [True], problem.id
        assert seen[-1].score == 1.0 and seen[-2].score == 0.0
        assert f"Your task is to: {problem.prompt}" in seen[0].text


async def test_a_game_is_the_same_in_every_process(household_python: str) -> None:
    found = []
    for _ in range(2):
        worlds = Households(python=household_python, processes=1)
        found.append([await _played(worlds, problem) for problem in _houses(3)])
        await worlds.close()
    assert found[0] == found[1]


async def test_nonsense_changes_nothing_and_a_broken_house_breaks_alone(worlds: Households) -> None:
    [problem] = _houses(1)
    async with worlds.play(problem) as world:
        begun = await world.reset()
        seen = await world.step("fly to the moon")
        assert seen.text == "Nothing happens." and seen.actions == begun.actions and not seen.done
    broken = Problem(0, "broken", "task", "", {"path": str(Path(__file__))})
    with pytest.raises(Exception, match="a household game failed") as caught:
        async with worlds.play(broken) as world:
            await world.reset()
    assert getattr(caught.value, "kind", "") == "environment"
    assert (await _played(worlds, problem))[-1].done


async def test_a_published_game_is_played_from_its_file(
    worlds: Households, household_python: str, tmp_path: Path
) -> None:
    [house] = _houses(1, chores=["pick_cool_then_place_in_recep"])
    shipped = subprocess.run(
        [household_python, "-c", "import alfworld.info as i; print(i.ALFRED_PDDL_PATH); print(i.ALFRED_TWL2_PATH)"],
        capture_output=True,
        text=True,
        check=True,
        env={"ALFWORLD_DATA": str(tmp_path / "data"), "HOME": str(tmp_path)},
    )
    domain, grammar = (Path(line).read_text(encoding="utf-8") for line in shipped.stdout.split())
    game = game_of(house)
    file = tmp_path / "train/pick_cool_then_place_in_recep-Bread-None-Microwave-1/trial/game.tw-pddl"
    file.parent.mkdir(parents=True)
    whole = {
        "pddl_domain": domain,
        "grammar": grammar.replace("UNKNOWN GOAL", game["task"]),
        "pddl_problem": game["pddl"],
        "walkthrough": json.loads(house.answer),
        "solvable": True,
    }
    file.write_text(json.dumps(whole))
    [problem] = load_problems(Problems(source="alfworld", options={"path": str(tmp_path / "train")}), 0)
    assert problem.prompt.startswith("put a cool ") and (await _played(worlds, problem))[-1].done


async def test_the_workflow_plays_a_script_that_knows_and_one_that_does_not(
    stage: Any, chatml: str, household_python: str
) -> None:
    [problem] = _houses(1)
    commands = json.loads(problem.answer)
    scorer = load_reward(Component(name="exact"))

    async def rewards(*said: str) -> set[float]:
        roles = Roles.of(stage(chatml).role("agent", *said, max_tokens=200).voices, "seed")
        options = {
            "environment": "household",
            "environment_options": {"python": household_python, "processes": 1},
            "turns": len(said),
            "discount": 0.5,
        }
        await BUILT_IN["environment_agent"].bind(options).play(ScoredProblem.of(problem, scorer), roles)
        return {row.reward for row in roles.trajectories()}

    assert await rewards(*(f"<action>{command}</action>" for command in commands)) == {0.5 ** (len(commands) - 1)}
    assert await rewards("go to toilet 1", "look") == {-0.1}


@pytest.mark.timeout(900)
def test_a_whole_run_earns_what_is_known(household_python: str, tmp_path: Path) -> None:
    run = play(
        tmp_path,
        "household-cpu",
        lambda problem: [f"<action>{command}</action>" for command in json.loads(problem.answer)],
        lambda problem: ["<action>look</action>"] * 7,
        "problems.options.count=4",
        'problems.options.chores=["look_at_obj_in_light"]',  # the shortest: 4 or 5 actions
        "workflow.options.turns=6",
        f"workflow.options.environment_options.python={household_python}",
    )
    check_earned(run, lambda problem: 0.99 ** (len(json.loads(problem.answer)) - 1), fails=-0.1)
