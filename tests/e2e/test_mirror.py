"""A run whose pool lives in a region: weights are mirrored there, trajectories are written there, both are enough."""

from __future__ import annotations

from pathlib import Path

import pytest

from astraflow.maintenance.maintain import maintain
from astraflow.query import Run
from astraflow.weights.inspection import verify
from storage import ObjectStore, open_store
from tests.e2e.runs import RunUnderTest
from tests.e2e.stack import LocalStack

pytestmark = [pytest.mark.e2e, pytest.mark.parts]

STEPS = 6


def test_a_pool_reads_and_writes_in_its_region(stack: LocalStack, started: list[RunUnderTest], tmp_path: Path) -> None:
    run = RunUnderTest(stack, "mirrored")
    started.append(run)
    run.start(
        "small",
        f"regions.eu.store={tmp_path / 'eu'}",
        "regions.eu.mirror_timeout_s=600",  # longer than the run: what the mirror has not brought is not there
        "pools.local.region=eu",
        "weights.merge_every=[2, 4]",
    )
    (answer,) = run.answers()
    answer.ok()
    run.check_finished(steps=STEPS)

    region, keys = open_store(str(tmp_path / "eu")), run.keys
    there = {info.key: region.get(info.key) for info in region.list(keys.weights("solver"))}
    versions = {info.key for info in run.store.list(keys.weights("solver")) if "/merged/" not in info.key}
    assert versions == {key for key in there if "/merged/" not in key}
    assert all(run.store.get(key) == data for key, data in there.items())
    assert list(verify(region, keys, "solver")) == []

    (mirror,) = run.statuses("mirror")
    assert (mirror.state, mirror.region, mirror.figures["version_solver"]) == ("left", "eu", STEPS)
    assert mirror.figures["copied_mb"] == pytest.approx(sum(map(len, there.values())) / 1e6, rel=0.2)
    (pool,) = run.statuses("pool")
    assert (pool.state, pool.region) == ("left", "eu")
    check_rows(run, region)


def check_rows(run: RunUnderTest, region: ObjectStore) -> None:
    """All rows lie in the region's store, where queries and maintenance find them; the trainer has trained on them."""
    keys = run.keys
    written = {info.key for info in region.list(keys.trajectories)}
    assert written and not list(run.store.list(keys.trajectories)), "rows of the region left it, or there are none"
    assert {info.key.split("/")[1] for info in region.list("")} == {"weights", "trajectories"}
    opened = Run(run.store, run.name)
    assert {view.parts.store for view in opened.fold.objects.values()} == {region.url}
    before = rows(opened)
    admitted = sum(part.rows.stop - part.rows.start for part in opened.fold.parts.values() if part.object is not None)
    assert len(before) == admitted
    batches = [batch.decision for batch in opened.fold.batches.values() if batch.consumed]
    assert len(batches) == STEPS and not any(batch.skipped for batch in opened.fold.batches.values())
    assert {store for batch in batches for store in batch.stores} == {region.url}
    trained = {group for batch in batches for group in batch.groups}
    assert trained <= {row["group_id"] for row in before}

    maintain(run.store, run.name)
    maintain(run.store, run.name)  # originals go one maintenance after their copies
    assert len(list(region.list(keys.trajectories))) < len(written)
    assert not list(run.store.list(keys.compacts)) and list(region.list(keys.compacts))
    assert rows(Run(run.store, run.name)) == before


def rows(opened: Run) -> list[dict[str, object]]:
    """Every row that queries read, in one order."""
    found = opened.sql("select * from trajectories order by trajectory_id, path").to_pylist()
    assert opened.sql("select count(*) as n from trajectories")["n"].to_pylist() == [len(found)]
    return found
