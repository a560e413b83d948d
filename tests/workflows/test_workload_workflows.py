"""The workflows of the workloads, played by scripts: who is shown what, and who earns what."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from astraflow.problems import Problem
from astraflow.rewards import ScoredProblem, exact
from astraflow.trajectory import Trajectory
from astraflow.workflows import BUILT_IN, Roles
from astraflow.workflows.environment_agent import load_environments
from astraflow.workflows.environment_agent import read_action as read_deed
from astraflow.workflows.search_agent import read_action
from astraflow.workflows.solve_and_select import read_choice, selector_reward
from storage.errors import ConfigError

pytestmark = pytest.mark.anyio

MakeStage = Callable[..., Any]
PROBLEM = ScoredProblem.of(Problem(0, "p", "12+34=", "46"), exact)


async def play(name: str, stage: Any, problem: ScoredProblem = PROBLEM, **options: Any) -> dict[str, list[Trajectory]]:
    roles = Roles.of(stage.voices, "seed")
    await BUILT_IN[name].bind(options).play(problem, roles)
    rows: dict[str, list[Trajectory]] = {}
    for row in roles.trajectories():
        rows.setdefault(row.role, []).append(row)
    return rows


@pytest.mark.parametrize(
    ("said", "reward", "turns"),
    [(["46"], 1.0, 1), (["45", "46"], 0.5, 2), (["1", "2", "46"], 0.25, 3), (["1", "2", "3"], 0.0, 3)],
)
async def test_multi_turn_is_one_sequence_with_a_discounted_reward(
    stage: MakeStage, chatml: str, said: list[str], reward: float, turns: int
) -> None:
    scene = stage(chatml).role("solver", *said)
    [row] = (await play("multi_turn", scene, turns=3, discount=0.5, feedback="Wrong."))["solver"]
    assert row.reward == reward and row.meta["turns"] == str(turns)
    assert scene.text(row.prompt_ids + row.response_ids).count("Wrong.") == turns - 1
    assert sum(row.loss_mask) == sum(len(scene.ids(text)) + 1 for text in said)  # answers and their ends, nothing else


@pytest.mark.parametrize(
    ("answers", "choice", "solver", "selector"),
    [
        (["46", "45"], "1", [1, 0], 1.0), (["46", "45"], "2", [1, 0], 0.0), (["45", "46"], "2", [0, 1], 1.0),
        (["46", "46"], "1", [1, 1], 0.5), (["1", "2"], "2", [0, 0], 0.5), (["46", "45"], "x", [1, 0], 0.0),
        (["46", "46"], "x", [1, 1], 0.0), (["45", "46"], "not 1 but 2", [0, 1], 1.0),
    ],
)  # fmt: skip
async def test_solve_and_select(
    stage: MakeStage, answers: list[str], choice: str, solver: list[float], selector: float
) -> None:
    scene = stage().role("solver", *answers).role("selector", choice)
    rows = await play("solve_and_select", scene, select_prompt="{prompt}|{first}|{second}?")
    assert [row.reward for row in rows["solver"]] == solver
    [chosen] = rows["selector"]
    assert chosen.reward == selector and chosen.reward_parts["differ"] == float(solver[0] != solver[1])
    assert scene.asked("selector") == [f"<bos>12+34=|{answers[0]}|{answers[1]}?"]


def test_choices() -> None:
    assert [read_choice(text, "first", "second") for text in ("First", "the second.", "firstly", "")] == [
        0,
        1,
        None,
        None,
    ]
    assert selector_reward(None, True, False) == 0.0


async def test_plan_and_solve_pays_both_for_the_answer(stage: MakeStage) -> None:
    scene = stage().role("planner", "add", "guess").role("solver", "46", "1")
    rows = await play("plan_and_solve", scene, plans=2, plan_prompt="{prompt}plan", solve_prompt="{prompt}{plan}")
    assert sorted(row.reward for row in rows["planner"]) == sorted(row.reward for row in rows["solver"]) == [0.0, 1.0]
    by_plan = dict(zip(scene.asked("solver"), (row.reward for row in rows["solver"]), strict=True))
    assert {key.rpartition("=")[2] for key in by_plan} == {"add", "guess"}


class SumBench:
    """Cases are «a+b=c»; a program is a number that it adds to the sum."""

    form = "a+b=c"

    def cases(self, problem: Problem, text: str) -> list[tuple[int, int]] | None:
        try:
            return [(eval(left), int(right)) for left, right in (line.split("=") for line in text.split(";"))]
        except (ValueError, SyntaxError):
            return None

    async def failures(self, problem: Problem, text: str, cases: Any) -> list[str]:
        return [f"{total}: {right}" for total, right in cases if total + int(text) != right]

    def reference(self, problem: Problem) -> str:
        return problem.answer


@pytest.mark.parametrize(
    ("programs", "tests", "solver", "tester"),
    [
        (["0"], ["1+1=2"], [1], [1.0]),  # right; valid, agrees
        (["0"], ["1+1=3"], [1], [0.0]),  # an invalid case earns nothing, and sends no right one back
        (["1", "0"], ["1+1=2", "1+1=2"], [0, 1], [1.0, 1.0]),  # found out, then right
        (["1"], ["1+1=3"], [0], [0.0]),  # invalid: the wrong program passes it, so it ends
        (["1"], ["what"], [0], [0.0]),  # unreadable
        (["1", "2"], ["1+1=2", "1+1=2"], [0, 0], [1.0, 1.0]),  # rounds end it
    ],
)  # fmt: skip
async def test_solve_and_test(
    stage: MakeStage, programs: list[str], tests: list[str], solver: list[float], tester: list[float]
) -> None:
    problem = ScoredProblem.of(Problem(0, "p", "add", "0"), exact)
    scene = stage().role("solver", *programs).role("tester", *tests)
    bench = f"{__name__}:SumBench"
    rows = await play("solve_and_test", scene, problem, bench=bench, retry_prompt="{answer}|{feedback}")
    assert [row.reward for row in rows["solver"]] == solver
    assert [row.reward for row in rows["tester"]] == tester
    if len(programs) > 1:
        assert scene.asked("solver")[1] == f"<bos>{programs[0]}|2: 2"


async def test_a_valid_case_that_finds_nothing_is_half_a_reward(stage: MakeStage) -> None:
    class_wrong_elsewhere = ScoredProblem.of(Problem(0, "p", "add", "0"), lambda problem, text: 0.0)
    scene = stage().role("solver", "0").role("tester", "1+1=2")
    rows = await play("solve_and_test", scene, class_wrong_elsewhere, bench=f"{__name__}:SumBench")
    assert [row.reward for row in rows["tester"]] == [0.5]
    assert rows["tester"][0].reward_parts == {"valid": 1.0, "diagnostic": 0.0}


@pytest.fixture
def corpus(tmp_path: Any) -> dict[str, Any]:
    path = tmp_path / "corpus.jsonl"
    rows = [
        {"title": "Ada", "text": "A language named after Lovelace."},
        {"title": "Lovelace", "text": "Born in London."},
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return {"retriever": "corpus", "retriever_options": {"source": str(path), "index": "fts5"}}


QUESTION = ScoredProblem.of(Problem(0, "q", "Where?", "London", {"answers": '["London", "London, England"]'}), exact)


@pytest.mark.parametrize(
    ("said", "reward", "parts"),
    [
        (["<search>Ada</search>", "<search>Lovelace</search>", "<answer>London</answer>"], 1.0, (1.0, 1.0, 1.0, 2.0)),
        (["<answer>London in England</answer>"], 0.8, (0.8, 0.0, 1.0, 0.0)),
        (["<answer>Paris</answer>"], 0.0, (0.0, 0.0, 1.0, 0.0)),
        (["<answer>Paris</answer><answer>London</answer>"], 0.0, (1.0, 1.0, 0.0, 0.0)),  # the last counts; not the form
        (["hm", "<answer>London</answer>"], 0.0, (1.0, 1.0, 0.0, 0.0)),
        (["<search>x</search> and", "<answer>London</answer>"], 0.0, (1.0, 1.0, 0.0, 1.0)),
        (["<search>Ada</search>"] * 3, 0.0, (0.0, 0.0, 1.0, 3.0)),  # out of turns
    ],
)  # fmt: skip
async def test_search_agent(
    stage: MakeStage, chatml: str, corpus: dict[str, Any], said: list[str], reward: float, parts: tuple[float, ...]
) -> None:
    scene = stage(chatml).role("searcher", *said, max_tokens=200)
    [row] = (await play("search_agent", scene, QUESTION, turns=3, **corpus))["searcher"]
    assert row.reward == pytest.approx(reward)
    assert tuple(row.reward_parts[name] for name in ("f1", "em", "format", "searches")) == pytest.approx(parts)
    assert sum(row.loss_mask) == sum(len(scene.ids(text)) + 1 for text in said)
    if len(said) == 3 and reward == 1.0:
        text = scene.text(row.response_ids)
        assert "<information>(1) Ada: A language named after Lovelace." in text and "Born in London." in text


def test_actions() -> None:
    assert read_action("a <search> x </search>") == ("search", "x", True)
    assert read_action("<search></search>") == ("search", "", False)
    assert read_action("<search>a</answer>") == ("", "", False)
    assert read_deed("think\n<action>go north</action>") == "go north"
    assert read_deed("think\n go south \n") == "go south" and read_deed("") == ""


class Corridor:
    """A Gymnasium-style environment: reach the end of a corridor by «right»."""

    closed: list[int] = []  # noqa: RUF012

    def __init__(self, length: int = 2) -> None:
        self.length = length

    def reset(self, *, seed: int) -> tuple[str, dict[str, Any]]:
        self.place = 0
        return f"corridor {seed}", {"admissible_commands": ["left", "right"]}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if action == "break":
            raise RuntimeError("broken")
        self.place += action == "right"
        return f"place {self.place}", float(self.place == self.length), self.place == self.length, False, {}

    def close(self) -> None:
        self.closed.append(1)


ROOM = {"environment": "gymnasium", "environment_options": {"make": f"{__name__}:Corridor"}}
EPISODE = ScoredProblem.of(Problem(0, "e", "go", "", {"seed": "7"}), exact)


@pytest.mark.parametrize(
    ("said", "reward"),
    [(["right", "<action>right</action>"], 0.5), (["right", "left", "right"], 0.25), (["left", "left", "left"], -0.1)],
)
async def test_environment_agent(stage: MakeStage, chatml: str, said: list[str], reward: float) -> None:
    Corridor.closed.clear()
    scene = stage(chatml).role("agent", *said)
    [row] = (await play("environment_agent", scene, EPISODE, turns=3, discount=0.5, **ROOM))["agent"]
    assert row.reward == pytest.approx(reward) and row.reward_parts["actions"] == len(said)
    assert "corridor 7\nYou can: left, right" in scene.asked("agent")[0]
    assert sum(row.loss_mask) == sum(len(scene.ids(text)) + 1 for text in said)
    assert Corridor.closed == [1]


async def test_a_short_history_makes_a_sequence_a_turn(stage: MakeStage, chatml: str) -> None:
    scene = stage(chatml).role("agent", "left", "left", "right", "right")
    rows = (await play("environment_agent", scene, EPISODE, turns=9, discount=1.0, history=1, **ROOM))["agent"]
    assert len(rows) > 1 and {row.reward for row in rows} == {1.0}


async def test_a_broken_environment_fails_the_episode(stage: MakeStage, chatml: str) -> None:
    from storage.errors import EpisodeError

    Corridor.closed.clear()
    scene = stage(chatml).role("agent", "break")
    with pytest.raises(EpisodeError) as caught:
        await play("environment_agent", scene, EPISODE, **ROOM)
    assert caught.value.kind == "environment" and Corridor.closed == [1]


def test_names_that_there_are_not() -> None:
    with pytest.raises(ConfigError):
        load_environments("hotel", "{}")


@pytest.mark.parametrize("name", ["multi_turn", "solve_and_select", "plan_and_solve"])
def test_demonstrations_show_the_right_answer(name: str) -> None:
    shown = BUILT_IN[name].bind({}).demonstrate(PROBLEM, random.Random(0))
    solver = [item.completion for item in shown if item.role == "solver"]
    assert solver and set(solver) == {PROBLEM.answer}
