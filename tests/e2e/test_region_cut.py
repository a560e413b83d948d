"""A region that is cut off from the store and from Prefect for two minutes: the run goes on, and the region comes back.

Its leases are played elsewhere meanwhile, what it hands in late has no second effect, and its mirror catches up.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from astraflow.config import RunConfig
from astraflow.recipe import load_run_config
from astraflow.records import Admitted, Batched, DecisionRecord, Dropped, Expired, Leased, decode
from astraflow.weights.inspection import verify
from infra.s3_server import S3Server
from storage import open_store
from tests.e2e.region import RegionUnderTest, committed, region
from tests.e2e.runs import RunUnderTest, until, wait_for
from tests.e2e.stack import LocalStack
from tests.line import Cut, Line, line
from tests.simulation.invariants import check_run

pytestmark = [pytest.mark.e2e, pytest.mark.parts, pytest.mark.s3, pytest.mark.timeout(1200)]

CUT_S = 120.0
SILENCE_S = 20


@contextlib.contextmanager
def far_region(stack: LocalStack, s3: S3Server, folder: Path) -> Iterator[tuple[RegionUnderTest, list[Line]]]:
    """The region, and the lines by which it reaches the store and Prefect's server."""
    with contextlib.ExitStack() as opened:
        store, server = (
            opened.enter_context(line(str(url.hostname), int(url.port or 80)))
            for url in (urlsplit(s3.endpoint), urlsplit(stack.stack.api_url))
        )
        own = {**s3.environment, "AWS_ENDPOINT_URL": store.endpoint, "PREFECT_API_URL": f"{server.endpoint}/api"}
        yield opened.enter_context(region(stack, folder, **own)), [store, server]


@pytest.mark.parametrize("how", ["refuses", "hangs"])
def test_a_region_that_is_cut_off_comes_back(
    how: Cut, stack: LocalStack, s3_server: S3Server, s3_store_url: str, started: list[RunUnderTest], tmp_path: Path
) -> None:
    with far_region(stack, s3_server, tmp_path / "west") as (west, lines):
        run = RunUnderTest(stack, f"cut-{how}", s3_store_url)
        started.append(run)
        run.hold()
        bucket = tmp_path / "west-bucket"
        run.start("far", "trainer.steps=100000", f"dataflow.silence_s={SILENCE_S}", f"regions.west.store={bucket}")
        wait_for(lambda: [pool.state for pool in run.statuses("pool")] == ["playing"] * 2, run, "both pools to join")
        run.let_go()
        wait_for(lambda: committed(run, "west") > 4 and committed(run, "local") > 4, run, "both pools to play")

        run.hold()  # so that it holds leases when it is cut off
        wait_for(lambda: holds(run, "pool-west"), run, "the region to hold leases")
        for each in lines:
            each.cut(how)
        run.let_go()
        steps, cut_at = [run.steps], len(run.records)
        for _ in range(4):
            time.sleep(CUT_S / 4)
            steps.append(run.steps)
        mended_at = len(run.records)
        for each in lines:
            each.mend()
        assert all(later > earlier for earlier, later in itertools.pairwise(steps)), f"the run stood still: {steps}"
        mended = time.monotonic()
        until(lambda: plays(run, mended_at), "the region to play again")
        print(f"{how}: plays again {time.monotonic() - mended:.1f} s after the cut, steps {steps}")
        had = committed(run, "west")
        wait_for(lambda: committed(run, "west") > had + 8, run, "the region to play on")
        stack.astraflow("stop", run.name, "--store", run.store_url).ok()
        for answer in run.answers():
            answer.ok()

        flow_runs = [f for child in ("pool-west", "mirror-west") for f in west.flow_runs(run, child)]
        print([(f["name"], f["state_type"]) for f in flow_runs])
        assert {f["state_type"] for f in flow_runs} <= {"COMPLETED", "CANCELLED"}
        assert not [status for status in run.view().statuses.values() if status.state == "failed"]
        check_whole(run, cut_at, mended_at)
        check_mirror(run, bucket)


def decisions(run: RunUnderTest) -> list[DecisionRecord]:
    return [decode(data, DecisionRecord, where="") for data in run.records]


def holds(run: RunUnderTest, pool: str) -> bool:
    """Whether a group is leased to the pool that has not come back from it."""
    held: set[int] = set()
    for record in decisions(run):
        for decision in record.decisions:
            if isinstance(decision, Leased) and decision.pool.startswith(pool):
                held.update(decision.groups)
            elif isinstance(decision, Admitted | Expired | Dropped):
                held.difference_update(decision.groups)
    return bool(held)


def plays(run: RunUnderTest, since: int) -> bool:
    """Whether a group of the region was admitted that was leased after decision ``since``."""
    said = [decision for record in decisions(run)[since:] for decision in record.decisions]
    leased = [d.groups for d in said if isinstance(d, Leased) and d.pool.startswith("pool-west")]
    admitted = [d.groups for d in said if isinstance(d, Admitted) and d.participant.startswith("pool-west")]
    return not set(itertools.chain(*leased)).isdisjoint(itertools.chain(*admitted))


def check_whole(run: RunUnderTest, cut_at: int, mended_at: int) -> None:
    """Nothing lost, nothing twice; and what the region held when it was cut off was played elsewhere."""
    config: RunConfig = load_run_config(run.store, run.name)
    counts = check_run(run.store, config)
    assert counts["Stopped"] == 1
    expired: set[int] = set()
    elsewhere: set[int] = set()
    for record in decisions(run)[cut_at:mended_at]:
        for decision in record.decisions:
            if isinstance(decision, Expired) and decision.pool.startswith("pool-west"):
                expired.update(decision.groups)
            if isinstance(decision, Admitted) and decision.participant.startswith("pool-local"):
                elsewhere.update(decision.groups)
    assert expired and expired <= elsewhere, f"expired {expired}, played elsewhere {elsewhere}"
    trained = [
        group for record in decisions(run) for d in record.decisions if isinstance(d, Batched) for group in d.groups
    ]
    assert len(trained) == len(set(trained)), "a group was trained on twice"
    whole = run.opened()
    (rows,) = whole.sql("select count(*) as n, count(distinct trajectory_id) as ids from trajectories").to_pylist()
    assert rows["n"] == rows["ids"], "a trajectory is there twice"


def check_mirror(run: RunUnderTest, bucket: Path) -> None:
    """The mirror went on after the cut: it has what the run's store has."""
    there = open_store(str(bucket))
    copied = {info.key for info in there.list("") if info.key.endswith("manifest.json")}
    assert copied == {i.key for i in run.store.list(run.keys.weights("solver")) if i.key.endswith("manifest.json")}
    assert list(verify(there, run.keys, "solver")) == []
