"""What the pages show is what the store holds: the same rows, from the same figures, wherever they are shown."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from astraflow import records as r
from astraflow.follow import RunFollower
from astraflow.pages.html import report
from astraflow.pages.loads import COLUMNS, load_table
from astraflow.pages.page import REPORTS, page, table
from astraflow.pages.rows import clock, figure_rows
from astraflow.query import Run
from astraflow.query.loads import newest_reports
from astraflow.records import Status, encode
from storage import open_store
from tests.query.conftest import RunWriter, hand_written


@pytest.fixture
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return hand_written(RunWriter(open_store(str(tmp_path_factory.mktemp("pages") / "store"))))


def followed(run: Run) -> RunFollower:
    view = RunFollower(run.store, run.config)
    view.poll()
    return view


def markdown_table(text: str) -> dict[str, tuple[str, ...]]:
    """The first table of a page, by its first column."""
    block = text[text.index("| figure") :].split("\n\n", maxsplit=1)[0].splitlines()
    cells = [tuple(cell.strip() for cell in line.split("|")[1:-1]) for line in block]
    return {row[0]: row[1:] for row in cells if row[0] != "---"}


def test_rows_say_what_the_figures_are(run: Run) -> None:
    rows = figure_rows(run.figures(), run.config)
    assert rows.columns == ("whole run", "solver", "verifier")
    cells = dict(rows.rows)
    assert cells["step"] == ("2 / 800", "2 / 400", "0 / 400")
    assert cells["reward, last 20 batches"] == ("0.438", "0.438", "–")
    assert cells["staleness, mean / max"] == ("0.33 / 1", "0.33 / 1", "– / –")
    assert cells["wait ratio"] == ("37.5%", "37.5%", "–")
    assert cells["tokens/s trained"][1] == "3"
    assert cells["weights shipped"][1] == "1.1 kB"
    assert cells["against full copies"] == ("42.4% of 5.0 kB", "28.0% of 4.0 kB", "100.0% of 1.0 kB")
    assert cells["parts open / ready / batched"][2] == "1 / 2 / 2"
    assert cells["errors"] == ("1 timeout", "", "")
    assert cells["pools"][0] == "1 live, 1 quarantined"
    assert cells["rejected records"][0] == "1 lease, 1 undecodable"
    assert cells["policy"] == ("", "live", "live")


def test_one_policy_needs_one_column(run: Run) -> None:
    figures = run.figures()
    figures.policies = {"solver": figures.policies["solver"]}
    rows = figure_rows(figures, run.config)
    assert rows.columns == ("solver",)
    assert dict(rows.rows)["errors"] == ("1 timeout",)
    assert dict(rows.rows)["step"] == ("2 / 400",)
    figures.policies["solver"].paused = "by hand"
    assert dict(figure_rows(figures, run.config).rows)["policy"] == ("paused: by hand",)


def test_a_paused_region_shows_beside_its_number(run: Run) -> None:
    figures = run.figures()
    figures.pools_wanted, figures.pools_held = {"eu": 2, "us": 1}, ["us"]
    figures.regions_paused = {"us": "too dear"}
    cells = dict(figure_rows(figures, run.config).rows)
    assert cells["pools wanted"][0] == "eu 2, us 1 (held, paused: too dear)"


def test_curves_are_the_rows_of_the_figures(run: Run) -> None:
    curves, figures = run.curves(), run.figures()
    solver = curves["solver"]
    assert [value for _, value in solver.reward] == figures.policies["solver"].rewards
    assert [step for step, _ in solver.reward] == [1, 2]
    assert solver.wait_ratio == [(1, 0.25), (2, 0.5)]
    assert solver.response_tokens == [(1, 4.0), (2, 4.0)]
    assert max(value for _, value in solver.lag_max) == figures.policies["solver"].lag_max
    assert solver.delta_bytes == [(0, 1000.0), (1, 50.0), (2, 0.0)]
    assert curves["verifier"].reward == []


def test_the_page_holds_the_figures_the_picture_and_the_events(run: Run) -> None:
    status = Status(participant="pool-a-00000001", role="pool", state="live", waiting="le|ases", figures={})
    status.figures = {"tokens_per_s": 1234.4}
    run.store.put(run.keys.status(status.participant), encode(status))
    text = page(run, followed(run), events=["pool-b: crashed; restart 1 of 5"])
    assert text.startswith("# hand: running\n")
    rows = figure_rows(run.figures(), run.config)
    assert markdown_table(text) == {"figure": rows.columns, **dict(rows.rows)}
    assert len(re.findall(r"!\[[^]]+\]\(data:image/svg\+xml;base64,", text)) == 1
    assert "> waits: pool-a-00000001: le|ases" in text
    assert "| pool-a-00000001 | us | live | – | 1,234 | solver v3, verifier v0 | 0 | 4 of 6 | 1 failed |" in text
    assert "| pool-b-00000002 | eu | quarantined | – | – | solver v0, verifier v0 | – | 1 of 2 | 1 expired |" in text
    assert "| us | 0 | 1 | 0 | 0 | – | – | 1,234 | 0 | – |" in text
    assert "- pool-b: crashed; restart 1 of 5" in text
    assert page(run, followed(run), state="ended early: x").startswith("# hand: ended early: x\n")


def test_a_refreshed_run_shows_what_came_since(run: Run) -> None:
    before = figure_rows(run.figures(), run.config)
    again = Run(run.store, run.keys.run)
    assert figure_rows(again.refresh().figures(), run.config) == before
    assert run.curves() == again.curves()


class _Reader(HTMLParser):
    """Cells of the figures table, and everything that a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.cells: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href", "srcset", "data")]
        self._inside = (tag == "table" and ("id", "figures") in attrs) or (self._inside and tag != "svg")

    def handle_data(self, data: str) -> None:
        if self._inside and data.strip():
            self.cells.append(data.strip())


def test_page_and_report_show_the_newest_load_reports(tmp_path: Path) -> None:
    writer = RunWriter(open_store(str(tmp_path / "store")))
    hand_written(writer)
    for step in range(1, REPORTS + 3):
        figures = {"wait_ratio": step / 100, "pools": 1.0, "pools_advised": float(step)}
        writer.decide(2, 9.0 + step, {}, r.LoadReported(policy="solver", step=step, figures=figures, pools={}))
    run = Run(writer.store, "hand")
    shown = load_table(newest_reports(run, 100))
    assert [row["asked for"] for row in shown] == [str(step) for step in range(REPORTS + 2, 0, -1)]
    text = page(run, followed(run))
    section = text[text.index("## Load reports, newest first") :].split("\n\n")[1]
    assert section.splitlines() == table(COLUMNS, shown[:REPORTS])
    html = report(run)
    assert all(f"<td>{row['wait ratio']}</td>" in html for row in shown)


def test_the_report_is_one_file_with_the_same_figures(run: Run) -> None:
    text = report(run)
    reader = _Reader()
    reader.feed(text)
    assert reader.fetched == []
    assert "@import" not in text
    assert "url(" not in text
    assert "<script" not in text
    rows = figure_rows(run.figures(), run.config)
    expected = [*rows.columns, *(cell for label, cells in rows.rows for cell in (label, *cells) if cell)]
    assert reader.cells == expected
    assert text.count("<svg ") == 1
    assert "data_hash" in text


def test_clock() -> None:
    assert (clock(59), clock(61), clock(3661)) == ("00:59", "01:01", "1:01:01")
