"""Rules for elastic pools: the paper's three zones as it states them, and ours, which looks at how full pools are."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.elastic import Bounds, Place, matched, spread, three_zone, wait_share

WIDE = Bounds(1, 1000)


def report(wait: float, **figures: float) -> dict[str, float]:
    """A load report whose trainer waited this share of its time."""
    return {"wait_s": 100 * wait, "step_s": 80 * (1 - wait), "publish_s": 20 * (1 - wait), **figures}


def test_the_wait_share_is_of_all_the_time() -> None:
    assert wait_share(report(0.25)) == pytest.approx(0.25)
    assert wait_share({}) == 0.0


@pytest.mark.parametrize(
    ("pools", "wait", "produced", "consumed", "wanted"),
    [
        (6, 0.269, 100, 100, 9),  # ceil(6 / 0.731)
        (10, 0.07, 100, 10, 10),  # in between: hold
        (10, 0.01, 100, 50, 6),  # ceil(1.1 * 10 * 0.5)
        (10, 0.01, 100, 100, 10),  # never more than there are
        (2, 0.99, 100, 100, 40),  # capped at 0.95
        (10, 0.0, 0, 0, 10),  # nothing was produced: hold
    ],
)
def test_three_zones(pools: int, wait: float, produced: float, consumed: float, wanted: int) -> None:
    assert three_zone(pools, report(wait, produced=produced, consumed=consumed), WIDE) == wanted


def test_matched_needs_no_starving_to_grow_and_no_guess_to_shrink() -> None:
    assert matched(10, report(0.0, leased=50, capacity=100), WIDE) == 6  # half of them is played, and a margin
    assert matched(10, report(0.0, leased=100, capacity=100), WIDE) == 11  # full: grow before the trainer waits
    assert matched(6, report(0.25, leased=60, capacity=60), WIDE) == 9


@settings(deadline=None)
@given(
    st.integers(1, 100),
    st.floats(0, 1),
    st.integers(0, 1000),
    st.integers(0, 1000),
    st.integers(0, 500),
    st.integers(0, 500),
)
def test_bounds_hold(pools: int, wait: float, produced: int, consumed: int, leased: int, capacity: int) -> None:
    figures = report(
        wait, produced=float(produced), consumed=float(consumed), leased=float(leased), capacity=float(capacity)
    )
    bounds = Bounds(2, 20)
    assert 2 <= three_zone(pools, figures, bounds) <= 20
    assert 2 <= matched(pools, figures, bounds) <= 20


def test_matched_goes_by_what_was_leased_on_average() -> None:
    assert matched(10, report(0.0, leased=100, leased_mean=50, capacity=100), WIDE) == 6


def test_pools_come_where_they_are_cheap_and_go_where_they_are_dear() -> None:
    places = [Place("home", 2.0, most=3), Place("far", 1.0, most=2), Place("spare", 2.0)]
    here = {"home": 1, "far": 1, "spare": 0}
    assert spread(here, 3, places) == {"home": 1, "far": 2, "spare": 0}
    assert spread(here, 6, places) == {"home": 3, "far": 2, "spare": 1}, "of equal costs the earlier place first"
    assert spread({"home": 2, "far": 2, "spare": 1}, 3, places) == {"home": 1, "far": 2, "spare": 0}
    held = [Place("home", 2.0, least=1, most=1), Place("far", 1.0, most=1)]
    assert spread({"home": 1, "far": 1}, 5, held) == {"home": 1, "far": 1}, "what nobody may take stays undone"


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.floats(0, 9)), min_size=1, max_size=4), st.integers(0, 40))
def test_counts_move_only_towards_the_total(regions: list[tuple[int, float]], total: int) -> None:
    counts = {str(n): count for n, (count, _) in enumerate(regions)}
    places = [Place(str(n), cost, most=8) for n, (_, cost) in enumerate(regions)]
    after = spread(counts, total, places)
    before, now = sum(counts.values()), sum(after.values())
    assert min(before, total) <= now <= max(before, total)
    moves = {(after[name] > counts[name]) - (after[name] < counts[name]) for name in counts} - {0}
    assert len(moves) <= 1
