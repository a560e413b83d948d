"""The maths checker: verdicts, what is taken as the answer, and that nothing hangs, crashes or looks wrong that is
not."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.config import Component
from astraflow.problems import Problem
from astraflow.rewards import ScoredProblem, load_reward
from astraflow.workloads.maths import Checker, boxed, last_number
from astraflow.workloads.maths.checker import _Worker, at_once
from astraflow.workloads.maths.normal import items, normal, number
from storage.errors import EpisodeError
from tests.workloads.maths_pairs import ALGEBRA, FAST, PAIRS


def with_checker(work: Callable[[Checker], Coroutine[Any, Any, Any]], **options: Any) -> Any:
    async def play() -> Any:
        checker = Checker(**options)
        try:
            return await work(checker)
        finally:
            await checker.close()

    return asyncio.run(play())


def test_pairs_have_the_right_verdict() -> None:
    assert len(PAIRS) >= 150

    async def all_pairs(checker: Checker) -> list[Any]:
        return list(await asyncio.gather(*(checker.check(gold, said) for gold, said, _ in PAIRS)))

    verdicts = with_checker(all_pairs)
    right = {"wrong": ("wrong", "unparsed")}  # words that are no maths are unparsed: worth nothing, as wrong is
    bad = [
        (gold, said, expected, verdict.kind)
        for (gold, said, expected), verdict in zip(PAIRS, verdicts, strict=True)
        if verdict.kind not in right.get(expected, (expected,))
    ]
    assert not bad


@pytest.mark.parametrize(("gold", "said", "expected"), FAST)
def test_the_fast_path_needs_no_worker(gold: str, said: str, expected: str) -> None:
    verdict = with_checker(lambda checker: checker.check(gold, said), workers=0)
    assert (verdict.kind, verdict.algebra) == (expected, False)


def test_only_algebra_asks_a_worker() -> None:
    assert all(at_once(normal(gold), normal(said)) is None for gold, said, _ in ALGEBRA)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("so \\boxed{5}.", "5"), ("\\boxed{1} no, \\boxed{2}", "2"), ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed {7}", "7"), ("\\fbox{3}", "3"), ("\\boxed{5", None), ("\\boxed{1} and \\boxed{2", None), ("5", None),
        ("\\boxed{\\{1,2\\}}", "\\{1,2\\}"), ("\\boxed{a\\}b}", "a\\}b"), ("\\boxed{" + "1" * 513 + "}", None),
        ("\\boxed{}", ""), ("", None), ("\\boxed{\\text{a {b} c}}", "\\text{a {b} c}"),
    ],
)  # fmt: skip
def test_the_last_box_is_the_answer(text: str, answer: str | None) -> None:
    assert boxed(text) == answer


def test_numbers_at_the_end() -> None:
    assert last_number("It is 1,234.5 or so") == "1,234.5"
    assert last_number("none") is None and last_number("3/4") == "3/4"


def test_forms() -> None:
    assert items("(1,(2,3))") is not None and items("(1,(2,3))").items == ("1", "(2,3)")  # type: ignore[union-attr]
    assert items("(a)(b)") is None and items("f(1,2)+g(3,4)") is None
    assert number("1/0") is None and number("\\frac{1}{0}") is None and number("9" * 500) is None


@given(text=st.text(max_size=80))
def test_any_text_has_a_normal_form(text: str) -> None:
    form = normal(text)
    number(form), items(form), boxed("\\boxed{" + text + "}")
    assert at_once(form, form) is True


HARD = "9^{9^{9^{9}}}"


def test_a_costly_answer_is_timed_out_and_the_next_one_is_not() -> None:
    async def play(checker: Checker) -> list[str]:
        costly = await checker.check("x^{2}+1", "\\frac{(x+1)^{30000}}{(x+1)^{29999}}\\cdot " + HARD)
        return [costly.kind, (await checker.check("x^2-1", "(x-1)(x+1)")).kind]

    first, second = with_checker(play, workers=1, limit_s=0.5, deadline_s=3.0)
    assert first in ("timeout", "wrong", "unparsed") and second == "correct"


def test_a_worker_that_is_stuck_is_killed_and_replaced() -> None:
    async def play(checker: Checker) -> tuple[str, str, str]:
        assert (await checker.check("x^2-1", "(x-1)(x+1)")).kind == "correct"
        [worker] = checker._all
        pid = worker._process.pid  # type: ignore[union-attr]
        os.kill(pid, signal.SIGSTOP)
        stuck = await checker.check("x^2-1", "(x-1)(x+2)")
        return stuck.kind, "alive" if _alive(pid) else "gone", (await checker.check("x+y", "y+x")).kind

    # Stopped, not computing: the machine is to blame, so the pair is tried again in a new worker, and decided.
    assert with_checker(play, workers=1, deadline_s=4.0) == ("wrong", "gone", "correct")


def test_a_worker_that_dies_twice_is_an_error_never_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    class Dying(_Worker):
        async def compare(self, gold: str, prediction: str, deadline_s: float) -> Any:
            await super().compare("x", "y", deadline_s)
            os.kill(self._process.pid, signal.SIGKILL)  # type: ignore[union-attr]
            return await super().compare(gold, prediction, deadline_s)

    monkeypatch.setattr("astraflow.workloads.maths.checker._Worker", Dying)
    verdict = with_checker(lambda checker: checker.check("x^2-1", "(x-1)(x+1)"), workers=1)
    assert verdict.kind == "error" and "died" in verdict.reason

    reward: Any = load_reward(Component(name="maths", options={"workers": 1}))

    async def score() -> None:
        try:
            await ScoredProblem.of(Problem(0, "p", "q", "x^2-1"), reward).score("\\boxed{(x-1)(x+1)}")
        finally:
            await reward.close()

    with pytest.raises(EpisodeError) as caught:
        asyncio.run(score())
    assert caught.value.kind == "reward"


def test_off_the_main_thread() -> None:
    found: list[str] = []
    work = lambda checker: checker.check("x^2-1", "(x-1)(x+1)")  # noqa: E731
    thread = threading.Thread(target=lambda: found.append(with_checker(work, workers=1).kind))
    thread.start()
    thread.join()
    assert found == ["correct"]


@pytest.mark.parametrize(
    ("options", "text", "score"),
    [
        ({}, "so \\boxed{\\frac12}", 1.0), ({}, "it is 0.5", 0.0), ({"find": "number"}, "it is 0.5", 1.0),
        ({"find": "any"}, "\\boxed{3} 0.5", 0.0), ({"find": "any"}, "so 0.5", 1.0), ({}, "\\boxed{0.5", 0.0),
    ],
)  # fmt: skip
def test_the_reward(options: dict[str, Any], text: str, score: float) -> None:
    reward = load_reward(Component(name="maths", options=options))
    assert asyncio.run(ScoredProblem.of(Problem(0, "p", "q", "$\\frac{1}{2}$"), reward).score(text)) == score


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
