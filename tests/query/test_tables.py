"""The tables of the hand-written run, against what was worked out by hand from its story."""

from __future__ import annotations

from typing import Any

import pytest

from astraflow.query import Run
from storage.errors import ConfigError

POOL_A, POOL_B = "pool-a-00000001", "pool-b-00000002"


def rows(run: Run, name: str, *columns: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in run.table(name).select(list(columns)).to_pylist()]


def test_each_part_is_in_the_state_its_story_ends_in(run: Run) -> None:
    columns = ("policy", "group_id", "problem", "pool", "attempt", "state", "reason", "rows", "reward_mean", "batch")
    assert rows(run, "parts", *columns) == [
        ("solver", 0, 100, "a", 0, "consumed", None, 2, 0.5, 0),
        ("solver", 1, 101, "a", 0, "consumed", None, 2, 0.25, 0),
        ("solver", 2, 102, "a", 0, "dropped", "zero_advantage", 2, 1.0, None),
        ("solver", 3, 103, "a", 1, "consumed", None, 2, 0.5, 1),
        ("solver", 4, 104, "b", 0, "dropped", "skipped", 2, 0.125, 1),
        ("solver", 5, 105, "a", 0, "dropped", "failed", 0, None, None),
        ("solver", 6, 106, "a", 0, "open", None, 0, None, None),
        ("verifier", 0, 100, "a", 0, "batched", None, 3, 2 / 3, 0),
        ("verifier", 1, 101, "a", 0, "batched", None, 2, 0.5, 0),
        ("verifier", 2, 102, "a", 0, "ready", None, 2, 0.25, None),
        ("verifier", 3, 103, "a", 1, "ready", None, 2, 0.75, None),
        ("verifier", 5, 105, "a", 0, "dropped", "failed", 0, None, None),
        ("verifier", 6, 106, "a", 0, "open", None, 0, None, None),
    ]


def test_a_part_says_where_its_rows_lie_and_what_they_weigh(run: Run) -> None:
    part = run.table("parts").to_pylist()[7]
    assert part["path"].startswith("hand/trajectories/policy=verifier/version=0/pool-a-")
    expected = {"prompt_tokens": 9, "response_tokens": 12, "version_min": 0, "version_max": 0, "uses": 1}
    assert {name: part[name] for name in expected} == expected


def test_batches_count_only_rows_that_are_trained_on(run: Run) -> None:
    columns = ("policy", "n", "parts", "rows", "skipped", "consumed", "step", "reward_mean", "lag_mean", "lag_max")
    assert rows(run, "batches", *columns) == [
        ("solver", 0, 2, 4, 0, True, 1, 0.375, 0.0, 0),
        ("solver", 1, 2, 2, 1, True, 2, 0.5, 1.0, 1),
        ("verifier", 0, 2, 5, 0, False, None, 0.6, 0.0, 0),
    ]
    times = ("wait_s", "step_s", "decision", "epoch", "decided_s", "response_tokens")
    assert rows(run, "batches", *times) == [(1, 3, 3, 1, 3.0, 16), (2, 2, 8, 2, 0.5, 8), (None, None, 3, 1, 3.0, 20)]


def test_versions_are_gapless_though_one_was_never_announced(run: Run) -> None:
    columns = ("policy", "version", "step", "incarnation", "kind", "delta_bytes", "full_bytes", "digest")
    assert rows(run, "versions", *columns) == [
        ("solver", 0, 0, 1, "anchor", 1000, 1000, "solver0"),
        ("solver", 1, 1, 1, "delta", 50, 1000, "solver1"),
        ("solver", 2, 2, 1, "delta", 70, 1000, "solver2"),
        ("solver", 3, 2, 2, "delta", 0, 1000, "solver3"),
        ("verifier", 0, 0, 1, "anchor", 1000, 1000, "verifier0"),
    ]


def test_steps_are_those_whose_consumption_is_part_of_the_run(run: Run) -> None:
    assert rows(run, "steps", "policy", "step", "reward_mean", "loss") == [
        ("solver", 1, 0.375, 0.5),
        ("solver", 2, 0.5, 0.25),
    ]


def test_pools_count_their_groups(run: Run) -> None:
    columns = ("participant", "region", "state", "leased", "committed", "admitted", "failed", "expired", "rows")
    assert rows(run, "pools", *columns) == [
        (POOL_A, "us", "live", 6, 6, 4, 1, 0, 17),
        (POOL_B, "eu", "quarantined", 2, 2, 1, 0, 1, 2),
    ]
    applied = [(dict(newest), applies) for newest, applies in rows(run, "pools", "applied", "applies")]
    assert applied == [({"solver": 3, "verifier": 0}, 3), ({"solver": 0, "verifier": 0}, 2)]


def test_decisions_are_in_order_with_their_words(run: Run) -> None:
    table = rows(run, "decisions", "seq", "epoch", "position", "type", "policy", "count")
    assert table[:4] == [
        (0, 1, 0, "Epoch", None, 1),
        (1, 1, 0, "Leased", None, 3),
        (1, 1, 1, "Leased", None, 2),
        (2, 1, 0, "Admitted", None, 2),
    ]
    assert table[-1] == (9, 2, 2, "Dropped", "verifier", 1)
    assert '"reason":"failed"' in run.table("decisions")["detail"].to_pylist()[-1]


def test_an_unknown_table_is_named_with_those_there_are(run: Run) -> None:
    with pytest.raises(ConfigError, match="parts, batches, steps, versions, decisions, pools"):
        run.table("part")
