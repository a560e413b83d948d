"""Load reports one by one: the same figures as the tables, each with a name of its own, and as text for the eye."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from astraflow import open_run
from astraflow import records as r
from astraflow.elastic import Zones
from astraflow.pages.loads import COLUMNS, POOLS, load_table
from astraflow.query.loads import LoadReport, load_reports, newest_reports
from astraflow.recipe import dump_toml

if TYPE_CHECKING:
    from tests.query.conftest import RunWriter


def said(policy: str, step: int, pools: int = 1, **figures: float) -> r.LoadReported:
    each = {f"pool-{n}": {"rate": float(n), "room": 1.0, "version": float(step)} for n in range(pools)}
    return r.LoadReported(policy=policy, step=step, figures=figures, pools=each)


def report(**figures: float) -> LoadReport:
    return LoadReport("0/x/solver", 0, "solver", 10, figures, {}, Zones())


def test_reports_are_those_of_the_tables_and_have_names_of_their_own(writer: RunWriter) -> None:
    writer.config()
    epoch = r.Epoch(n=1, holder="m", data_hash="", config_hash="", code="")
    writer.decide(1, 0.0, {}, epoch)
    writer.decide(1, 1.0, {}, said("solver", 10, wait_ratio=0.25, lag_0=3, produced=4), said("verifier", 10))
    writer.decide(1, 2.0, {}, said("solver", 20, pools=2, wait_ratio=0.5, lag_2=1, lag_10=2))
    run = open_run(f"{writer.store.url}/hand")
    found = list(load_reports(run))
    rows = run.table("loads").to_pylist()
    assert [
        (x.policy, x.step, x.decision, x.payload()["wait_ratio"], [*x.payload()["lags"].items()]) for x in found
    ] == [(row["policy"], row["step"], row["decision"], row["wait_ratio"], row["lags"]) for row in rows]
    assert [(x.decision, name, pool["rate"]) for x in found for name, pool in x.payload()["pools"].items()] == [
        (row["decision"], row["participant"], row["rate"]) for row in run.table("load_pools").to_pylist()
    ]
    assert len({x.id for x in found}) == 3
    assert [x.step for x in load_reports(run, since=1)] == [20]
    assert list(load_reports(run, since=2)) == []
    assert [x.id for x in newest_reports(run, 2)] == [x.id for x in reversed(found)][:2]
    assert [x.id for x in newest_reports(run, 9)] == [x.id for x in reversed(found)]
    again = open_run(f"{writer.store.url}/hand")
    assert [x.id for x in load_reports(again)] == [x.id for x in found]


@pytest.mark.parametrize(
    ("figures", "load"),
    [
        ({}, "unknown"),
        ({"wait_ratio": 0.11}, "starved"),
        ({"wait_ratio": 0.1}, "steady"),
        ({"wait_ratio": 0.0}, "ample"),
    ],
)
def test_what_a_report_calls_the_load(figures: dict[str, float], load: str) -> None:
    assert report(**figures).payload()["load"] == load


def test_a_run_says_itself_what_is_much(writer: RunWriter) -> None:
    config = writer.config()
    scale = config.scale.model_copy(update={"low": 0.3, "high": 0.6})
    writer.store.put(writer.keys.config, dump_toml(config.model_copy(update={"scale": scale})).encode())
    writer.decide(1, 0.0, {}, writer.epoch(1), *(said("solver", 10, wait_ratio=wait) for wait in (0.2, 0.5, 0.7)))
    assert [x.load for x in load_reports(open_run(f"{writer.store.url}/hand"))] == ["ample", "steady", "starved"]


def test_lags_are_numbers_and_nothing_else_that_begins_so() -> None:
    found = report(lag_mean=0.5, lag_max=10, lag_2=1, lag_10=2)
    assert list(found.lags.items()) == [(2, 1), (10, 2)]
    assert found.payload()["lags"] == {"2": 1, "10": 2}


def test_a_row_names_the_quickest_pools_and_counts_the_others() -> None:
    (row,) = load_table(
        [LoadReport("0/x/solver", 0, "solver", 1000, {"wait_ratio": 0.5}, dict(said("s", 7, 9).pools), Zones())]
    )
    assert row["pools, groups/s"].startswith("pool-8 8.00/s v7, room 1; pool-7 ")
    assert row["pools, groups/s"].endswith(f"and {9 - POOLS} more")
    assert (row["step"], row["wait ratio"], row["room / capacity"]) == ("1,000", "50.0%", "9 / 0")
    (bare,) = load_table([report()])
    assert set(COLUMNS) < set(bare)
    assert (bare["pools"], bare["asked for"]) == ("–", "–")
    (asked,) = load_table([report(pools=1, pools_advised=12)])
    assert (asked["pools"], asked["asked for"]) == ("1", "12")
    assert (bare["wait ratio"], bare["parts by lag"], bare["pools, groups/s"]) == ("–", "–", "–")
