"""The task of the benchmark of a second policy: what it asks, and what it pays for."""

from __future__ import annotations

import pytest

from astraflow.problems import Problem
from tests.benchmarks.picks import SHOWN, TAKEN, comes_to, picks


def test_problems_differ_and_their_own_answers_are_right() -> None:
    problems = picks(0, 500)
    assert len({problem.prompt for problem in problems}) == 500 and picks(0, 500) == problems != picks(1, 500)
    for problem in problems:
        assert len(problem.prompt.partition("*")[0]) == SHOWN and len(problem.answer) == TAKEN
        assert comes_to(problem, problem.answer) == comes_to(problem, problem.answer[::-1]) == 1


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("58", 1),  # 5 + 8
        ("94", 1),
        ("49", 1),
        ("85", 1),
        ("59", 0),  # 14
        ("67", 0),  # no 6 is shown
        ("5", 0),
        ("580", 0),
        ("", 0),
        ("5+", 0),
        ("5²", 0),
        ("5٨", 0),  # a digit of another script
    ],
)
def test_any_two_digits_with_the_sum_are_right(text: str, score: float) -> None:
    assert comes_to(Problem(0, "", "582947*13=", "58"), text) == score


def test_a_digit_counts_as_often_as_it_is_shown() -> None:
    assert comes_to(Problem(0, "", "512346*10=", "64"), "55") == 0
    assert comes_to(Problem(0, "", "515346*10=", "64"), "55") == 1
