"""The region_window flow, as its schedules run it: by the clock of the window's zone, for every run of the store."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import flows.region_window as module
from astraflow.dataflow.manager import Manager
from astraflow.recipe import dump_toml, load_run_config
from astraflow.scale_view import ScaleView
from flows.region_window import region_window
from storage import open_store
from storage.keys import RunKeys
from storage.store import ObjectStore
from tests.recipe.test_region_hours import TWO
from tests.recipe.test_wishes import Place

pytestmark = pytest.mark.usefixtures("prefect_server")


class OnDisk(Place):
    """The same run in a folder, as a flow run finds it by its URL."""

    def __init__(self, folder: Path) -> None:
        super().__init__(TWO)
        self.store = open_store(str(folder))  # type: ignore[assignment]
        self.store.put(RunKeys("run").config, dump_toml(TWO).encode())
        self.manager = Manager(self.store, TWO, holder="m")
        self.manager.start()
        self.say("playing")
        self.manager.tick()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[ObjectStore]:
    with OnDisk(tmp_path) as place:
        yield place.store


def wanted(store: ObjectStore) -> int:
    view = ScaleView(store, load_run_config(store, "run"))
    view.poll()
    return view.counts()["west"]


def test_a_window_of_two_minutes_closes_and_opens(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = datetime(2026, 3, 2, 17, 0, tzinfo=UTC)  # 18:00 in Berlin
    clock = [begin]

    class Clock(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:
            return clock[0]

    monkeypatch.setattr(module, "datetime", Clock)

    def look(after: timedelta) -> tuple[str, int]:
        clock[0] = begin + after
        said = region_window("west", ["mon 18:00-18:02"], timezone="Europe/Berlin", store=store.url)
        return said["run"], wanted(store)

    assert look(timedelta(minutes=-1)) == ("closed", 0)
    assert look(timedelta()) == ("opened", 2)
    assert look(timedelta(seconds=119)) == ("as it was", 2)
    assert look(timedelta(minutes=2)) == ("closed", 0)
    assert look(timedelta(days=1)) == ("as it was", 0)
    assert look(timedelta(days=7, minutes=1)) == ("opened", 2)
