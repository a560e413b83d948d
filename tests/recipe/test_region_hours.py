"""A region's hours against a real manager: pools are wanted while it is open, none while not; a person's word holds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from astraflow import wishes
from astraflow.config import Pool
from astraflow.recipe import load_run_config
from astraflow.region_hours import Kept, keep_hours
from astraflow.scale_view import ScaleView
from tests.recipe.test_wishes import CONFIG, Place

TWO = CONFIG.model_copy(
    update={"pools": {"home": Pool(), "far": Pool(region="west"), "far-too": Pool(region="west", hardware="l40s")}}
)


@pytest.fixture
def place() -> Iterator[Place]:
    with Place(TWO) as found:
        yield found


def counts(place: Place) -> tuple[dict[str, int], list[str]]:
    view = ScaleView(place.store, load_run_config(place.store, "run"))
    view.poll()
    return view.counts(), view.book.held


def kept(place: Place, region: str = "west", *, is_open: bool) -> list[str]:
    return [each.action for each in keep_hours(place.store, region, is_open=is_open, timeout_s=10)]


def test_a_night_and_a_day(place: Place) -> None:
    assert kept(place, is_open=True) == ["as it was"]
    assert counts(place) == ({"local": 1, "west": 2}, [])
    for action in ("closed", "as it was"):
        assert kept(place, is_open=False) == [action]
        assert counts(place) == ({"local": 1, "west": 0}, ["west"])
    for action in ("opened", "as it was"):
        assert kept(place, is_open=True) == [action]
        assert counts(place) == ({"local": 1, "west": 2}, [])


def test_a_number_that_a_person_asked_for_is_left_alone(place: Place) -> None:
    wishes.scale(place.store, "run", "west", 1, reason="mine", timeout_s=10)
    for is_open in (False, True):
        assert kept(place, is_open=is_open) == ["as it was"]
        assert counts(place) == ({"local": 1, "west": 1}, ["west"])


def test_a_run_is_not_left_without_a_pool_and_others_are_not_asked(place: Place) -> None:
    assert kept(place, is_open=False) == ["closed"]
    (action,) = kept(place, "local", is_open=False)
    assert "would have no pool left" in action
    assert counts(place)[0] == {"local": 1, "west": 0}
    assert kept(place, "elsewhere", is_open=False) == []


def test_runs_that_are_over_are_passed_by(place: Place) -> None:
    wishes.stop(place.store, "run", reason="enough", timeout_s=10)
    assert keep_hours(place.store, "west", is_open=False, timeout_s=10) == []
    assert Kept("run", "closed").run == "run"
