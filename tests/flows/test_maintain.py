"""The maintain flow, as a schedule runs it: every run of a store, and what it did as its result."""

from pathlib import Path

import pytest

from astraflow.records import Stopped
from flows.maintain import maintain
from storage import open_store
from tests.query.conftest import RunWriter, write_run

pytestmark = pytest.mark.usefixtures("prefect_server")


def test_it_tidies_all_runs_of_its_store_or_one(tmp_path: Path) -> None:
    store = open_store(str(tmp_path / "store"))
    writers = [RunWriter(store, name) for name in ("one", "two")]
    for writer in writers:
        write_run(writer)
        writer.decide(2, 9.0, {}, Stopped(reason="enough"))
    (dry,) = maintain(store=store.url, run="two", dry_run=True)
    assert (dry["run"], dry["is_dry"], len(dry["copied"])) == ("two", True, 2)
    assert [len(report["copied"]) for report in maintain(store=store.url)] == [2, 2]
    assert [report["gone"]["originals"]["objects"] for report in maintain(store=store.url)] == [5, 5]
    assert list(store.list("one/trajectories/")) == []
