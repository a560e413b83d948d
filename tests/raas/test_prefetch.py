"""Leases ahead: as many as one turnaround plays, none where it is short, and no word about small differences."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.raas.prefetch import LEAST, RECENT, Prefetch


def see(prefetch: Prefetch, play_s: float, turnaround_s: float, count: int = RECENT, first: int = 0) -> None:
    for group in range(first, first + count):
        prefetch.played(group, began_s=100.0, ended_s=100.0 + play_s)
        prefetch.admitted(group, heard_s=100.0 + play_s + turnaround_s)


@pytest.mark.parametrize(
    ("capacity", "play_s", "turnaround_s", "ahead"),
    [
        (4, 6.0, 3.0, 2),  # half of a play: half of the places
        (4, 3.0, 3.0, 4),
        (4, 1.0, 30.0, 4),  # never more than its places
        (4, 60.0, 3.0, None),  # a fifth of a lease
        (64, 60.0, 3.0, None),  # three of 64 are not worth a word
        (64, 12.0, 3.0, 16),
        (1, 3.0, 3.0, 1),
        (4, 0.0, 0.0, None),
    ],
)
def test_it_asks_for_what_is_played_in_a_turnaround(
    capacity: int, play_s: float, turnaround_s: float, ahead: int | None
) -> None:
    prefetch = Prefetch(capacity)
    see(prefetch, play_s, turnaround_s)
    assert prefetch.asks() == ahead
    assert prefetch.asks() is None and prefetch.ahead == (ahead or 0), "it is said once"


def test_it_waits_for_some_groups_and_hears_only_of_its_own() -> None:
    prefetch = Prefetch(4)
    see(prefetch, 3.0, 3.0, count=LEAST - 1)
    prefetch.admitted(77, heard_s=999.0)
    assert prefetch.asks() is None
    prefetch.played(50, 0.0, 3.0)
    assert prefetch.asks() is None, "its turnaround is not known"
    prefetch.admitted(50, 6.0)
    prefetch.admitted(50, 999.0)  # a second time tells nothing
    assert prefetch.asks() == 4


def test_a_number_is_taken_back_when_the_way_is_short_again_but_not_for_a_little() -> None:
    prefetch = Prefetch(4)
    see(prefetch, 4.0, 2.0)
    assert prefetch.asks() == 2
    see(prefetch, 4.0, 1.1)
    assert prefetch.asks() is None
    see(prefetch, 4.0, 0.9)
    assert prefetch.asks() == 1
    see(prefetch, 4.0, 0.0)
    assert prefetch.asks() == 0


def test_one_slow_group_changes_nothing() -> None:
    prefetch = Prefetch(4)
    see(prefetch, 4.0, 0.1)
    see(prefetch, 4.0, 400.0, count=3)
    assert prefetch.asks() is None


def test_groups_that_nobody_admits_are_forgotten() -> None:
    prefetch = Prefetch(2)
    for group in range(1000):
        prefetch.played(group, 0.0, 1.0)
    assert len(prefetch._ended) <= RECENT + 4


@given(
    capacity=st.integers(1, 200),
    times=st.lists(st.tuples(st.floats(0, 1e4), st.floats(0, 1e4)), min_size=1, max_size=80),
)
def test_what_it_asks_for_is_always_possible_and_holds_no_more_than_a_turnaround_plays(
    capacity: int, times: list[tuple[float, float]]
) -> None:
    prefetch = Prefetch(capacity)
    for group, (play_s, turnaround_s) in enumerate(times):
        see(prefetch, play_s, turnaround_s, count=1, first=group)
        before, asked = prefetch.ahead, prefetch.asks()
        assert 0 <= prefetch.ahead <= capacity
        assert asked is None or (asked == prefetch.ahead != before)
