"""Each workload played through its workflow by a script that knows the answer, and by one that does not: known
rewards."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from astraflow.config import Component, Problems
from astraflow.problems import Problem, load_problems
from astraflow.rewards import ScoredProblem, load_reward
from astraflow.workflows import BUILT_IN, Roles
from astraflow.workloads.code import ProgramCase, Programs, to_json
from astraflow.workloads.shop.catalogue import catalogue

pytestmark = pytest.mark.anyio

MakeStage = Callable[..., Any]


async def rewards(
    scene: Any, workflow: str, problem: Problem, reward: str = "exact", **options: Any
) -> dict[str, list[float]]:
    """Rewards by role of one episode."""
    scorer: Any = load_reward(Component(name=reward))
    roles = Roles.of(scene.voices, "seed")
    try:
        await BUILT_IN[workflow].bind(options).play(ScoredProblem.of(problem, scorer), roles)
    finally:
        if hasattr(scorer, "close"):
            await scorer.close()
    found: dict[str, list[float]] = {}
    for row in roles.trajectories():
        found.setdefault(row.role, []).append(row.reward)
    return found


async def test_maths(stage: MakeStage) -> None:
    problem = Problem(0, "p", "Expand.", "x^2-1")
    for said, reward in (("so \\boxed{(x-1)(x+1)}", 1.0), ("so \\boxed{(x-1)(x+2)}", 0.0), ("x^2-1", 0.0)):
        scene = stage().role("solver", said)
        assert await rewards(scene, "solve", problem, "maths") == {"solver": [reward]}


async def test_reasoning_gym(stage: MakeStage) -> None:
    pytest.importorskip("reasoning_gym")
    [problem] = load_problems(Problems(source="reasoning-gym", options={"dataset": "chain_sum", "count": 1}), 0)
    for said, reward in ((problem.answer, 1.0), ("none", 0.0)):
        scene = stage().role("solver", said)
        assert await rewards(scene, "solve", problem, "reasoning-gym") == {"solver": [reward]}


RIGHT, WRONG = "```python\nprint(2*int(input()))\n```", "```python\nprint(2+int(input()))\n```"
DOUBLE = Problem(0, "p", "Double it.", "print(2*int(input()))", {"tests": to_json(Programs((ProgramCase("5", "10"),)))})


async def test_code_with_a_test_generator(stage: MakeStage) -> None:
    """The wrong program is found out by a valid case and mended; a case that is wrong itself earns nothing."""
    case = '```json\n[{"input": "3", "output": "6"}]\n```'
    scene = stage().role("solver", WRONG, RIGHT).role("tester", case, case.replace('"6"', '"7"'))
    assert await rewards(scene, "solve_and_test", DOUBLE, "code") == {"solver": [0.0, 1.0], "tester": [1.0, 0.0]}
    assert "'3'" in scene.asked("solver")[1] and "wrong" in scene.asked("solver")[1]


async def test_search(stage: MakeStage, chatml: str, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    texts = [
        ("alpha", "the first of all letters that anybody ever wrote, see {beta}"),
        ("beta", "the second of all letters that anybody ever wrote, see {gamma}"),
        ("gamma", "the third of all letters that anybody ever wrote down here"),
    ]
    corpus.write_text("\n".join(json.dumps({"title": title, "text": text}) for title, text in texts))
    [problem] = load_problems(Problems(source="foldoc", options={"source": str(corpus)}), 0)
    options = {"retriever": "corpus", "retriever_options": {"source": str(corpus)}}
    start, middle, end = json.loads(problem.meta["path"])
    script = [f"<search>{start}</search>", f"<search>{middle}</search>", f"<answer>{end}</answer>"]
    scene = stage(chatml).role("searcher", *script, max_tokens=200)
    assert await rewards(scene, "search_agent", problem, **options) == {"searcher": [1.0]}
    scene = stage(chatml).role("searcher", "<answer>delta</answer>", max_tokens=200)
    assert await rewards(scene, "search_agent", problem, **options) == {"searcher": [0.0]}


async def test_shop(stage: MakeStage, chatml: str) -> None:
    [problem] = load_problems(Problems(source="shop", options={"count": 1, "products": 100}), 0)
    goal = json.loads(problem.meta["goal"])
    words = f"{goal['category']} {' '.join(goal['attributes'])}"
    place = [p.id for p in catalogue(0, 100).find(words)].index(goal["id"])
    chosen = [f"click[{value}]" for value in goal["options"].values()]
    script = [f"search[{words}]", *["click[Next >]"] * (place // 10), f"click[{goal['id']}]", *chosen, "click[Buy Now]"]
    scene = stage(chatml).role("agent", *(f"<action>{action}</action>" for action in script), max_tokens=200)
    found = await rewards(scene, "environment_agent", problem, environment="shop", discount=0.5)
    assert found == {"agent": [0.5 ** (len(script) - 1)]}
    scene = stage(chatml).role("agent", *["click[Buy Now]"] * 3)
    found = await rewards(scene, "environment_agent", problem, environment="shop", turns=3)
    assert found == {"agent": [-0.1]}
