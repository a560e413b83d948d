"""Figures equal what the store holds: worked out by hand, and counted again by plain Python from the raw objects."""

from __future__ import annotations

import io
import json
from collections import Counter
from typing import Any

import pyarrow.parquet as pq
import pytest

from astraflow.query import Run, open_run


def test_figures_of_the_hand_written_run(run: Run) -> None:
    figures = run.figures()
    solver, verifier = figures.policies["solver"], figures.policies["verifier"]
    assert solver.rewards == [0.375, 0.5]
    assert (solver.reward_first20, solver.reward_last20, solver.reward_gain) == (0.4375, 0.4375, 0.0)
    assert (solver.steps, solver.rows_trained, solver.tokens_trained, solver.tokens_per_s) == (2, 6, 24, 3.0)
    assert (solver.lag_mean, solver.lag_max) == (pytest.approx(1 / 3), 1)
    assert (solver.wait_s, solver.step_s, solver.wait_ratio) == (3.0, 5.0, 0.375)
    assert (solver.versions, solver.delta_bytes, solver.full_bytes) == (4, 1120, 4000)
    assert solver.parts == {"consumed": 3, "dropped": 3, "open": 1}
    assert solver.drops == {"failed": 1, "skipped": 1, "zero_advantage": 1}
    assert (verifier.steps, verifier.rewards, verifier.reward_first20, verifier.lag_max) == (0, [], None, None)
    assert verifier.parts == {"batched": 2, "dropped": 1, "open": 1, "ready": 2}
    assert (figures.run, figures.state, figures.epochs, figures.decisions, figures.steps) == (
        "hand",
        "running",
        2,
        10,
        2,
    )
    assert (figures.seconds, figures.tokens_per_s, figures.wait_ratio) == (8.0, 3.0, 0.375)
    assert (figures.reward_last20, figures.lag_max, figures.lag_mean) == (0.4375, 1, pytest.approx(1 / 3))
    assert (figures.delta_bytes, figures.full_bytes) == (2120, 5000)
    assert figures.errors == {"timeout": 1}
    assert figures.rejected == {"lease": 1, "undecodable": 1}
    assert figures.drops == {"failed": 2, "skipped": 1, "zero_advantage": 1}
    assert figures.pools == {"live": 1, "quarantined": 1}


def test_figures_as_json_are_the_figures(run: Run) -> None:
    assert json.loads(run.figures().to_json()) == run.figures().to_dict()


def test_rewards_and_lags_equal_a_plain_count_over_raw_objects(run: Run) -> None:
    counted = plain_count(run)
    for policy, figures in run.figures().policies.items():
        assert figures.rewards == pytest.approx(counted[policy]["rewards"])
        assert figures.lag_max == max(counted[policy]["lags"], default=None)
        assert figures.tokens_trained == counted[policy]["tokens"]
        assert figures.rows_trained == len(counted[policy]["lags"])


def test_many_batches_show_the_first_and_the_last_twenty(writer: Any) -> None:
    w, pool, trainer = writer, "pool-a-1", "trainer-solver-1"
    w.config()
    w.decide(1, 0.0, {}, w.epoch(1))
    cursors = {trainer: w.say(trainer, w.published("solver", 0, 0, 1000)), pool: w.say(pool, w.joined("a", "us"))}
    w.decide(1, 0.1, cursors, w.leased(pool, list(range(50)), [0] * 50))
    for group in range(50):
        w.commit(pool, "solver", 0, {group: [group / 100, group / 100 + 0.5]}, now=1 + group)
        w.decide(1, 1 + group, {}, w.batched("solver", group, [group]))
    cursor = w.say(trainer, w.consumed("solver", 44))
    w.decide(1, 60.0, {trainer: cursor})
    figures = open_run(f"{w.store.url}/hand").figures().policies["solver"]
    expected = [group / 100 + 0.25 for group in range(45)]
    assert figures.rewards == pytest.approx(expected)
    assert figures.reward_first20 == pytest.approx(sum(expected[:20]) / 20)
    assert figures.reward_last20 == pytest.approx(sum(expected[25:]) / 20)
    assert figures.reward_gain == pytest.approx(0.25)
    assert figures.lag_max == 44


def plain_count(run: Run) -> dict[str, dict[str, Any]]:
    """The consumed batches of each policy, from JSON and Parquet as they lie, by another way than the fold's."""
    store, root = run.store, run.keys.root
    records = [json.loads(store.get(info.key)) for info in store.list(f"{root}decisions/")]
    cursors = Counter[str]()
    for record in records:
        for participant, cursor in record["cursors"].items():
            cursors[participant] = max(cursors[participant], cursor)
    facts = []
    for participant, cursor in cursors.items():
        for seq in range(cursor):
            data = store.get(f"{root}outbox/{participant}/{seq:010d}.json")
            facts += json.loads(data)["facts"] if data.startswith(b'{"') else []
    done = {}
    skipped: dict[tuple[str, int], list[int]] = {}
    for fact in facts:
        if fact["type"] == "Consumed":
            done[fact["policy"]] = max(fact["batch"], done.get(fact["policy"], -1))
            skipped.setdefault((fact["policy"], fact["batch"]), []).extend(fact.get("skipped", []))
    steps = {}
    for info in store.list(f"{root}weights/"):
        manifest = json.loads(store.get(info.key))
        steps[manifest["policy"], manifest["version"]] = manifest["step"]
    counted: dict[str, dict[str, Any]] = {
        policy: {"rewards": [], "lags": [], "tokens": 0} for policy in ("solver", "verifier")
    }
    for decision in (decision for record in records for decision in record["decisions"]):
        if decision["type"] != "Batched" or decision["n"] > done.get(decision["policy"], -1):
            continue
        policy, rewards = decision["policy"], []
        for group, place, start, count in zip(
            decision["groups"], decision["objects"], decision["row_starts"], decision["row_counts"], strict=True
        ):
            if group in skipped.get((policy, decision["n"]), []):
                continue
            data = store.get(decision["paths"][place])
            for row in pq.read_table(io.BytesIO(data)).to_pylist()[start : start + count]:
                assert row["group_id"] == group
                rewards.append(row["reward"])
                counted[policy]["lags"].append(decision["n"] - steps[policy, row["version_min"]])
                counted[policy]["tokens"] += len(row["response_ids"])
        if rewards:
            counted[policy]["rewards"].append(sum(rewards) / len(rewards))
    return counted
