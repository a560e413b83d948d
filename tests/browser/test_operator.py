"""An operator at Prefect's pages: launches from the form, watches, pauses, resumes, cancels.

The figures that the pages show are compared with those counted from the store.
"""

from __future__ import annotations

import inspect
import re
import time
from pathlib import Path

import pytest
from playwright.sync_api import expect

from astraflow.config import Dataflow, Problems, RunConfig, Trainer
from flows.operate import operate
from tests.browser.ui import Operator

pytestmark = [pytest.mark.e2e, pytest.mark.operator, pytest.mark.timeout(900)]

NAME = str(RunConfig.model_fields["name"].description)
LR = str(Trainer.model_fields["lr"].description)
GROUP_SIZE = str(Dataflow.model_fields["group_size"].description)
SOURCE = str(Problems.model_fields["source"].description)
FORM = inspect.signature(operate.fn).parameters
ACTION = str(FORM["action"].default.description)


def test_the_form_is_the_recipe_and_a_finished_run_shows_its_figures(operator: Operator) -> None:
    page = operator.page
    operator.open_form("experiment", "small")
    assert operator.field(LR).input_value() == "0.001"
    assert operator.field(GROUP_SIZE).input_value() == "4"
    operator.shoot("1-form")

    operator.field(LR).fill("-1")
    operator.submit()
    expect(page.get_by_text(re.compile("config.trainer.lr.*-1 is less than")).first).to_be_visible()
    operator.shoot("2-refused")
    operator.field(LR).fill("0.001")
    operator.field(NAME).fill("Not A Name")
    operator.submit()
    expect(page.get_by_text(re.compile("config.name.*'Not A Name' does not match")).first).to_be_visible()

    operator.field(NAME).fill("first")
    flow_run = operator.submitted()
    operator.wait_for_figures("first", lambda figures: figures.state == "stopped", "the end of the run")
    operator.wait_for_state(flow_run, "Completed")
    expect(page.get_by_text("run:first", exact=True).first).to_be_visible()
    expect(page.get_by_text("first/experiment").first).to_be_visible()
    operator.shoot("3-flow-run")

    operator.open_run_page("first/trainer/solver")
    assert operator.figures_on_page() == operator.rows("first")
    figures = operator.figures("first")
    assert operator.figures_on_page()["step"] == ("6 / 6",)
    assert figures.steps == 6
    assert operator.heading() == "first: stopped (all policies have ended)"
    assert operator.picture_width() > 500
    operator.shoot("4-page-of-a-finished-run")

    operator.open_flow_run_named("first/trainer/solver")
    page.get_by_text("Artifacts", exact=True).last.click()
    expect(page.get_by_text("solver: step 6 of 6")).to_be_visible()
    operator.shoot("5-artifacts-of-a-trainer")


def test_values_that_only_the_run_can_refuse_are_named_on_the_flow_run(operator: Operator) -> None:
    operator.open_form("experiment", "small")
    operator.field(NAME).fill("unfit")
    operator.field(SOURCE).fill("/nowhere/problems.jsonl")
    flow_run = operator.submitted()
    operator.wait_for_state(flow_run, "Failed")
    expect(
        operator.page.get_by_text(re.compile("ConfigError: problems.options: a file takes no")).first
    ).to_be_visible()
    operator.shoot("6-failed-with-a-reason")


def test_watch_pause_resume_and_cancel(operator: Operator) -> None:
    page = operator.page
    operator.open_form("experiment", "endless")
    operator.field(NAME).fill("second")
    flow_run = operator.submitted()
    operator.wait_for_figures("second", lambda figures: figures.steps >= 2, "two steps")

    operator.open_run_page("second/pool/local")
    operator.wait_for_page(lambda table: int(table["step"][0].split(" ")[0]) >= 2, "a page with two steps")
    assert operator.picture_width() > 500
    operator.shoot("7-page-while-it-runs")
    run_page = page.url

    steer(operator, "second", "pause")
    operator.wait_for_figures("second", lambda figures: figures.state == "paused", "the pause")
    wait_for_standstill(operator, "second")
    page.goto(run_page)
    compare_while_it_stands(operator, "second")
    assert operator.heading().startswith("second: paused")
    operator.shoot("8-page-while-paused")

    before = operator.figures("second").steps
    steer(operator, "second", "resume")
    operator.wait_for_figures("second", lambda figures: figures.steps > before, "a step after the pause")

    operator.cancel(flow_run)
    operator.wait_for_state(flow_run, "Cancelled")
    operator.shoot("9-cancelled")
    page.goto(run_page)
    expect(page.locator("h1").first).to_contain_text("second: cancelled")
    operator.shoot("10-page-of-a-cancelled-run")
    left = time.monotonic() + 40
    while [process for process in operator.stack.processes() if is_flow_run(process.pid)]:
        assert time.monotonic() < left, "a cancelled run has left processes"
        time.sleep(0.5)


def steer(operator: Operator, run: str, action: str) -> None:
    """Through the form of the operate flow."""
    operator.open_form("operate", "local")
    operator.field("The run's name.").fill(run)
    operator.choose(ACTION, action)
    operator.wait_for_state(operator.submitted(), "Completed")


def wait_for_standstill(operator: Operator, run: str) -> None:
    """Until what was leased before the pause is played and trained."""
    still_since, last = time.monotonic(), operator.figures(run)
    while time.monotonic() - still_since < 4:
        time.sleep(0.5)
        now = operator.figures(run)
        if (now.steps, {name: own.parts for name, own in now.policies.items()}) != (
            last.steps,
            {name: own.parts for name, own in last.policies.items()},
        ):
            still_since, last = time.monotonic(), now


def compare_while_it_stands(operator: Operator, run: str) -> None:
    """Every figure of the page is the store's; those that go with the clock are the store's of some moment before."""
    clocks = ("time worked", "tokens/s trained")
    moments = [operator.rows(run)]

    def has_come(table: dict[str, tuple[str, ...]]) -> bool:
        moments.append(operator.rows(run))
        return all(table[label] == moments[0][label] for label in table if label not in clocks)

    table = operator.wait_for_page(has_come, "a page of the run as it stands")
    assert set(table) == set(moments[0])
    for label in clocks:
        assert table[label] <= moments[-1][label] or label.startswith("tokens"), label


def is_flow_run(pid: int) -> bool:
    """Whether a process of the stack executes a flow run, as server and runner do not."""
    try:
        return b"PREFECT__FLOW_RUN_ID=" in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
