"""How long a pool that joins a running run takes to its first trajectory, and how long a drained one takes to leave.

    python tests/benchmarks/elastic_join.py [--repeats 5] [--json]

A manager, a trainer and a first pool run in this process; each repeat starts one more pool as a process of its own and
drains it by the operator's wish. ``first_trajectory_s`` counts from the moment at which the pool's engine was loaded
with a verified version to its first group in the log; ``drain_s`` from the wish to ``Left``. Medians, and the worst.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from astraflow.bootstrap import create_run
from astraflow.config import RunConfig
from astraflow.dataflow.manager import run_manager
from astraflow.records import FactRecord, Left, Status, decode
from astraflow.trainer.loop import run_trainer
from astraflow.wishes import drain, stop
from storage import open_store
from storage.errors import NotFound
from storage.keys import RunKeys
from storage.log import NumberedLog
from storage.store import ObjectStore

CHILD = """
import asyncio, sys
from astraflow.raas.pool import run_pool
from astraflow.recipe import load_run_config
from storage import open_store
store = open_store(sys.argv[1])
asyncio.run(run_pool(store, load_run_config(store, "joining"), sys.argv[2], participant=sys.argv[3]))
"""
RUN = {
    "name": "joining",
    "policies": {"solver": {"model": "tiny-qwen3", "sampling": {"max_tokens": 4}}},
    "problems": {"source": "addition", "options": {"count": 500}},
    "dataflow": {"group_size": 4, "max_staleness": 4},
    "trainer": {"steps": 10**6, "batch_size": 8, "checkpoint_every": 10**6},
    "pools": {"first": {"capacity": 4}, "late": {"capacity": 8}},
}


def pool(url: str, name: str, participant: str) -> subprocess.Popen[bytes]:
    """A pool as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, url, name, participant], env={**os.environ, "OMP_NUM_THREADS": "1"}
    )


def until(done: Callable[[], object], limit_s: float = 300.0) -> None:
    """Wait until ``done``."""
    deadline = time.monotonic() + limit_s
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError("it did not come")
        time.sleep(0.02)


def first_trajectory_s(store: ObjectStore, keys: RunKeys, participant: str) -> float:
    """What the pool's status says, 0 before it knows."""
    try:
        status = decode(store.get(keys.status(participant)), Status, where=participant)
    except NotFound:
        return 0.0
    return status.figures.get("first_trajectory_s", 0.0)


def has_left(store: ObjectStore, keys: RunKeys, participant: str) -> bool:
    """Whether its last fact is in its log."""
    log, seq = NumberedLog(store, lambda n: keys.outbox(participant, n)), 0
    while (data := log.read(seq)) is not None:
        if any(isinstance(fact, Left) for fact in decode(data, FactRecord, where=participant).facts):
            return True
        seq += 1
    return False


def measure(repeats: int, folder: Path) -> dict[str, float]:
    """The figures."""
    store, keys = open_store((folder / "store").as_uri()), RunKeys("joining")
    config = create_run(store, RunConfig.model_validate({**RUN, "store": store.url}))
    threads = [
        threading.Thread(target=run_manager, args=(store, config), kwargs={"holder": "benchmark"}, daemon=True),
        threading.Thread(target=run_trainer, args=(store, config, "solver"), daemon=True),
    ]
    for thread in threads:
        thread.start()
    children = [pool(store.url, "first", "pool-first-1")]
    joins, drains = [], []
    try:
        until(lambda: first_trajectory_s(store, keys, "pool-first-1") > 0)
        for number in range(repeats):
            name = f"pool-late-{number}"
            children.append(pool(store.url, "late", name))
            until(lambda name=name: first_trajectory_s(store, keys, name) > 0)  # type: ignore[misc]
            joins.append(first_trajectory_s(store, keys, name))
            begun = time.monotonic()
            drain(store, "joining", name, reason="measured")
            until(lambda name=name: has_left(store, keys, name))  # type: ignore[misc]
            drains.append(time.monotonic() - begun)
            print(f"{name}: joined in {joins[-1]:.2f} s, left in {drains[-1]:.2f} s", file=sys.stderr, flush=True)
        stop(store, "joining", reason="measured", timeout_s=300)
        for thread in threads:
            thread.join()
    finally:
        for child in children:
            child.kill()
            child.wait()
    return {
        "first_trajectory_s": round(statistics.median(joins), 3),
        "first_trajectory_worst_s": round(max(joins), 3),
        "drain_s": round(statistics.median(drains), 3),
        "drain_worst_s": round(max(drains), 3),
        "repeats": repeats,
    }


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description="Time of a joining pool to its first trajectory.")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(given.repeats, Path(folder))
    print(json.dumps(figures) if given.json else "\n".join(f"{name:26} {value}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
