"""Evaluations: one table of rounds, the same on page, in report and terminal, and equal to the store's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from astraflow import open_run
from astraflow import records as r
from astraflow.dataflow.scores import summary
from astraflow.follow import RunFollower
from astraflow.pages.evaluations import evaluations, rounds
from astraflow.pages.html import report
from astraflow.pages.page import ROUNDS, page
from infra.cli import app
from storage import open_store
from tests.query.conftest import RunWriter


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunWriter:
    monkeypatch.setenv("ASTRAFLOW_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("COLUMNS", "200")
    writer = RunWriter(open_store(str(tmp_path / "store")))
    writer.config()
    writer.decide(1, 0.0, {}, writer.epoch(1))
    return writer


def play(
    writer: RunWriter,
    number: int,
    low: int,
    high: int,
    scores: list[list[float]],
    *,
    name: str = "held",
    missing: int = 0,
) -> r.EvalReported:
    """One round from its start to its report."""
    reported = r.EvalReported(
        evaluation=name,
        round=number,
        low={"solver": low},
        high={"solver": high},
        problems=len(scores),
        missing=missing,
        figures=summary(scores, len(scores[0]), 1.0) if scores else {},
        reason="deadline" if missing else "complete",
    )
    begun = "version" if number else "start"
    writer.decide(1, 1.0, {}, r.EvalStarted(evaluation=name, round=number, versions={"solver": low}, reason=begun))
    writer.decide(1, 2.0, {}, reported)
    return reported


def said(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.output


def test_every_place_shows_the_same_rounds(writer: RunWriter) -> None:
    play(writer, 0, 0, 0, [[0.0, 1.0], [0.0, 0.0]])
    last = play(writer, 1, 4, 6, [[1.0, 1.0]], missing=1)
    play(writer, 0, 4, 4, [[1.0]], name="other")
    run = open_run(f"{writer.store.url}/hand")
    view = RunFollower(run.store, run.config)
    first, second, other = evaluations(run)
    assert first["round"] == "0: version 0"
    assert (first["played by"], first["problems"]) == ("solver v0", "2 of 2")
    assert first["avg@2"] == "0.250 [-0.240, 0.740]"  # the mean of 0.5 and 0, and 1.96 of its standard errors
    assert (second["played by"], second["problems"]) == ("solver v4–v6", "1 of 2 (deadline)")
    assert (other["avg@1"], other["avg@2"], first["avg@1"]) == ("1.000 [1.000, 1.000]", "–", "–")
    markdown = page(run, view)
    html = report(run)
    terminal, status = said("eval", "hand"), said("status", "hand")
    for row in (first, second, other):
        assert "| " + " | ".join(row.values()) + " |" in markdown
        assert "</td><td>".join([*row.values()][1:]) in html
        for text in (terminal, status):
            line = next(line for line in text.splitlines() if f" {row['played by']} " in line and row["round"] in line)
            assert all(cell in line for cell in row.values())
    told = json.loads(said("eval", "hand", "--json"))
    assert told == {"run": "hand", "evaluations": rounds(run)}
    assert told["evaluations"][1]["figures"] == last.figures
    assert told["evaluations"][1]["low"] == {"solver": 4}
    assert json.loads(said("status", "hand", "--json"))["evaluations"] == told["evaluations"]


def test_the_page_shows_the_newest_and_the_report_all(writer: RunWriter) -> None:
    for number in range(ROUNDS + 1):
        play(writer, number, number, number, [[1.0]])
    run = open_run(f"{writer.store.url}/hand")
    markdown = page(run, RunFollower(run.store, run.config))
    assert "| solver v0 |" not in markdown
    assert f"| solver v{ROUNDS} |" in markdown
    assert report(run).count("<td>solver v") == ROUNDS + 1 == len(evaluations(run))


def test_a_round_in_which_nothing_was_scored_is_shown(writer: RunWriter) -> None:
    play(writer, 0, 0, 0, [], missing=3)
    run = open_run(f"{writer.store.url}/hand")
    assert [row["problems"] for row in evaluations(run)] == ["0 of 3 (deadline)"]


def test_a_run_without_any_says_how_to_get_one(writer: RunWriter) -> None:
    assert "[evaluations.NAME]" in said("eval", "hand")
    assert json.loads(said("eval", "hand", "--json"))["evaluations"] == []
    run = open_run(f"{writer.store.url}/hand")
    assert "Evaluations" not in page(run, RunFollower(run.store, run.config)) + report(run) + said("status", "hand")
