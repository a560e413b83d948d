"""One row of Parquet a step: the trainer's metrics, for queries. Advisory: the run does not depend on it."""

from __future__ import annotations

import os
import resource
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import torch

from astraflow.trainer.learner import StepResult
from astraflow.trainer.life import Life
from storage.errors import StoreError
from storage.tables import encode_table


def write_step_row(
    life: Life, batch: int, result: StepResult, skipped: Mapping[int, str], *, version: int, incarnation: int
) -> None:
    """Write the row of ``batch`` unless there is one; the row's ``step`` is the number of steps done after it.

    A row written by a later life, which trained the batch again, has version -1 and no times. A store that cannot be
    reached costs the row, not the step.
    """
    row: dict[str, pa.Array[Any]] = {
        "step": pa.array([batch + 1], pa.int64()),
        "batch": pa.array([batch], pa.int64()),
        "version": pa.array([version], pa.int64()),
        "incarnation": pa.array([incarnation], pa.int64()),
        "skipped": pa.array([sorted(skipped)], pa.list_(pa.int64())),
        "reasons": pa.array([[skipped[group] for group in sorted(skipped)]], pa.list_(pa.string())),
        "mismatch_by_pool": pa.array([list(result.mismatch_by_pool.items())], pa.map_(pa.string(), pa.float64())),
    }
    row.update({name: pa.array([value], pa.float64()) for name, value in sorted(result.metrics.items())})
    try:
        life.store.create(life.keys.step(life.policy, batch + 1), encode_table(pa.table(row)))
    except StoreError as error:
        life.beat.set(waiting=f"the row of step {batch + 1} was not written: {error}")


def memory_mb() -> dict[str, float]:
    """Memory of this process in MB: resident now and at most so far, and of its GPU at most if it has one."""
    peak_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = {"rss_mb": resident_mb(), "peak_rss_mb": peak_kb * 1024 / 1e6}
    if torch.cuda.is_available():
        found["gpu_peak_mb"] = torch.cuda.max_memory_allocated() / 1e6
    return found


def resident_mb() -> float:
    """Resident memory of this process in MB (0 where /proc is not)."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6
