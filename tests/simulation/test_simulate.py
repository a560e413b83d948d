"""Simulated runs: deterministic, whole under deaths and faults, and of the right speed where that can be reckoned."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from astraflow import records as r
from astraflow.config import Dataflow, Policy, Pool, Problems, RunConfig, Sampling, Trainer
from astraflow.dataflow.replay import verify_run
from astraflow.simulation import Report, Scenario, World, load_scenario, simulate
from astraflow.simulation.engine import Answer, VirtualEngine
from astraflow.simulation.scenario import EngineModel, Lengths, PoolPlan
from astraflow.simulation.timeline import Alarm, Timeline
from infra.cli import app
from storage.errors import ConfigError, DeadlineError

ROUGH = {
    "lengths": {"median": 60, "sigma": 1.0},
    "pools": [
        {"count": 2},
        {"speed": 0.3, "region": "far", "joins_at_s": 30},
        {"dies_at_s": 60},
        {"drains_at_s": 80},
        {"away": [(40, 90)]},
    ],
    "network": {"faults": 0.2},
    "trainer": {"dies_at_s": [50], "restart_s": 10, "step_s": 2},
    "manager_dies_at_s": [45, 100],
    "failures": 0.05,
}


def make_config(policies: tuple[str, ...] = ("solver",), *, capacity: int = 8, **flow: Any) -> RunConfig:
    return RunConfig(
        name="sim",
        policies={name: Policy(model="none", sampling=Sampling(max_tokens=1000)) for name in policies},
        problems=Problems(source="none"),
        pools={"local": Pool(capacity=capacity)},
        trainer=Trainer(steps=20, batch_size=8),
        dataflow=Dataflow(**{"group_size": 4, "silence_s": 20, **flow}),
    )


def test_the_same_seeds_give_the_same_report_and_others_do_not() -> None:
    scenario = Scenario.model_validate(ROUGH)
    first, second = simulate(make_config(), scenario), simulate(make_config(), scenario)
    assert first == second
    assert simulate(make_config(), scenario.model_copy(update={"seed": 1})) != first


@pytest.mark.parametrize("policies", [("solver",), ("solver", "verifier")])
def test_a_run_with_deaths_partitions_and_faults_is_whole_and_its_decisions_follow_from_its_logs(
    policies: tuple[str, ...],
) -> None:
    world = World(make_config(policies), Scenario.model_validate({**ROUGH, "rounds": 2, "retry": 0.5}))
    report = world.run()
    assert report.deaths == {"manager": 2, "pool": 1, "trainer": len(policies)}
    for figures in report.policies.values():
        assert figures["steps"] == 20
        assert 0 <= min(map(int, figures["lag_histogram"])) <= max(map(int, figures["lag_histogram"])) <= 2
        assert sum(figures["lag_histogram"].values()) == 20 * 8
    assert verify_run(world.base.client(), world.keys, world.config) == report.records


def test_the_parts_of_a_pool_that_died_are_played_elsewhere() -> None:
    scenario = Scenario.model_validate({"pools": [{"dies_at_s": 40}, {}], "lengths": {"median": 60}})
    report = simulate(make_config(), scenario)
    dead, alive = report.pools
    assert dead["gone_s"] == 40 and alive["groups"] > dead["groups"]
    assert report.steps == 20


def test_a_pool_that_cannot_reach_the_store_says_nothing_and_comes_back() -> None:
    scenario = Scenario.model_validate({"pools": [{"away": [[10, 60]]}, {}], "lengths": {"median": 60}})
    world = World(make_config(), scenario)
    said: list[int] = []

    def look() -> None:
        said.append(sum(1 for _ in world.base.client().list(f"sim/outbox/{world.pools[0].name}/")))

    for at in (12.0, 59.0, 66.0):
        world.timeline.at(at, look)
    report = world.run()
    assert said[0] == said[1] < said[2]
    assert report.steps == 20


def test_slow_hardware_gets_less_and_is_not_waited_for() -> None:
    scenario = Scenario.model_validate({"pools": [{"speed": 1.0}, {"speed": 0.25}], "lengths": {"median": 60}})
    fast, slow = simulate(make_config(capacity=4), scenario).pools
    assert fast["tokens"] > 2 * slow["tokens"] > 0


def test_a_controller_hears_reports_and_moves_pools() -> None:
    heard: list[r.LoadReported] = []

    def controller(world: World, report: r.LoadReported) -> None:
        heard.append(report)
        if len(heard) == 1:
            world.add_pool(PoolPlan(region="new"))
        if len(heard) == 2:
            world.drain(world.living()[0])

    world = World(make_config(report_every=5), Scenario.model_validate({"lengths": {"median": 60}}), (controller,))
    report = world.run()
    assert [h.step for h in heard] == [5, 10, 15, 20]
    assert {"wait_s", "step_s"} <= set(heard[0].figures)
    old, new = report.pools
    assert new["region"] == "new" and new["joined_s"] > 0 and new["episodes"] > 0
    assert old["gone_s"] < new["gone_s"]


def test_a_run_that_cannot_end_says_why() -> None:
    scenario = Scenario.model_validate({"pools": [{"dies_at_s": 1}], "limit_h": 0.2})
    with pytest.raises(DeadlineError, match="waiting for a pool"):
        simulate(make_config(), scenario)


# --- parts --------------------------------------------------------------------------------------


def test_an_engine_slows_down_with_its_batch_and_keeps_its_slots() -> None:
    timeline = Timeline()
    engine = VirtualEngine(timeline, EngineModel(step_s=1.0, sequence_s=0.5, slots=2), speed=2.0)
    done: list[tuple[str, float]] = []
    begun: list[tuple[str, float]] = []

    def answer(name: str, tokens: int) -> Answer:
        return Answer(tokens, lambda: done.append((name, timeline.now)), lambda: begun.append((name, timeline.now)))

    engine.submit(answer("a", 4), answer("b", 2), answer("c", 2))
    assert not timeline.run(lambda: False, 1e9)
    # Two at once: a step of (1 + 2 · 0.5) / 2 = 1 s. b ends at 2, c joins; a and c end at 4.
    assert begun == [("a", 0.0), ("b", 0.0), ("c", 2.0)]
    assert done == [("b", 2.0), ("a", 4.0), ("c", 4.0)]
    assert (engine.tokens, engine.busy) == (8, 8.0)


def test_a_cancelled_answer_frees_its_slot() -> None:
    timeline = Timeline()
    engine = VirtualEngine(timeline, EngineModel(step_s=1.0, sequence_s=0.0, slots=1), speed=1.0)
    done: list[str] = []
    first, queued, last = (Answer(5, lambda name=name: done.append(name), lambda: None) for name in "abc")
    engine.submit(first, queued, last)
    timeline.after(2.0, lambda: (engine.cancel(first), engine.cancel(queued)))
    timeline.run(lambda: False, 1e9)
    assert done == ["c"] and timeline.now == 7.0


def test_an_alarm_rings_once_at_the_earliest_time() -> None:
    timeline = Timeline()
    rung: list[float] = []
    alarm = Alarm(timeline, lambda: rung.append(timeline.now))
    for delay_s in (5.0, 2.0, 3.0):
        alarm.ring_in(delay_s)
    timeline.run(lambda: False, 100.0)
    assert rung == [2.0]


def test_lengths_are_as_published() -> None:
    law = Lengths(median=100, sigma=1.0).of(5000)
    rng = random.Random(1)
    drawn = sorted(law.draw(rng) for _ in range(20_000))
    assert drawn[10_000] == pytest.approx(100, rel=0.05)
    assert sum(drawn) / len(drawn) == pytest.approx(100 * 2.718281828**0.5, rel=0.05)
    assert Lengths().of(800).median == 100


# --- the command ----------------------------------------------------------------------------------


def test_the_command_plays_a_recipe(tmp_path: Path) -> None:
    world = tmp_path / "world.toml"
    world.write_text('lengths = { sigma = 1.0 }\npools = [{ region = "eu", count = 2 }]\n')
    arguments = ["simulate", "tiny-add", "trainer.steps=10", "world.trainer.step_s=0.5", "--world", str(world)]
    result = CliRunner().invoke(app, [*arguments, "--verify", "--json"])
    assert result.exit_code == 0, result.output
    report = json.loads(result.output)
    assert report["steps"] == 10 and len(report["pools"]) == 2 and report["pools"][0]["region"] == "eu"
    assert report["verified_records"] == report["records"] > 0
    assert report["lengths"]["solver"]["most"] == 4
    shown = CliRunner().invoke(app, arguments)
    assert "10 steps" in shown.output and "trainer waits" in shown.output


@pytest.mark.parametrize(
    "override", ["lengths.sigma=x y", "pools=3", "nope=1", "lengths.sigma.x=1", "trainer.step_s=-1"]
)
def test_a_wrong_scenario_is_refused(override: str) -> None:
    with pytest.raises(ConfigError):
        load_scenario(None, [override])


def test_a_scenario_that_is_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        load_scenario(tmp_path / "none.toml")


def test_reports_are_plain_values() -> None:
    report = simulate(make_config(), Scenario.model_validate({"lengths": {"median": 60}}))
    assert isinstance(report, Report)
    assert json.loads(json.dumps(report.to_json())) == report.to_json()
