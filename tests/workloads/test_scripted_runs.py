"""Each workload's recipe as a whole run, by a policy that knows every second answer: the rewards are those that are
known, and the records are sane."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from astraflow.problems import Problem
from astraflow.workloads.search.corpus import FOLDOC
from astraflow.workloads.shop.catalogue import catalogue
from tests.workloads.scripted_runs import Words, check_earned, play

PRODUCTS = 100


def boxed(problem: Problem) -> list[str]:
    return [f"So it is \\boxed{{{problem.answer}}}."]


def program(problem: Problem) -> list[str]:
    return [f"```python\n{problem.answer}\n```"]


def empty_program(problem: Problem) -> list[str]:
    return [f"```python\n{json.loads(problem.meta['tests'])['prefix']}\n    return None\n```"]


def found(problem: Problem) -> list[str]:
    start, middle, end = json.loads(problem.meta["path"])
    return [f"<search>{start}</search>", f"<search>{middle}</search>", f"<answer>{end}</answer>"]


def bought(problem: Problem) -> list[str]:
    goal = json.loads(problem.meta["goal"])
    words = f"{goal['category']} {' '.join(goal['attributes'])}"
    page = [p.id for p in catalogue(0, PRODUCTS).find(words)].index(goal["id"]) // 10
    clicks = ["Next >"] * page + [goal["id"], *goal["options"].values(), "Buy Now"]
    return [f"<action>{action}</action>" for action in (f"search[{words}]", *(f"click[{what}]" for what in clicks))]


def always(*words: str) -> Words:
    return lambda problem: list(words)


CASES: dict[str, tuple[Words, Words, list[str]]] = {
    "maths-cpu": (boxed, always("So it is \\boxed{123456789}."), []),
    "code-cpu": (program, empty_program, ["problems.reward.options.wall_s=60"]),
    "gym-cpu": (lambda problem: [f"It is {problem.answer}"], always("No idea"), ["problems.options.count=16"]),
    "search-cpu": (found, always("<answer>nobody knows</answer>"), ["problems.options.count=16"]),
    "shop-cpu": (
        bought,
        always(*["<action>click[Buy Now]</action>"] * 12),
        ["problems.options.count=8", f"problems.options.products={PRODUCTS}", "workflow.options.turns=12"],
    ),
}


@pytest.mark.parametrize("recipe", CASES)
def test_a_whole_run_earns_what_is_known(recipe: str, tmp_path: Path) -> None:
    if recipe == "search-cpu" and not FOLDOC.with_suffix(".index").exists():
        pytest.skip("dict-foldoc is not installed")
    right, wrong, overrides = CASES[recipe]
    run = play(tmp_path, recipe, right, wrong, *overrides)
    if recipe == "shop-cpu":
        check_earned(run, lambda problem: 0.99 ** (len(right(problem)) - 1), fails=-0.1)
    else:
        check_earned(run, lambda problem: 1.0, fails=0.0)
