"""What an operator does on Prefect's pages: fills a form, looks at a run's page, cancels. No shortcut by the API."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Locator, Page, TimeoutError, expect

from astraflow import open_run
from astraflow.follow import RunFollower
from astraflow.pages.rows import FigureRows, figure_rows
from astraflow.query.figures import RunFigures
from astraflow.query.run import Run
from storage.errors import ConfigError
from tests.e2e.stack import LocalStack

Table = dict[str, tuple[str, ...]]
SUBMITS = 3
PATIENCE_S = 240.0  # on a machine that does much else


class Operator:
    """One page of a browser, and the store to compare it with."""

    def __init__(self, page: Page, stack: LocalStack, screenshots: Path) -> None:
        self.page, self.stack = page, stack
        self._screenshots = screenshots

    def shoot(self, name: str) -> None:
        self.page.screenshot(path=self._screenshots / f"{name}.png")

    def shoot_section(self, name: str, heading: str) -> None:
        """The run's page from a heading on."""
        self.page.locator("h2", has_text=heading).first.scroll_into_view_if_needed()
        self.shoot(name)

    # --- forms ------------------------------------------------------------------------------------

    def open_form(self, flow: str, deployment: str) -> None:
        """From the list of deployments to the launch form, by clicks."""
        self.page.goto(f"{self.stack.stack.ui_url}/deployments")
        self.page.get_by_placeholder("Search deployments").first.fill(deployment)
        row = self.page.locator("tr", has=self.page.get_by_role("link", name=deployment, exact=True)).filter(
            has_text=flow
        )
        link = row.get_by_role("link", name=deployment, exact=True)
        with contextlib.suppress(TimeoutError):  # the search, coming late, draws the list anew and eats a click
            self._follow(link, "**/deployments/deployment/**", timeout_s=5)
        if "/deployments/deployment/" not in self.page.url:
            self._follow(link, "**/deployments/deployment/**")
        self.page.get_by_role("button", name="Run", exact=True).click()
        self.page.get_by_text("Custom run").click()
        expect(self.page.get_by_role("button", name="Submit")).to_be_visible()

    def _follow(self, link: Locator, url: str, timeout_s: float = 60) -> None:
        link.click()
        self.page.wait_for_url(url, timeout=timeout_s * 1000)

    def field(self, description: str) -> Locator:
        """The input under a description, which is the config schema's."""
        described = self.page.get_by_text(description, exact=True)
        return self.page.locator(".schema-form-property").filter(has=described).last.locator("textarea, input").first

    def choose(self, description: str, value: str) -> None:
        described = self.page.get_by_text(description, exact=True)
        self.page.locator(".schema-form-property").filter(has=described).last.locator(
            ".p-select-button__control"
        ).focus()
        self.page.keyboard.press("ArrowDown")
        self.page.locator(".p-select-option__text").get_by_text(value, exact=True).click()

    def submit(self) -> None:
        self.page.get_by_role("button", name="Submit").click()

    def submitted(self) -> str:
        """The flow run that the form has started: its page is opened; its id.

        Where the page says that something went wrong, as it does of a server that is too slow, it is pressed again.
        """
        left = re.compile(r"/deployments/deployment/[^/]+\?")  # the form leaves by itself first
        for _ in range(SUBMITS - 1):
            self.submit()
            try:
                self.page.wait_for_url(left, timeout=15_000)
                break
            except TimeoutError:
                expect(self.page.get_by_text("Something went wrong").first).to_be_visible()
        else:
            self.submit()
            self.page.wait_for_url(left)
        self.page.get_by_role("button", name="View run").first.dispatch_event("click")  # toasts lie over each other
        self.page.wait_for_url("**/runs/flow-run/**")
        return self.page.url.rpartition("/")[2].partition("?")[0]

    # --- flow runs --------------------------------------------------------------------------------

    def open_flow_run(self, id: str) -> None:
        self.page.goto(f"{self.stack.stack.ui_url}/runs/flow-run/{id}")

    def open_flow_run_named(self, name: str) -> None:
        """From the list of runs, by its name."""
        self.page.goto(f"{self.stack.stack.ui_url}/runs")
        self.page.get_by_role("link", name=name, exact=True).click()
        self.page.wait_for_url("**/runs/flow-run/**")

    def wait_for_state(self, id: str, state: str) -> None:
        """Until the flow run's page shows the state."""
        self.open_flow_run(id)
        expect(self.page.locator(".state-badge").first).to_have_text(state, timeout=PATIENCE_S * 1000)

    def cancel(self, id: str) -> None:
        """By the menu of its page."""
        self.open_flow_run(id)
        self.page.get_by_role("button", name="Cancel").click()
        self.page.locator(".p-modal").get_by_role("button", name="Confirm").click()

    # --- the run's page ---------------------------------------------------------------------------

    def open_run_page(self, flow_run_name: str) -> None:
        """From the flow run of any of the run's flows, by the link among its artifacts."""
        self.open_flow_run_named(flow_run_name)
        self.page.get_by_text("Artifacts", exact=True).last.click()
        self.page.get_by_text("to the run's live page").click()
        way = self.page.get_by_role("link", name="the run's live page")
        self.page.goto(way.get_attribute("href") or "")  # a click opens a tab of its own
        expect(self.page.get_by_alt_text("Curves of the run")).to_be_visible()

    def figures_on_page(self) -> Table:
        """The figures of the run's page, as it is after a reload."""
        self.page.reload()
        table = self.page.locator("table").first
        expect(table).to_be_visible()
        rows = [row.locator("th, td").all_inner_texts() for row in table.locator("tr").all()]
        return {row[0].strip(): tuple(cell.strip() for cell in row[1:]) for row in rows}

    def section(self, heading: str) -> list[dict[str, str]]:
        """The table below a heading of the run's page, as it is after a reload; no rows if there is none."""
        self.page.reload()
        expect(self.page.get_by_alt_text("Curves of the run")).to_be_visible()
        table = self.page.locator(f"xpath=//h2[starts-with(normalize-space(), '{heading}')]/following::table[1]")
        rows = [row.locator("th, td").all_inner_texts() for row in table.locator("tr").all()]
        return [dict(zip(rows[0], (cell.strip() for cell in row), strict=True)) for row in rows[1:]]

    def heading(self) -> str:
        return self.page.locator("h1").first.inner_text()

    def picture_width(self) -> int:
        """Natural width of the curves' image; 0 if the browser could not draw it."""
        picture = self.page.get_by_alt_text("Curves of the run")
        expect(picture).to_be_visible()
        return int(picture.evaluate("image => image.naturalWidth"))

    def wait_for_section(self, heading: str, done: Callable[[list[dict[str, str]]], bool], what: str) -> None:
        """Until the table below a heading of the run's page, looked at again and again, is so."""
        deadline = time.monotonic() + PATIENCE_S
        while not done(rows := self.section(heading)):
            assert time.monotonic() < deadline, f"waited {PATIENCE_S:g} s for {what}: {rows}"
            time.sleep(1)

    # --- the store --------------------------------------------------------------------------------

    def opened(self, run: str) -> tuple[Run, RunFollower]:
        """The run as the store has it now."""
        opened = open_run(f"{self.stack.folder / 'store'}/{run}")
        view = RunFollower(opened.store, opened.config)
        view.poll()
        return opened, view

    def figures(self, run: str) -> RunFigures:
        return open_run(f"{self.stack.folder / 'store'}/{run}").figures()

    def rows(self, run: str) -> Table:
        opened = open_run(f"{self.stack.folder / 'store'}/{run}")
        return as_table(figure_rows(opened.figures(), opened.config))

    def wait_for_figures(self, run: str, done: Callable[[RunFigures], bool], what: str) -> RunFigures:
        """Until the store's figures are so."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                figures = self.figures(run)
                if done(figures):
                    return figures
            except ConfigError as error:
                if error.kind != "no_run":
                    raise
            assert time.monotonic() < deadline, f"waited {PATIENCE_S:g} s for {what}"
            time.sleep(0.3)

    def wait_for_page(self, done: Callable[[Table], bool], what: str) -> Table:
        """Until the run's page, looked at again and again, is so."""
        deadline = time.monotonic() + PATIENCE_S
        while not done(table := self.figures_on_page()):
            assert time.monotonic() < deadline, f"waited {PATIENCE_S:g} s for {what}: {table}"
            time.sleep(1)
        return table


def as_table(rows: FigureRows) -> Table:
    return {"figure": rows.columns, **dict(rows.rows)}
