"""``status --watch`` and ``report`` show the store's figures, and end when the run does."""

import json
import re
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from astraflow.follow import RunFollower
from astraflow.pages.regions import REGION_COLUMNS, regions
from astraflow.pages.rows import figure_rows
from astraflow.query import Run, open_run
from astraflow.records import Stopped
from infra.cli import app
from storage import open_store
from tests.query.conftest import RunWriter, write_run


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunWriter:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ASTRAFLOW_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("COLUMNS", "200")
    writer = RunWriter(open_store(str(tmp_path / "store")))
    write_run(writer)
    return writer


def run_of(writer: RunWriter) -> Run:
    return open_run(f"{writer.store.url}/hand")


def test_watching_shows_the_figures_of_the_page_until_the_run_is_over(writer: RunWriter) -> None:
    stopper = threading.Timer(1.5, lambda: writer.decide(2, 9.0, {}, Stopped(reason="enough")))
    stopper.start()
    result = CliRunner().invoke(app, ["status", "hand", "--watch", "--every", "0.3"])
    stopper.join()
    assert result.exit_code == 0, result.output
    looks = result.output.split("hand  ")[1:]
    assert len(looks) >= 2
    assert looks[0].startswith("running")
    assert looks[-1].startswith("stopped (enough)")
    for label, cells in figure_rows(run_of(writer).figures(), run_of(writer).config).rows:
        line = next(line for line in looks[-1].splitlines() if line.startswith(label + " "))
        assert all(cell in line for cell in cells), (line, cells)


@pytest.mark.parametrize("watch", [False, True])
def test_regions_are_shown(writer: RunWriter, *, watch: bool) -> None:
    if watch:  # it ends with the run
        writer.decide(2, 9.0, {}, Stopped(reason="enough"))
    view = RunFollower(writer.store, run_of(writer).config)
    rows = regions(run_of(writer), view)
    assert [row["region"] for row in rows] == ["local", "us", "eu"]
    lines = CliRunner().invoke(app, ["status", "hand", *(["--watch"] if watch else [])]).output.splitlines()
    for row in ({name: name for name in REGION_COLUMNS}, *rows):
        assert [*row.values()] in [re.split(r"  +", line.strip()) for line in lines], (row, lines)


def test_watching_as_json_is_a_line_a_look(writer: RunWriter) -> None:
    writer.decide(2, 9.0, {}, Stopped(reason="enough"))
    result = CliRunner().invoke(app, ["status", "hand", "--watch", "--json"])
    (line,) = result.output.splitlines()
    assert json.loads(line) == run_of(writer).figures().to_dict()


def test_the_report_is_written_where_it_is_wanted(writer: RunWriter, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["report", "hand"])
    assert result.output == "Written: hand.html\n"
    assert (tmp_path / "hand.html").read_text().startswith("<!doctype html>")
    said = json.loads(CliRunner().invoke(app, ["report", "--to", "other.html", "--json"]).output)
    assert said["file"] == str(tmp_path / "other.html")
    assert said["size_bytes"] == (tmp_path / "other.html").stat().st_size
    failed = CliRunner().invoke(app, ["report", "hand", "--to", "nowhere/x.html"])
    assert failed.exit_code != 0
    assert "--to" in str(failed.exception)
