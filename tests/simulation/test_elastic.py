"""The manager's own scaling in a simulated run: answers grow threefold, pools follow them, and nothing is lost."""

from __future__ import annotations

from typing import Any

import pytest

from astraflow.config import Dataflow, Policy, Pool, Problems, Region, RunConfig, Sampling, Scale, Trainer
from astraflow.dataflow.replay import verify_run
from astraflow.simulation import Report, Scenario, World
from tests.benchmarks.elastic import calibration, row_of
from tests.simulation.invariants import check_run

STEPS = 60


def config_of(pools: int, **scale: Any) -> RunConfig:
    """``pools`` sections in a dear region and one in a cheap one that takes only two."""
    return RunConfig(
        name="elastic",
        policies={"solver": Policy(model="none", sampling=Sampling(max_tokens=4000))},
        problems=Problems(source="none"),
        pools={"far": Pool(capacity=4, region="far"), **{f"p{n}": Pool(capacity=4) for n in range(pools - 1)}},
        regions={"local": Region(cost=2.0), "far": Region(cost=1.0, most_pools=2)},
        trainer=Trainer(steps=STEPS, batch_size=8),
        dataflow=Dataflow(group_size=2, max_staleness=4, report_every=4, silence_s=40),
        scale=Scale(**scale),
    )


def world_of(config: RunConfig, **change: Any) -> World:
    plans = [{"pool": name, "region": pool.region, "starts_in_s": 20} for name, pool in config.pools.items()]
    scenario = {
        "lengths": {"median": 230, "sigma": 0.4, "growth": [1.0, 3.0]},
        "engine": {"step_s": 0.02, "sequence_s": 0.001},
        "trainer": {"step_s": 9.0, "publish_s": 1.0, "gpus": 2},
        "pools": plans,
    }
    return World(config, Scenario.model_validate({**scenario, **change}))


def play(pools: int, **scale: Any) -> tuple[World, Report]:
    world = world_of(config_of(pools, **scale))
    return world, world.run()


@pytest.fixture(scope="module")
def fixed() -> dict[int, dict[str, float]]:
    return {pools: row_of(play(pools)[1]) for pools in (2, 6)}


@pytest.mark.parametrize("rule", ["matched", "three_zone"])
def test_pools_follow_the_need(rule: str, fixed: dict[int, dict[str, float]]) -> None:
    world, report = play(2, mode="act", rule=rule, cool_down=0, most=8)
    row = row_of(report)
    assert row["wait"] < 0.7 * fixed[2]["wait"], (row, fixed)
    assert row["wall_h"] < fixed[2]["wall_h"]
    assert row["pool_gpu_h"] < fixed[6]["pool_gpu_h"]
    counts = check_run(world.base.client(), world.config, has_data=False)
    assert counts["scaled_by_load"] >= 1
    assert verify_run(world.base.client(), world.keys, world.config) == report.records
    joined = [pool["region"] for pool in report.pools[2:]]
    assert joined[0] == "far" and joined.count("far") == 1, "the cheap region grows first, to its most"


def test_too_many_pools_are_let_go_and_their_work_is_not_lost() -> None:
    world, report = play(7, mode="act", cool_down=0)
    early = [pool for pool in report.pools if pool["gone_s"] < report.wall_s / 2]
    assert early and all(pool["region"] == "local" for pool in early), "the dear region shrinks first"
    assert report.steps == STEPS
    assert check_run(world.base.client(), world.config, has_data=False)["Stopped"] == 1


def test_scaling_goes_on_through_deaths_and_faults() -> None:
    config = config_of(2, mode="act", cool_down=4, most=6)
    world = world_of(
        config, network={"faults": 0.2}, manager_dies_at_s=[150, 400], trainer={"step_s": 9.0, "dies_at_s": [250]}
    )
    report = world.run()
    assert report.deaths == {"manager": 2, "trainer": 1}
    assert check_run(world.base.client(), world.config, has_data=False)["scaled_by_load"] >= 1


def test_the_table_counts_only_if_the_fixed_rows_are_the_papers() -> None:
    rows = {"fixed6": {"wall_h": 36.0, "wait": 0.26}, "fixed11": {"wall_h": 24.0, "wait": 0.03}}
    assert calibration(rows)["counts"]
    assert not calibration(rows | {"fixed11": {"wall_h": 24.0, "wait": 0.05}})["counts"]
    assert not calibration(rows | {"fixed6": {"wall_h": 38.0, "wait": 0.26}})["counts"]
