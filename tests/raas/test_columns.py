"""Columns of token ids and of versions are what the trajectories say, however they were converted."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.trajectory import from_runs, id_lists, is_constant, to_runs

IDS = st.lists(st.integers(0, 2**31 - 1), max_size=5)


@settings(deadline=None)
@given(st.lists(IDS, max_size=6), st.integers(1, 3))
def test_id_lists_come_back_equal_neighbours_included(lists: list[list[int]], repeats: int) -> None:
    repeated = [list(ids) for ids in lists for _ in range(repeats)]
    column = id_lists(repeated)
    column.validate(full=True)
    assert column.to_pylist() == repeated


@settings(deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=9))
def test_runs_come_back(values: list[int]) -> None:
    assert from_runs(*to_runs(values), len(values)) == values
    assert is_constant(values) == (len(set(values)) == 1)
