"""Pools by region: each life in the state that its facts and its own word say, and no region is left out."""

from __future__ import annotations

import pytest

from astraflow import records as r
from astraflow.config import Pool
from astraflow.follow import RunFollower
from astraflow.pages.page import page, table
from astraflow.pages.regions import POOL_COLUMNS, REGION_COLUMNS, pools, regions
from astraflow.query import Run
from astraflow.recipe import dump_toml
from astraflow.records import Status, encode
from storage.memory import MemoryStore
from tests.query.conftest import RunWriter


class Regions(RunWriter):
    """A run of two regions that is written as it goes; what it shows now is asked for again and again."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        pools = {"home": Pool(), "far": Pool(region="west")}
        config = self.config().model_copy(update={"pools": pools})
        self.store.put(self.keys.config, dump_toml(config).encode())
        self.cursors: dict[str, int] = {}
        self.decide(1, 0.0, {}, self.epoch(1))

    def beat(self, name: str, state: str, region: str = "west", **figures: float) -> None:
        status = Status(participant=name, role="pool", state=state, region=region, figures=figures)
        self.store.put(self.keys.status(name), encode(status))

    def heard(self, name: str, *facts: r.AnyFact) -> None:
        """Facts, and the decision that takes them in."""
        self.cursors[name] = self.say(name, *facts)
        self.decide(1, 1.0, {name: self.cursors[name]})

    def join(self, name: str, region: str = "west", version: int = 0) -> None:
        joined = r.PoolJoined(pool=name, region=region, policies=["solver"], capacity=4, engine="x", data_hash="abc")
        self.heard(name, joined, self.applied("solver", version, version))

    def publish(self, version: int) -> None:
        self.heard("trainer-solver-1", self.published("solver", version, version, 10))

    def run(self) -> tuple[Run, RunFollower]:
        run = Run(self.store, self.keys.run)
        view = RunFollower(self.store, run.config)
        view.poll()
        return run, view

    def row(self, region: str = "west") -> dict[str, str]:
        (row,) = (row for row in regions(*self.run()) if row["region"] == region)
        return {name: text for name, text in row.items() if name != "region"}


@pytest.fixture
def there() -> Regions:
    return Regions()


def shown(row: dict[str, str]) -> str:
    """The counts of a region in one line."""
    return " ".join(row[name] for name in ("wanted", "live", "joining", "draining"))


def test_a_pool_joins_lags_drains_and_goes(there: Regions) -> None:
    assert shown(there.row()) == "1 0 0 0", "nothing has come yet"
    there.beat("pool-far-1", "starting")
    assert shown(there.row()) == "1 0 1 0"
    there.join("pool-far-1")
    there.beat("pool-far-1", "playing", groups=3, tokens_per_s=1234.4)
    there.publish(0)
    row = there.row()
    assert (shown(row), row["groups"], row["tokens/s"], row["behind"]) == ("1 1 0 0", "3", "1,234", "0")
    there.publish(1)
    there.publish(2)
    assert there.row()["behind"] == "2"
    there.heard("pool-far-1", there.applied("solver", 2, 2))
    assert there.row()["behind"] == "0"
    there.decide(1, 2.0, {}, r.Scaled(pools={"west": 2}, held=["west"], reason="more"))
    there.beat("pool-far-2", "waiting")
    assert shown(there.row()) == "2 (held) 1 1 0"
    there.join("pool-far-2", version=1)
    there.beat("pool-far-2", "playing", groups=4, tokens_per_s=100)
    row = there.row()
    assert (shown(row), row["groups"], row["tokens/s"], row["behind"]) == ("2 (held) 2 0 0", "7", "1,334", "1")
    there.heard("pool-far-2", r.Draining(reason="fewer"))
    there.beat("pool-far-2", "draining", groups=1, tokens_per_s=9)
    row = there.row()
    assert (shown(row), row["groups"], row["tokens/s"], row["behind"]) == ("2 (held) 1 0 1", "4", "1,234", "0")
    there.heard("pool-far-2", r.Left(reason="fewer"))
    row = there.row()
    assert (shown(row), row["gone"], row["groups"]) == ("2 (held) 1 0 0", "1 left", "3")
    assert shown(there.row("local")) == "1 0 0 0", "the other region has no part in it"


def test_who_died_is_not_on_its_way(there: Regions) -> None:
    there.join("pool-far-1")
    there.beat("pool-far-2", "starting")
    there.beat("pool-far-3", "failed")
    assert shown(there.row()) == "1 1 1 0"
    lost = [r.Wanted(what="lost", target=name) for name in ("pool-far-1", "pool-far-2")]
    there.heard("experiment-1", *lost)
    row = there.row()
    assert (shown(row), row["gone"], row["behind"]) == ("1 0 0 0", "1 lost", "–")
    there.decide(1, 3.0, {}, beats=["pool-far-2"])
    assert there.row()["joining"] == "1", "it was not dead after all"


def test_a_pause_is_said_with_its_reason(there: Regions) -> None:
    assert there.row()["paused"] == "–"
    there.decide(1, 2.0, {}, r.Paused(policy="", region="west", reason="too dear"))
    assert (there.row()["paused"], there.row("local")["paused"]) == ("too dear", "–")
    there.decide(1, 3.0, {}, r.Resumed(policy="", region="west"))
    assert there.row()["paused"] == "–"


def test_pools_that_live_come_first_and_those_that_have_gone_last(there: Regions) -> None:
    there.join("pool-a")
    there.heard("pool-a", r.Left(reason="done"))
    there.beat("pool-b", "starting", region="local")
    there.join("pool-c")
    there.heard("pool-c", r.Draining(reason="enough"))
    there.join("pool-d")
    there.beat("pool-a", "playing", groups=9)  # its last beat came before it left
    there.beat("pool-d", "playing", groups=2)
    rows = pools(*there.run())
    assert [(row["pool"], row["state"], row["groups"], row["admitted"]) for row in rows] == [
        ("pool-d", "live", "2 of 4", "0 of 0"),
        ("pool-b", "joining", "–", "–"),
        ("pool-c", "draining", "–", "0 of 0"),
        ("pool-a", "left", "–", "0 of 0"),
    ]


def test_a_region_that_is_in_no_recipe_shows_its_pools(there: Regions) -> None:
    there.join("pool-x", region="moon")
    assert shown(there.row("moon")) == "0 1 0 0"


def test_the_page_has_these_rows(there: Regions) -> None:
    there.publish(0)
    there.join("pool-far-1")
    there.beat("pool-far-2", "starting")
    run, view = there.run()
    text = page(run, view)
    for heading, columns, rows in (
        ("## Regions", REGION_COLUMNS, regions(run, view)),
        ("## Pools", POOL_COLUMNS, pools(run, view)),
    ):
        section = text[text.index(heading) :].split("\n\n")[1]
        assert section.splitlines() == table(columns, rows)
        assert {name for row in rows for name in row} == set(columns)


def test_nobody_joins_a_run_that_is_over(there: Regions) -> None:
    there.beat("pool-far-1", "starting")
    there.decide(1, 2.0, {}, r.Stopped(reason="done"))
    assert there.row()["joining"] == "0"
