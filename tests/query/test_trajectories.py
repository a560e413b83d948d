"""Only committed rows of admitted groups are in the data set, whatever else lies in the store."""

from __future__ import annotations

import uuid
from collections import Counter
from typing import Any

import pyarrow.dataset as ds

from astraflow import records as r
from astraflow.query import Run
from astraflow.trajectory import SCHEMA
from storage import open_store

ADMITTED = {
    ("solver", 0, 0): 2,
    ("solver", 1, 0): 2,
    ("solver", 2, 0): 2,
    ("solver", 3, 1): 2,
    ("solver", 4, 0): 2,
    ("verifier", 0, 0): 3,
    ("verifier", 1, 0): 2,
    ("verifier", 2, 0): 2,
    ("verifier", 3, 1): 2,
}


def test_exactly_the_admitted_rows_show(run: Run) -> None:
    table = run.trajectories().to_table(columns=["policy", "group_id", "attempt"])
    assert Counter(tuple(row.values()) for row in table.to_pylist()) == ADMITTED


def test_rows_of_a_lost_attempt_are_left_out_of_an_object_with_rows_that_won(run: Run) -> None:
    pool_b = ds.field("group_id").isin([3, 4]) & (ds.field("attempt") == 0)
    table = run.trajectories().to_table(filter=pool_b, columns=["group_id", "reward"])
    assert table.to_pylist() == [{"group_id": 4, "reward": 0.0}, {"group_id": 4, "reward": 0.25}]


def test_a_count_without_columns_leaves_them_out_too(run: Run) -> None:
    assert run.trajectories().count_rows() == sum(ADMITTED.values())


def test_columns_are_the_object_s_the_hive_partition_and_the_path(run: Run) -> None:
    dataset = run.trajectories()
    assert dataset.schema.names == [*SCHEMA.names, "policy", "version", "path"]
    row = dataset.to_table(filter=ds.field("policy") == "verifier").to_pylist()[0]
    assert (row["version"], row["response_ids"], row["reward_parts"]) == (0, [4, 5, 6, 7], [("exact", row["reward"])])
    assert row["path"] in set(run.table("parts")["path"].to_pylist())


def test_a_run_without_commits_has_no_rows_but_all_columns(writer: Any) -> None:
    writer.config()
    run = Run(writer.store, "hand")
    assert run.trajectories().to_table().num_rows == 0
    assert run.sql("select policy, count(*) from trajectories group by all").num_rows == 0


def test_rows_of_a_region_s_own_store_are_in_with_the_filter(writer: Any) -> None:
    w, pool, far = writer, "pool-a-1", open_store(f"memory://{uuid.uuid4().hex}")
    w.config()
    w.decide(1, 0.0, {pool: w.say(pool, w.joined("a", "us"))}, w.epoch(1), w.leased(pool, [0, 1], [0, 0]))
    w.commit(pool, "solver", 0, {0: [0, 1]}, now=1.0)
    both = w.parts(pool, "solver", 0, {0: [1, 1], 1: [0.5, 1]}, {0: 0, 1: 0}, elsewhere=far)
    cursor = w.say(pool, r.Committed(groups=[0, 1], attempts=[0, 0], objects=[both]))
    w.decide(1, 2.0, {pool: cursor}, r.Admitted(groups=[1], attempts=[0], participant=pool))
    run = Run(w.store, "hand")
    rows = run.trajectories().to_table(columns=["group_id", "reward"]).to_pylist()
    assert sorted((row["group_id"], row["reward"]) for row in rows) == [(0, 0.0), (0, 1.0), (1, 0.5), (1, 1.0)]
    assert run.sql("select avg(reward) as reward from trajectories")["reward"].to_pylist() == [0.625]
