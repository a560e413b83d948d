"""avg@k and pass@k against their definitions by counting, and intervals that hold what they promise."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.dataflow.scores import pass_at, summary


@given(st.integers(1, 7), st.data())
def test_pass_at_is_the_share_of_draws_with_a_pass(plays: int, data: st.DataObject) -> None:
    passed = data.draw(st.integers(0, plays))
    j = data.draw(st.integers(1, plays))
    outcomes = [index < passed for index in range(plays)]
    draws = list(itertools.combinations(outcomes, j))
    assert pass_at(j, plays, passed) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_a_summary_by_hand() -> None:
    figures = summary([[1.0, 0.0, 1.0], [0.0, 0.0, 0.0]], 3, 1.0)
    assert figures["avg@3"] == pytest.approx(1 / 3)
    assert figures["pass@1"] == pytest.approx(1 / 3)
    assert figures["pass@2"] == pytest.approx(0.5)
    assert figures["pass@3"] == 0.5
    assert set(figures) == {
        f"{n}{end}" for n in ("avg@3", "pass@1", "pass@2", "pass@3") for end in ("", "_low", "_high")
    }


def test_nothing_and_one_problem() -> None:
    assert summary([], 4, 1.0) == {}
    figures = summary([[0.5]], 1, 0.5)
    assert figures["avg@1"] == figures["avg@1_low"] == figures["avg@1_high"] == 0.5
    assert 0 < figures["pass@1_low"] < figures["pass@1"] == 1.0 == figures["pass@1_high"]


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    rng = random.Random(7)
    hits = {"avg@2": 0, "pass@1": 0, "pass@2": 0}
    for _ in range(1000):
        chances = [rng.choice([0.2, 0.8]) for _ in range(100)]
        figures = summary([[float(rng.random() < p) for _ in range(2)] for p in chances], 2, 1.0)
        truth = {"avg@2": 0.5, "pass@1": 0.5, "pass@2": (0.36 + 0.96) / 2}
        for name in hits:
            hits[name] += figures[f"{name}_low"] <= truth[name] <= figures[f"{name}_high"]
    assert hits["avg@2"] > 920 and hits["pass@1"] > 940 and hits["pass@2"] > 940
