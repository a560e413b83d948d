"""Columns of token ids and of versions are what the trajectories say, however they were converted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.trajectory import flag_lists, from_runs, id_lists, is_constant, number_lists, to_runs

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


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(-(2**31), 2**31 - 1))), st.lists(st.lists(st.floats(width=32, allow_nan=False))))
def test_lists_of_numbers_come_back(ids: list[list[int]], logprobs: list[list[float]]) -> None:
    for lists, kind in ((ids, np.int32), (logprobs, np.float32)):
        column = number_lists(lists, kind)  # type: ignore[arg-type]
        column.validate(full=True)
        assert column.to_pylist() == lists


@settings(deadline=None)
@given(st.lists(st.lists(st.booleans())))
def test_lists_of_flags_come_back(flags: list[list[bool]]) -> None:
    column = flag_lists(flags)
    column.validate(full=True)
    assert column.to_pylist() == flags


def test_a_number_that_the_column_cannot_hold_is_no_other_number() -> None:
    with pytest.raises(OverflowError):
        number_lists([[1], [2**31]], np.int32)
