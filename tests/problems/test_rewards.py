"""Rewards: what counts as right, and that no error ever looks like a wrong answer."""

from __future__ import annotations

import asyncio
import random
import statistics
import sys
import types
from typing import Any

import pytest

from astraflow.config import Component
from astraflow.problems import Problem, addition
from astraflow.rewards import Reward, ScoredProblem, load_reward
from storage.errors import ConfigError, EpisodeError


def score(reward: Reward, text: str, answer: str = "640") -> float:
    return asyncio.run(ScoredProblem.of(Problem(0, "p", "q", answer, {"k": "v"}), reward).score(text))


@pytest.mark.parametrize(
    ("name", "text", "answer", "expected"),
    [
        ("exact", " 640\n", "640", 1), ("exact", "6 40", "640", 0), ("exact", "", "640", 0),
        ("contains", "it is 640.", " 640 ", 1), ("contains", "64", "640", 0),
        ("last_number", "12 + 34 is 46", "46", 1), ("last_number", "46 or 47", "46", 0),
        ("last_number", "$1,000.0", "1000", 1), ("last_number", "-5", "5", 0), ("last_number", "none", "5", 0),
        ("last_number", "0.50", "1/0.5", 1), ("last_number", "7" * 5000, "7", 0),
    ],
)  # fmt: skip
def test_built_in(name: str, text: str, answer: str, expected: float) -> None:
    assert score(load_reward(Component(name=name)), text, answer) == expected


def test_a_number_reward_without_a_number_to_reach_is_an_error() -> None:
    with pytest.raises(EpisodeError) as caught:
        score(load_reward(Component(name="last_number")), "5", "five")
    assert caught.value.kind == "reward"


def test_the_control_has_the_rate_but_not_the_knowledge() -> None:
    reward: Any = load_reward(Component(name="shuffled"))
    rng = random.Random(0)
    problems = addition(0, count=300)
    right, paid = [], []
    for _ in range(6000):
        problem = rng.choice(problems)
        correct = rng.random() < 0.4
        right.append(float(correct))
        paid.append(reward(problem, problem.answer if correct else "x"))
    assert abs(statistics.mean(paid) - statistics.mean(right)) < 0.04
    assert abs(statistics.correlation(paid, right)) < 0.05


def test_the_control_never_pays_a_problem_with_its_own_score() -> None:
    reward: Any = load_reward(Component(name="shuffled", options={"window": 8}))
    mine, other = addition(0, count=2)
    assert [reward(mine, mine.answer) for _ in range(5)] == [0.0] * 5
    assert reward(other, "x") == 1.0
    assert reward(mine, "x") == 0.0


async def slow(problem: Problem, text: str, *, worth: float = 2.0) -> float:
    await asyncio.sleep(0)
    return worth * len(text)


class Counting:
    def __init__(self, start: int = 0) -> None:
        self.count = start

    def __call__(self, problem: Problem, text: str) -> float:
        self.count += 1
        return float(self.count)


def test_own_rewards(monkeypatch: pytest.MonkeyPatch) -> None:
    own = types.ModuleType("own_rewards")
    own.slow, own.Counting, own.number = slow, Counting, 3  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "own_rewards", own)
    assert score(load_reward(Component(name="own_rewards:slow")), "ab") == 4.0
    assert score(load_reward(Component(name="own_rewards:slow", options={"worth": 3})), "ab") == 6.0
    assert score(load_reward(Component(name="own_rewards:Counting", options={"start": 4})), "") == 5.0
    for name, options, says in (
        ("own_rewards:slow", {"wort": 1}, "It takes: worth"),
        ("own_rewards:Counting", {"begin": 1}, "It takes: start"),
        ("own_rewards:number", {}, "is a int, not callable"),
        ("exactly", {}, "Did you mean 'exact'?"),
        ("shuffled", {"base": "best"}, "'best' is not built in"),
    ):
        with pytest.raises(ConfigError) as caught:
            load_reward(Component(name=name, options=options))
        assert says in str(caught.value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), None, "x", ValueError("no")])
def test_no_finite_reward_fails_the_episode(value: Any) -> None:
    def reward(problem: Problem, text: str) -> Any:
        if isinstance(value, Exception):
            raise value
        return value

    with pytest.raises(EpisodeError) as caught:
        score(reward, "a")
    assert caught.value.kind == "reward"
    assert caught.value.where == "problem p"
