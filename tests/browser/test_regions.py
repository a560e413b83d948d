"""An operator scales, pauses and resumes a region in Prefect's form, and watches its pools on the run's page."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from astraflow.config import RunConfig
from astraflow.pages.loads import COLUMNS, load_table
from astraflow.pages.regions import pools, regions
from astraflow.query.loads import newest_reports
from tests.browser.test_operator import ACTION, FORM
from tests.browser.ui import PATIENCE_S, Operator

pytestmark = [pytest.mark.e2e, pytest.mark.operator, pytest.mark.timeout(900)]

NAME, REGION, POOLS = (str(FORM[name].default.description) for name in ("run", "region", "pools"))


@pytest.fixture
def run() -> str:
    """A name of its own for each try, since a stack is shared."""
    return f"west-side-{uuid.uuid4().hex[:4]}"


@pytest.fixture
def hold(operator: Operator) -> Iterator[Path]:
    """While this file is there, nothing that is being played comes to its end."""
    file = operator.stack.folder / "hold"
    yield file
    file.unlink(missing_ok=True)


def test_a_regions_pool_joins_plays_pauses_and_drains(operator: Operator, run: str, hold: Path) -> None:
    page = operator.page
    operator.open_form("experiment", "two-regions")
    operator.field(str(RunConfig.model_fields["name"].description)).fill(run)
    flow_run = operator.submitted()
    operator.wait_for_figures(run, lambda figures: figures.steps >= 2, "two steps")
    hold.touch()

    steer(operator, run, "scale", region="mars", pools="2", ends="Failed")
    expect(page.get_by_text("Pools are configured in: local, west").first).to_be_visible()
    operator.shoot("regions-1-refused")
    steer(operator, run, "scale", region="west", pools="2")
    expect(page.get_by_text(f"{run}: pools wanted are local 1, west 2; west stays so").first).to_be_visible()
    operator.shoot("regions-2-scaled")

    operator.open_run_page(f"{run}/pool/west")
    operator.wait_for_section("Regions", lambda rows: is_so(rows, wanted="2 (held)", live="2"), "the pool to join")
    operator.shoot_section("regions-3-joined", "Regions")
    let_play(operator, run, hold, lambda now: min(now["west"].values(), default=0) > 0, "the new pool to play")
    steer(operator, run, "pause", region="west")
    before = leased(operator, run)
    let_play(operator, run, hold, lambda now: total(now, "local") >= total(before, "local") + 4, "the others to play")
    assert leased(operator, run)["west"] == before["west"], "a region that is paused was given groups"
    operator.open_run_page(f"{run}/pool/west")
    compare(operator, run)
    assert is_so(operator.section("Regions"), paused="paused in Prefect", live="2")
    operator.shoot_section("regions-4-paused", "Regions")

    steer(operator, run, "resume", region="west")
    let_play(operator, run, hold, lambda now: total(now, "west") > total(before, "west"), "the region to play again")
    steer(operator, run, "scale", region="west", pools="1")
    operator.open_run_page(f"{run}/pool/west")
    operator.wait_for_section("Regions", lambda rows: is_so(rows, wanted="1 (held)", draining="1"), "the drain")
    operator.shoot_section("regions-5-draining", "Regions")
    let_play(operator, run, hold, lambda _: is_so(regions(*operator.opened(run)), gone="1 left"), "the pool to leave")
    operator.wait_for_section("Regions", lambda rows: is_so(rows, live="1", gone="1 left"), "the pool to leave")
    hold.unlink()

    operator.wait_for_figures(run, lambda figures: figures.state == "stopped", "the end of the run")
    operator.wait_for_state(flow_run, "Completed")
    operator.open_run_page(f"{run}/pool/west")
    assert operator.heading() == f"{run}: stopped (all policies have ended)"
    assert operator.figures_on_page() == operator.rows(run)
    assert operator.figures_on_page()["step"] == ("120 / 120",)
    compare(operator, run)
    opened, _ = operator.opened(run)
    assert operator.section("Load reports") == [
        {name: row[name] for name in COLUMNS} for row in load_table(newest_reports(opened, 8))
    ]
    operator.shoot_section("regions-6-over", "Regions")


def steer(operator: Operator, run: str, action: str, *, region: str, pools: str = "", ends: str = "Completed") -> None:
    """By the form of the operate flow."""
    operator.open_form("operate", "local")
    operator.field(NAME).fill(run)
    operator.choose(ACTION, action)
    operator.field(REGION).fill(region)
    if pools:
        operator.field(POOLS).fill(pools)
    operator.shoot(f"regions-form-{action}-{region}-{pools}")
    operator.wait_for_state(operator.submitted(), ends)


def is_so(rows: list[dict[str, str]], region: str = "west", **cells: str) -> bool:
    """Whether the row of a region has these cells."""
    (row,) = (row for row in rows if row["region"] == region)
    return cells.items() <= row.items()


Leased = dict[str, dict[str, int]]  # region -> pool -> groups


def leased(operator: Operator, run: str) -> Leased:
    """Groups that each pool was ever given."""
    found: Leased = {}
    for row in operator.opened(run)[0].table("pools").to_pylist():
        found.setdefault(row["region"], {})[row["participant"]] = row["leased"]
    return found


def total(groups: Leased, region: str) -> int:
    return sum(groups[region].values())


def let_play(operator: Operator, run: str, hold: Path, done: Callable[[Leased], bool], what: str) -> None:
    """Let the run go on until the groups that pools were given are so, then hold it up again."""
    hold.unlink()
    deadline = time.monotonic() + PATIENCE_S
    while not done(leased(operator, run)):
        assert time.monotonic() < deadline, f"waited {PATIENCE_S:g} s for {what}: {leased(operator, run)}"
        time.sleep(0.2)
    hold.touch()


def compare(operator: Operator, run: str) -> None:
    """Until the page, of a run that stands still, says of regions and pools what the store says."""
    for heading, rows in (("Regions", regions), ("Pools", pools)):
        operator.wait_for_section(heading, lambda found, rows=rows: found == rows(*operator.opened(run)), heading)
