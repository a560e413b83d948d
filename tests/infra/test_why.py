"""``why`` and ``replay`` on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from astraflow import open_run
from astraflow.query import Run
from astraflow.query.why import why
from infra.cli import app
from infra.commands.replaying import MEANINGS
from storage.local import LocalStore
from tests.simulation.world import recorded_run


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LocalStore:
    """A simulated run on a disk; some of its groups outlived their manager."""
    store = LocalStore(tmp_path / "store")
    source = next(run for run in map(recorded_run, range(50)) if {1, 2} <= set(managers(run).values())).store
    for info in source.list(""):
        store.put(info.key, source.get(info.key))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ASTRAFLOW_STORE", str(tmp_path / "store"))
    monkeypatch.setenv("COLUMNS", "200")
    return store


def managers(run: Run) -> dict[int, int]:
    """How many managers had to do with each group."""
    return {group: len({event.epoch for event in why(run, str(group)).events}) for _, group in run.fold.parts}


def call(*words: str) -> str:
    result = CliRunner().invoke(app, list(words))
    assert result.exit_code == 0, result.output
    return result.output


def test_why_tells_and_replay_proves_and_compares(home: LocalStore) -> None:
    parts = open_run(f"{home.url}/run").fold.parts.items()
    group = next(group for (policy, group), part in parts if policy == "solver" and part.state == "consumed")
    told = call("why", str(group), "--run", "run")
    assert told.startswith(f"group {group}\n") and "leased to pool-" in told and "\n→ " in told
    outcome = json.loads(call("why", f"solver/{group}", "--run", "run", "--json"))["outcome"]
    assert outcome.startswith("trained at step ")
    proved = call("replay", "run")
    assert "all are the same" in proved
    found = json.loads(call("replay", "run", "dataflow.curator.name=greso", "dataflow.replay.name=none", "--json"))
    assert found["records"] == found["identical_bytes"]
    assert found["recorded"]["steps"] == found["replayed"]["steps"]
    shown = call("replay", "run", "dataflow.order.name=lifo")
    figures = {line.split()[0] for line in shown.splitlines()[2:] if line.strip()}
    assert figures >= set(MEANINGS), "a figure is not explained, or not shown"
    assert figures <= {*MEANINGS, "recorded:", "Compare"}


def test_a_story_of_several_managers_says_whose_clock_it_is(home: LocalStore) -> None:
    run = open_run(f"{home.url}/run")
    counts = managers(run)
    one, several = (next(g for g, count in counts.items() if (count > 1) is many) for many in (False, True))
    assert "manager" not in call("why", str(one), "--run", "run").splitlines()[1]
    assert call("why", str(several), "--run", "run").splitlines()[1].split() == ["decision", "manager", "seconds"]


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("override", ["trainer.lr=1", "dataflow.group_size=3", "dataflow.curator.name=gresso"])
def test_what_cannot_be_replayed_is_said(override: str) -> None:
    result = CliRunner().invoke(app, ["replay", "run", override])
    assert result.exit_code != 0 and result.exception is not None
    assert "cannot be replayed" in str(result.exception) or "greso" in str(result.exception)
