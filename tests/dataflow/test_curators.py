"""Curators that learn: what they skip and prefer, and that their state comes back exactly."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.dataflow.algorithms import CURATORS
from astraflow.dataflow.curators import Curriculum, FilterSolved, Greso, running, to_ranges
from astraflow.dataflow.parts import Columns, PartRows
from tests.dataflow.drive import make_parts

SOLVED, FAILED, MIXED = (1.0, 1.0), (0.0, 0.0), (0.0, 1.0)


def rows(rewards: tuple[float, ...], version: int = 0) -> PartRows:
    return Columns(make_parts("pool-a", [0], version=version, rewards=rewards)).parts[0]


def drawn(curator: FilterSolved | Curriculum, count: int) -> Counter[int]:
    found: Counter[int] = Counter()
    for _ in range(count):
        problem = curator.select()
        assert curator.select() == problem
        curator.leased(problem)
        found[problem] += 1
    return found


@given(
    st.sampled_from(["filter_solved", "greso", "curriculum"]),
    st.lists(st.tuples(st.sampled_from([SOLVED, FAILED, MIXED]), st.integers(0, 3)), max_size=30),
)
def test_a_restored_curator_goes_on_as_the_first(name: str, outcomes: list[tuple[tuple[float, ...], int]]) -> None:
    first = CURATORS[name](problem_count=7, seed=5)
    for rewards, version in outcomes:
        problem = first.select()
        first.leased(problem)
        first.observe(problem, rows(rewards, version))
    second = CURATORS[name](problem_count=7, seed=5)
    second.restore(json.loads(json.dumps(first.state())))
    for rewards, version in [(MIXED, 4), (SOLVED, 4), (FAILED, 5), (SOLVED, 5)] * 3:
        problem = first.select()
        assert second.select() == problem
        for curator in (first, second):
            curator.leased(problem)
            curator.observe(problem, rows(rewards, version))
    assert first.state() == second.state()


def test_running_success() -> None:
    assert running(None, rows(MIXED)) == 0.5
    assert running(1.0, rows(FAILED)) == pytest.approx(0.9)


def test_solved_problems_are_skipped_until_all_are() -> None:
    curator = FilterSolved(problem_count=4, seed=0)
    curator.observe(2, rows(SOLVED))
    assert drawn(curator, 9) == {0: 3, 1: 3, 3: 3}
    for problem in (0, 1, 3):
        curator.observe(problem, rows(SOLVED))
    assert set(drawn(curator, 8)) == {0, 1, 2, 3}
    for _ in range(3):
        curator.observe(2, rows(FAILED))
    assert set(drawn(curator, 4)) == {2}


def test_greso_leases_problems_without_variance_rarely() -> None:
    curator = Greso(problem_count=2, seed=0)
    for _ in range(6):
        curator.observe(0, rows(SOLVED))
    found = drawn(curator, 2000)
    assert 0.02 < found[0] / found[1] < 0.09  # the floor of easy ones is 0.05
    curator.observe(0, rows(MIXED))
    found = drawn(curator, 100)
    assert found[0] == found[1]


def test_a_hard_problem_keeps_a_higher_floor_and_a_change_of_kind_starts_again() -> None:
    curator = Greso(problem_count=2, seed=0)
    for _ in range(6):
        curator.observe(0, rows(FAILED))
    found = drawn(curator, 2000)
    assert 0.25 < found[0] / found[1] < 0.35
    curator.observe(0, rows(SOLVED))
    assert curator.state()["streaks"] == {"0": ["easy", 1]}


def test_greso_adapts_once_a_version() -> None:
    curator = Greso(problem_count=4, seed=0)
    for rewards in (SOLVED, MIXED, MIXED, MIXED):
        curator.observe(0, rows(rewards, 0))
    curator.observe(1, rows(MIXED, 1))  # share of easy 1/4 ≥ 0.083, of hard 0 < 0.167
    assert curator.state()["p"] == {"easy": pytest.approx(0.49), "hard": pytest.approx(0.51)}
    assert curator.state()["window"] == {"easy": 0, "hard": 0, "all": 1}
    curator.observe(1, rows(MIXED, 0))  # an old version changes nothing
    assert curator.state()["window"]["all"] == 2


def test_a_curriculum_prefers_what_succeeds_half_of_the_time() -> None:
    curator = Curriculum(problem_count=4, seed=0)
    assert set(drawn(curator, 100)) == {0, 1, 2, 3}
    for problem, rewards in enumerate([SOLVED, FAILED, MIXED, SOLVED]):
        curator.observe(problem, rows(rewards))
    found = drawn(curator, 1000)
    assert found[2] > 750 and set(found) == {0, 1, 2, 3}
    for _ in range(7):
        curator.observe(0, rows(FAILED))
    assert sorted(curator.state()["middle"]) == [[0, 1], [2, 1]]
    for _ in range(20):
        for problem in (0, 2):
            curator.observe(problem, rows(SOLVED))
    assert curator.state()["middle"] == [] and len(drawn(curator, 100)) == 4


def test_a_curator_counts_what_it_selected_and_passed_over() -> None:
    curator = FilterSolved(problem_count=4, seed=0)
    curator.observe(2, rows(SOLVED))
    drawn(curator, 9)
    assert curator.counts() == {"selected": 9, "skipped": 3}
    assert Curriculum(problem_count=4, seed=0).counts() == {"selected": 0}


def test_when_all_is_solved_nothing_is_searched() -> None:
    curator = FilterSolved(problem_count=500, seed=0)
    for problem in range(500):
        curator.observe(problem, rows(SOLVED))
    curator.at = None  # type: ignore[assignment,method-assign]
    with pytest.raises(TypeError):
        curator.select()
    del curator.at
    calls = Counter()
    at = curator.at
    curator.at = lambda position: calls.update([position]) or at(position)  # type: ignore[method-assign]
    drawn(curator, 10)
    assert set(calls.values()) == {1} and len(calls) == 10


def test_a_snapshot_of_a_long_curriculum_is_short() -> None:
    curator = Curriculum(problem_count=100_000, seed=0)
    for problem in (3, 50_000, 99_999):
        curator.observe(problem, rows(SOLVED))
    assert len(json.dumps(curator.state())) < 500
    other = Curriculum(problem_count=100_000, seed=0)
    other.restore(json.loads(json.dumps(curator.state())))
    assert other.state() == curator.state() and drawn(other, 50) == drawn(curator, 50)


@given(st.lists(st.integers(0, 30), unique=True))
def test_ranges_come_back(numbers: list[int]) -> None:
    assert [n for start, count in to_ranges(numbers) for n in range(start, start + count)] == numbers
