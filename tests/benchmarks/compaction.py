"""What compaction buys: objects, bytes, and the time of a query, before and after; in a folder.

    python tests/benchmarks/compaction.py [--objects 400] [--rows 16] [--json]

Each object holds one group of ``rows`` answers of 128 tokens to a prompt of 128, as one flush of a pool would.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from pathlib import Path

import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run by path, beside the tests it borrows from

from astraflow import records as r
from astraflow.maintenance.maintain import maintain
from astraflow.query import Run
from astraflow.trajectory import SCHEMA
from storage import open_store
from storage.tables import encode_table, hash_bytes
from tests.query.conftest import RunWriter

POOL, VERSIONS = "pool-a-00000001", 4
QUERY = (
    "select version, avg(reward) as reward, sum(len(response_ids)) as tokens from trajectories group by all order by 1"
)


def write(writer: RunWriter, objects: int, rows: int) -> None:
    """A run that has stopped, with so many objects."""
    draws = random.Random(1)
    writer.config()
    cursor = writer.say(POOL, writer.joined("a", "us"))
    writer.decide(1, 0.0, {POOL: cursor}, writer.epoch(1), writer.leased(POOL, list(range(objects)), [0] * objects))
    parts = []
    for group in range(objects):
        version = group % VERSIONS
        prompt = [draws.randrange(32_000) for _ in range(128)]
        table = pa.Table.from_pylist([row(draws, prompt, group, version, episode) for episode in range(rows)], SCHEMA)
        data, path = encode_table(table), writer.keys.trajectory("solver", version, POOL, f"{group:032x}")
        writer.store.put(path, data)
        rewards = table["reward"].to_pylist()
        parts.append(
            r.PartsObject(
                policy="solver",
                path=path,
                size_bytes=len(data),
                hash=hash_bytes(data),
                groups=[group],
                row_starts=[0],
                row_counts=[rows],
                episodes=list(range(rows)),
                roles=["solver"] * rows,
                slots=[0] * rows,
                version_min=[version] * rows,
                version_max=[version] * rows,
                rewards=rewards,
                prompt_tokens=[128] * rows,
                response_tokens=[128] * rows,
            )
        )
    groups = list(range(objects))
    cursor = writer.say(POOL, r.Committed(groups=groups, attempts=[0] * objects, objects=parts))
    admitted = r.Admitted(groups=groups, attempts=[0] * objects, participant=POOL)
    writer.decide(1, 1.0, {POOL: cursor}, admitted, r.Stopped(reason="done"))


def row(draws: random.Random, prompt: list[int], group: int, version: int, episode: int) -> dict[str, object]:
    """One answer."""
    return {
        "trajectory_id": f"{group}-0-{episode}",
        "group_id": group,
        "episode": episode,
        "role": "solver",
        "prompt_ids": prompt,
        "response_ids": [draws.randrange(32_000) for _ in range(128)],
        "logprobs": [-draws.random() for _ in range(128)],
        "loss_mask": [True] * 128,
        "version_start": [0],
        "version_id": [version],
        "version_min": version,
        "version_max": version,
        "reward": float(draws.random() < 0.5),
    }


def measured(run: Run, repeats: int = 7) -> tuple[float, list[dict[str, object]]]:
    """The shortest time of the query, warm, and its answer."""
    found, times = [], []
    for _ in range(repeats + 1):
        begun = time.perf_counter()
        found = run.sql(QUERY).to_pylist()
        times.append(time.perf_counter() - begun)
    return min(times[1:]), found


def main() -> None:
    """Print what it comes to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--objects", type=int, default=400)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        writer = RunWriter(open_store(folder))
        write(writer, options.objects, options.rows)
        before_s, before = measured(Run(writer.store, "hand"))
        begun = time.perf_counter()
        report = maintain(writer.store, "hand")
        compaction_s = time.perf_counter() - begun
        maintain(writer.store, "hand")
        after_s, after = measured(Run(writer.store, "hand"))
        assert after == before, "a query has another answer"
        assert not list(writer.store.list("hand/trajectories/"))
    found = {
        "rows": options.objects * options.rows,
        "objects_before": options.objects,
        "objects_after": len(report.copied),
        "bytes_before": sum(int(str(entry["bytes_before"])) for entry in report.copied),
        "bytes_after": sum(int(str(entry["bytes_after"])) for entry in report.copied),
        "compaction_s": round(compaction_s, 2),
        "query_before_s": round(before_s, 3),
        "query_after_s": round(after_s, 3),
        "query_ratio": round(before_s / after_s, 1),
    }
    print(json.dumps(found, indent=2) if options.json else found)


if __name__ == "__main__":
    main()
