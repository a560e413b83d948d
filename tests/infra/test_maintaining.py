"""``astraflow maintain`` and the maintain flow: they do what the core says, and say what they did."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from astraflow.query import open_run
from astraflow.records import Stopped
from infra.cli import app
from storage import open_store
from tests.query.conftest import RunWriter, write_run


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunWriter:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ASTRAFLOW_STORE", str(tmp_path / "store"))
    writer = RunWriter(open_store(str(tmp_path / "store")))
    write_run(writer)
    return writer


def objects(writer: RunWriter) -> list[str]:
    return [info.key for info in writer.store.list("hand/trajectories/")]


def test_a_dry_run_says_the_same_and_changes_nothing(writer: RunWriter) -> None:
    writer.decide(2, 9.0, {}, Stopped(reason="enough"))
    before = list(writer.store.list(""))
    dry = json.loads(CliRunner().invoke(app, ["maintain", "hand", "--dry-run", "--json"]).output)
    assert list(writer.store.list("")) == before
    done = json.loads(CliRunner().invoke(app, ["maintain", "hand", "--json"]).output)
    assert (dry["is_dry"], done["is_dry"], done["is_over"]) == (True, False, True)
    assert dry["gone"] == done["gone"]
    for one, other in zip(dry["copied"], done["copied"], strict=True):
        assert one == {name: value for name, value in other.items() if name != "bytes_after"}
    assert done["gone"]["orphans"]["objects"] == 4


def test_what_a_person_reads(writer: RunWriter) -> None:
    going = CliRunner().invoke(app, ["maintain", "--last"]).output.splitlines()
    assert going[0] == "hand goes on: only closed versions are copied, nothing is deleted"
    assert going[1].startswith("  policy solver, version 0: 3 objects of ")
    assert CliRunner().invoke(app, ["maintain", "hand"]).output.splitlines()[1:] == ["  nothing to do"]
    writer.decide(2, 9.0, {}, Stopped(reason="enough"))
    dry = CliRunner().invoke(app, ["maintain", "hand", "--dry-run"]).output
    assert "originals: 3 objects of" in dry and "would be deleted" in dry
    rows = open_run(f"{writer.store.url}/hand").trajectories().count_rows()
    for _ in range(3):
        over = CliRunner().invoke(app, ["maintain", "hand"]).output.splitlines()
    assert over == ["hand has stopped", "  nothing to do"]
    assert objects(writer) == []
    assert open_run(f"{writer.store.url}/hand").trajectories().count_rows() == rows


def test_all_runs_of_a_store_and_one_that_cannot_be_read(writer: RunWriter) -> None:
    other = RunWriter(writer.store, "second")
    write_run(other)
    writer.store.put("third/run.toml", b"name = ")
    found = json.loads(CliRunner().invoke(app, ["maintain", "--all", "--json"]).output)
    assert {report["run"]: bool(report["copied"]) for report in found} == {"hand": True, "second": True, "third": False}
    assert found[-1]["damaged"]


def test_a_run_is_never_maintained_unasked(writer: RunWriter) -> None:
    for arguments, kind in (([], "no run is named"), (["hand", "--all"], "--all names every run")):
        result = CliRunner().invoke(app, ["maintain", *arguments])
        assert result.exit_code != 0
        assert kind in str(result.exception)
    assert [info.key for info in writer.store.list("hand/compact/")] == []
