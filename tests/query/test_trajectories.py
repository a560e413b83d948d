"""Only committed rows of admitted groups are in the data set, whatever else lies in the store."""

from __future__ import annotations

from collections import Counter

import pyarrow.dataset as ds

from astraflow.query import Run
from astraflow.trajectory import SCHEMA

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


def test_a_run_without_commits_has_no_rows_but_all_columns(writer) -> None:  # type: ignore[no-untyped-def]
    writer.config()
    run = Run(writer.store, "hand")
    assert run.trajectories().to_table().num_rows == 0
    assert run.sql("select policy, count(*) from trajectories group by all").num_rows == 0
