"""The built-in workflows' rules: who is shown what, and who earns what."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from astraflow.problems import Problem, addition
from astraflow.rewards import ScoredProblem, exact
from astraflow.trajectory import Trajectory
from astraflow.workflows import BUILT_IN, Roles
from astraflow.workflows.solve import fill, spoil
from astraflow.workflows.solve_and_verify import read_verdict

pytestmark = pytest.mark.anyio

MakeStage = Callable[..., Any]
PROBLEM = ScoredProblem.of(Problem(0, "p", "12+34=", "640"), exact)


async def play(name: str, stage: Any, **options: Any) -> dict[str, list[Trajectory]]:
    roles = Roles.of(stage.voices, "seed")
    await BUILT_IN[name].bind(options).play(PROBLEM, roles)
    rows: dict[str, list[Trajectory]] = {}
    for row in roles.trajectories():
        rows.setdefault(row.role, []).append(row)
    return rows


@pytest.mark.parametrize(("said", "reward"), [("640", 1.0), ("641", 0.0)])
async def test_solve(stage: MakeStage, said: str, reward: float) -> None:
    scene = stage().role("solver", said)
    rows = await play("solve", scene, prompt="{prompt}?", system_prompt="S")
    assert [row.reward for row in rows["solver"]] == [reward]
    assert scene.asked("solver") == ["<bos>S12+34=?"]


TINY = {"accept": "1", "reject": "0", "retry_prompt": "{prompt}{answer}-", "verify_prompt": "{prompt}{answer}?"}


@pytest.mark.parametrize(
    ("solver", "verifier", "solver_rewards", "verifier_rewards"),
    [
        (["640"], ["1"], [1], [1]),  # right, accepted
        (["641"], ["1"], [0], [0]),  # wrong, accepted
        (["641", "640"], ["0", "1"], [0, 1], [1, 1]),  # rejected, then right
        (["640", "641"], ["0", "1"], [1, 0], [0, 0]),  # a right one rejected, then wrong and accepted
        (["641"], ["2"], [0], [0]),  # unreadable: earns nothing, counts as accept
        (["640"], ["11"], [1], [0]),  # unreadable too
        (["641", "642"], ["0", "0"], [0, 0], [1, 1]),  # rounds end it
    ],
)
async def test_solve_and_verify(
    stage: MakeStage, solver: list[str], verifier: list[str], solver_rewards: list[float], verifier_rewards: list[float]
) -> None:
    scene = stage().role("solver", *solver).role("verifier", *verifier)
    rows = await play("solve_and_verify", scene, rounds=2, **TINY)
    assert [row.reward for row in rows["solver"]] == solver_rewards
    assert [row.reward for row in rows["verifier"]] == verifier_rewards
    assert scene.asked("verifier") == [f"<bos>12+34={answer}?" for answer in solver]


async def test_a_retry_sees_the_latest_attempt_only(stage: MakeStage) -> None:
    scene = stage().role("solver", "1", "2", "3").role("verifier", "bad a: reject", "bad b: reject", "reject")
    rows = await play("solve_and_verify", scene, rounds=3, retry_prompt="{prompt}|{answer}|{feedback}|{other}")
    assert scene.asked("solver") == [
        "<bos>12+34=",
        "<bos>12+34=|1|bad a: reject|{other}",
        "<bos>12+34=|2|bad b: reject|{other}",
    ]
    assert [row.slot for row in rows["solver"]] == [0, 1, 2]
    assert [row.meta["attempt"] for row in rows["solver"]] == ["0", "1", "2"]
    assert [row.meta["verdict"] for row in rows["verifier"]] == ["reject"] * 3


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        ("accept", True), ("I would Reject.", False), ("reject? no: ACCEPT!", True), ("unacceptable", None),
        ("accepted", None), ("", None), ("accept, no, reject", False),
    ],
)  # fmt: skip
def test_verdicts(text: str, verdict: bool | None) -> None:
    assert read_verdict(text, "accept", "reject") is verdict


def test_values_are_not_templates() -> None:
    assert fill("{a}{b} {x}", a="{b}", b="1") == "{b}1 {x}"


def test_spoiled_answers_are_wrong_and_look_alike() -> None:
    rng = random.Random(0)
    for answer in ("640", "7", "Paris", "x = -12.5"):
        for _ in range(50):
            wrong = spoil(answer, rng)
            assert wrong != answer and len(wrong) == len(answer)
            assert sum(a != b for a, b in zip(wrong, answer, strict=True)) == 1
    assert spoil("", rng) == "0"


def test_demonstrations_of_solve() -> None:
    [shown] = BUILT_IN["solve"].bind({"prompt": "Q {prompt}"}).demonstrate(PROBLEM, random.Random(0))
    assert (shown.role, [m["content"] for m in shown.messages], shown.completion) == ("solver", ["Q 12+34="], "640")


def test_demonstrations_of_solve_and_verify_are_balanced_and_right() -> None:
    flow = BUILT_IN["solve_and_verify"].bind({"rounds": 2, **TINY})
    rng = random.Random(0)
    verdicts = []
    for problem in addition(0, count=50):
        shown = flow.demonstrate(problem, rng)
        assert [s.role for s in shown] == ["solver", "solver", "verifier", "verifier"]
        assert {s.completion for s in shown if s.role == "solver"} == {problem.answer}
        assert shown[0].messages[0]["content"] == problem.prompt
        assert shown[1].messages[0]["content"].startswith(problem.prompt)
        assert shown[1].messages[0]["content"] != f"{problem.prompt}{problem.answer}-"
        for s in shown[2:]:
            answer = s.messages[0]["content"].removeprefix(problem.prompt).removesuffix("?")
            assert (answer == problem.answer) == (s.completion == "1")
            verdicts.append(s.completion)
    assert verdicts.count("1") == verdicts.count("0") == 50
    assert len(BUILT_IN["solve_and_verify"].bind({"rounds": 1}).demonstrate(PROBLEM, rng)) == 3
