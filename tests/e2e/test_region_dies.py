"""A region's worker is killed, alone or with all that it started; another one is started, and nothing is lost.

The region is cut off from nothing and is not this machine's stack, so the experiment learns of a death from the store.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.region import RegionUnderTest, committed, pools, region
from tests.e2e.runs import RunUnderTest, until, wait_for
from tests.e2e.stack import LocalStack

pytestmark = [pytest.mark.e2e, pytest.mark.kill, pytest.mark.parts, pytest.mark.timeout(900)]

STEPS = 40


@pytest.fixture
def west(stack: LocalStack, tmp_path: Path) -> Iterator[RegionUnderTest]:
    with region(stack, tmp_path / "west") as west:
        yield west


@pytest.fixture
def run(
    request: pytest.FixtureRequest, stack: LocalStack, west: RegionUnderTest, started: list[RunUnderTest]
) -> RunUnderTest:
    """A run that both pools have played for."""
    run = RunUnderTest(stack, request.node.name.removeprefix("test_").replace("_", "-")[:40])
    started.append(run)
    run.hold()
    run.start("far", f"trainer.steps={STEPS}", "dataflow.silence_s=15")
    wait_for(lambda: [pool.state for pool in run.statuses("pool")] == ["playing"] * 2, run, "both pools to join")
    run.let_go()
    wait_for(lambda: committed(run, "west") > 1 and committed(run, "local") > 1, run, "both pools to play")
    run.hold()
    return run


def test_a_pool_outlives_its_worker(run: RunUnderTest, west: RegionUnderTest) -> None:
    (before,) = pools(run, "west")
    west.kill_worker()
    had = committed(run, "west")
    run.let_go()
    wait_for(lambda: committed(run, "west") > had + 4, run, "the orphan to play on")
    west.start_worker()
    (answer,) = run.answers()
    answer.ok()
    run.check_finished(steps=STEPS, kills=True)
    (after,) = pools(run, "west")
    assert (after.participant, after.state) == (before.participant, "left")
    (flow_run,) = west.flow_runs(run, "pool-west")
    assert flow_run["state_type"] == "COMPLETED"


def test_a_region_that_loses_its_power_comes_back(run: RunUnderTest, west: RegionUnderTest) -> None:
    begun = time.monotonic()
    west.kill_all()
    west.start_worker()
    wait_for(lambda: len(pools(run, "west")) == 2 and pools(run, "west")[-1].state == "playing", run, "another life")
    print(f"away for {time.monotonic() - begun:.1f} s")
    had = committed(run, "west")
    run.let_go()
    wait_for(lambda: committed(run, "west") > had, run, "the new life to play")
    (answer,) = run.answers()
    answer.ok()
    run.check_finished(steps=STEPS, kills=True)


def test_what_a_dead_worker_had_taken_is_asked_for_again(
    stack: LocalStack, west: RegionUnderTest, started: list[RunUnderTest]
) -> None:
    run = RunUnderTest(stack, "taken")
    started.append(run)
    run.hold()
    run.start("far", "trainer.steps=4", "regions.west.start_timeout_s=60")
    until(lambda: [r["state_type"] for r in west.flow_runs(run, "pool-west")] == ["PENDING"], "a worker to take it")
    west.kill_all()
    west.start_worker()
    wait_for(lambda: [pool.state for pool in pools(run, "west")] == ["playing"], run, "another life")
    assert len(west.flow_runs(run, "pool-west")) == 2
    (answer,) = run.answers()
    answer.ok()
    run.check_finished(steps=4, kills=True)
