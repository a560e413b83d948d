"""How an answer is scored. Change it and run again: the processes of a run import this file when they start."""

from __future__ import annotations

from astraflow.problems import Problem

PARTIAL = 0.0  # what a wrong answer earns at most, by the share of its digits that are right


def score(problem: Problem, text: str) -> float:
    """1 for the right answer."""
    given, right = text.strip(), problem.answer
    if given == right:
        return 1.0
    matching = sum(a == b for a, b in zip(given, right, strict=False))
    return PARTIAL * matching / max(len(given), len(right), 1)
