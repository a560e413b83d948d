"""A run whose pool lives in a region: a mirror flow copies each version there once, and the pool reads nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from astraflow.weights.inspection import verify
from storage import open_store
from tests.e2e.runs import RunUnderTest
from tests.e2e.stack import LocalStack

pytestmark = [pytest.mark.e2e, pytest.mark.parts]

STEPS = 6


def test_a_pool_reads_its_weights_in_its_region(stack: LocalStack, started: list[RunUnderTest], tmp_path: Path) -> None:
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
    there = {info.key: region.get(info.key) for info in region.list("")}
    versions = {info.key for info in run.store.list(keys.weights("solver")) if "/merged/" not in info.key}
    assert versions == {key for key in there if "/merged/" not in key}
    assert all(run.store.get(key) == data for key, data in there.items())
    assert list(verify(region, keys, "solver")) == []

    (mirror,) = run.statuses("mirror")
    assert (mirror.state, mirror.region, mirror.figures["version_solver"]) == ("left", "eu", STEPS)
    assert mirror.figures["copied_mb"] == pytest.approx(sum(map(len, there.values())) / 1e6, rel=0.2)
    (pool,) = run.statuses("pool")
    assert (pool.state, pool.region) == ("left", "eu")
