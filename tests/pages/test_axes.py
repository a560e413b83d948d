"""Axes hold their values and have few, round, rising ticks."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.pages.axes import linear_axis, log_axis

VALUES = st.floats(min_value=-1e9, max_value=1e9)


@given(VALUES, VALUES, st.integers(3, 9))
def test_a_linear_axis_holds_its_values_between_round_ticks(a: float, b: float, count: int) -> None:
    low, high = sorted((a, b))
    axis = linear_axis(low, high, count=count)
    slack = 1e-6 * max(1.0, axis.high - axis.low)
    assert axis.low <= low + slack
    assert axis.high >= high - slack
    assert axis.low < axis.high
    assert list(axis.ticks) == sorted(set(axis.ticks))
    assert 2 <= len(axis.ticks) <= count + 2


@given(st.lists(st.floats(min_value=1e-3, max_value=1e15), min_size=1, max_size=20))
def test_a_log_axis_holds_its_values_and_has_few_ticks(values: list[float]) -> None:
    axis = log_axis(values)
    assert axis.low <= min(values) * 1.0001
    assert axis.high >= max(values) * 0.9999
    assert axis.low < axis.high
    assert 1 <= len(axis.ticks) <= 8
    for tick in axis.ticks:
        assert f"{tick:e}"[0] in "125"


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (0.0, 1.0, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (0.0, 4.0, ["0", "1", "2", "3", "4"]),
        (0.0, 0.0, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (0.12, 0.13, ["0.120", "0.122", "0.124", "0.126", "0.128", "0.130"]),
    ],
)
def test_labels_have_the_decimals_they_need(low: float, high: float, labels: list[str]) -> None:
    axis = linear_axis(low, high, count=5)
    assert [axis.label(tick) for tick in axis.ticks] == labels


def test_an_axis_of_steps_has_whole_ticks_and_ends_where_the_steps_end() -> None:
    axis = linear_axis(0.0, 3.0, count=8, whole=True, tight=True)
    assert axis.ticks == (0.0, 1.0, 2.0, 3.0)
    axis = linear_axis(0.0, 423.0, count=8, whole=True, tight=True)
    assert (axis.low, axis.high, axis.ticks[-1]) == (0.0, 423.0, 400.0)


def test_nothing_to_show_is_an_axis_too() -> None:
    assert math.isclose(log_axis([]).high, 10.0)
