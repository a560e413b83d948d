"""The stored form of trajectories: what readers elsewhere rely on, and objects of before a column was added."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from astraflow.trajectory import SCHEMA

GOLDEN = [
    "trajectory_id: string", "group_id: int64", "problem_id: string", "episode: int32", "attempt: int32", "run: string",
    "pool: string", "region: string", "engine: string", "role: string", "slot: int32",
    "turns: list<item: struct<role: string, start: int32, end: int32, finish_reason: string, tool: string, "
    "error: string>>",
    "prompt_ids: list<item: int32>", "response_ids: list<item: int32>", "logprobs: list<item: float>",
    "loss_mask: list<item: bool>", "version_start: list<item: int32>", "version_id: list<item: int32>",
    "version_min: int32", "version_max: int32", "reward: float", "reward_parts: map<string, float>",
    "temperature: float",
    "sampler: struct<top_p: float, top_k: int32, min_p: float, stop: list<item: string>, seeds: list<item: uint64>>",
    "queue_s: float", "prefill_s: float", "decode_s: float", "environment_s: float",
    "created_at: timestamp[us, tz=UTC]", "error_kind: string", "error_message: string", "meta: map<string, string>",
]  # fmt: skip


def test_the_columns_are_those_that_readers_know() -> None:
    """Columns are added, with null for older objects; none is renamed, retyped or taken away."""
    assert [f"{field.name}: {field.type}" for field in SCHEMA] == GOLDEN


def test_objects_without_the_sampler_are_read_as_null(tmp_path: Path) -> None:
    older = pa.schema([field for field in SCHEMA if field.name != "sampler"])
    pq.write_table(
        pa.Table.from_pylist([{"trajectory_id": "0-1-0-solver-0", "reward": 1.0}], older), tmp_path / "a.parquet"
    )
    [row] = ds.dataset(tmp_path, schema=SCHEMA).to_table().to_pylist()
    assert (row["trajectory_id"], row["sampler"]) == ("0-1-0-solver-0", None)
