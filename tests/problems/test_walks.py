"""The small task of the benchmark of two policies: its problems can be done, and only ways that arrive are paid."""

from __future__ import annotations

from astraflow.problems import Problem
from tests.benchmarks.walks import STEPS, arrivals, arrives, walk, walks


def test_every_problem_can_be_done_as_its_answer_says() -> None:
    problems = walks(0, 500)
    assert len({problem.prompt for problem in problems}) == 500 and walks(0, 500) == problems != walks(1, 500)
    for problem in problems:
        steps, _, goal = problem.prompt.rstrip("=").partition("*")
        assert len(problem.answer) == len(steps) == STEPS and problem.answer[-1] == goal
        assert arrives(problem, problem.answer) == 1.0


def test_any_way_is_paid_and_nothing_else() -> None:
    assert walk([3, 7, 2, 5], (1, 1, -1, -1)) == "3083"
    problem = Problem(0, "p", "3725*3=", "3083")
    assert arrivals([3, 7, 2, 5], 3) == ["3083", "3683", "7083"]
    assert all(arrives(problem, way) == 1.0 for way in ("3083", "3683", "7083"))
    for wrong in ("3084", "3023", "308", "30833", "", "x", "3 083", "3085"):
        assert arrives(problem, wrong) == 0.0
