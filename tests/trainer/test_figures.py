"""What the table of steps has of every step, by name: what the page about training promises."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from astraflow.trainer.loop import run_trainer

PAGE = Path(__file__).parents[2] / "docs" / "trainer.md"
ELSEWHERE = {"gpu_peak_mb", "teacher_kl", "behaviour_weight"}  # with a GPU; of `distill`; of losses with π_p

WANTED = {
    "loss and its parts": {"loss", "policy_loss", "reference_kl"},
    "ratio": {"ratio_mean", "ratio_min", "ratio_max", "clipped_share", "trained_share"},
    "staleness": {"lag_mean", "lag_max", "stale_share"},
    "behaviour against trainer": {"behaviour_k1", "behaviour_k3", "mismatch_mean", "mismatch_max"},
    "gradient": {"grad_norm", "step_refused", "lr"},
    "entropy": {"entropy", "surprise"},
    "time": {"wait_s", "step_s", "publish_s", "version_write_s", "tokens_per_s"},
    "memory": {"rss_mb", "peak_rss_mb"},
    "bytes": {"delta_bytes", "full_bytes"},
}


@pytest.fixture(scope="module")
def promised():
    """The names in the page's section."""
    section = PAGE.read_text(encoding="utf-8").split("## What a step says", 1)[1].split("\n## ", 1)[0]
    first = section.split("\n\n`trackers", 1)[0]
    return set(re.findall(r"`([a-z_0-9]+)`", first)) - {"steps", "mismatch_by_pool"}


@pytest.fixture
def rows(make_run):
    run = make_run(steps=3, kl={"weight": 0.1}, loss={"name": "m2po"}, minibatches=2)
    run.decide(*[run.batched(n) for n in range(3)])
    run_trainer(run.store, run.config, "solver")
    objects = [run.store.get(run.keys.step("solver", step)) for step in (1, 2, 3)]
    return [pq.read_table(pa.BufferReader(data)).to_pylist()[0] for data in objects]


def test_every_step_has_every_figure(rows, promised):
    assert [row["step"] for row in rows] == [1, 2, 3]
    names = {name for group in WANTED.values() for name in group}
    assert names | ELSEWHERE <= promised
    for row in rows:
        assert promised - ELSEWHERE <= row.keys()
        assert all(math.isfinite(row[name]) for name in promised - ELSEWHERE)
        assert row["grad_norm"] > 0 and row["entropy"] > 0 and row["rss_mb"] > 0 and row["tokens_per_s"] > 0
        assert row["ratio_min"] < row["ratio_mean"] < row["ratio_max"]
        assert dict(row["mismatch_by_pool"]).keys() == {"local"}


def test_times_add_up(rows):
    for row in rows:
        whole_s = row["wait_s"] + row["step_s"] + row["publish_s"]
        assert row["tokens_per_s"] == pytest.approx(row["response_tokens"] / whole_s)
