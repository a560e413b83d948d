"""What the store in the middle costs in time: from lease to start, commit to batch, publish to applied.

    python tests/benchmarks/latency.py [--places local s3 s3_300ms] [--steps 30] [--json]

A real run (manager, pool and trainer as processes; the tiny model, 8-token answers) on a local folder, on an S3 server
on this machine, and on the same server behind a proxy that makes every round trip 300 ms. p50 and p95 in seconds of
- ``lease_to_start``: the decision record is there → the group's play begins;
- ``commit_to_batch``: the commit that completes a batch is there (or, if later, the step that made room for it is
  said) → the batch's decision record is there;
- ``publish_to_applied``: the version's manifest is there → the pool's engine samples from it;
and ``trainer_wait``, the share of the trainer's time in which it had no batch, the first step left out.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import sys
import tempfile
import urllib.parse
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from run_processes import read_stamps, start_run

from astraflow.bootstrap import create_run
from astraflow.recipe import load_recipe
from infra.s3_server import S3Server, s3_server
from storage import open_store

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # run by path, beside the tests it borrows from

from tests.line import line

RECIPE = """
name = "latency"
[problems]
source = "addition"
options = {{ digits = 2, count = 512 }}
[policies.solver]
model = "tiny-qwen3"
sampling = {{ max_tokens = 8 }}
[dataflow]
group_size = 8
max_staleness = {staleness}
prefetch = {prefetch}
silence_s = 120
[trainer]
steps = {steps}
batch_size = 16
lr = 1e-4
checkpoint_every = 10000
[pools.local]
capacity = 64
max_batch = 1024
{flush}
"""
PLACES = ("local", "s3", "s3_300ms")


@contextlib.contextmanager
def place(name: str, folder: Path, server: S3Server | None) -> Iterator[tuple[str, dict[str, str]]]:
    """A store's URL and the environment of those who use it."""
    if server is None:
        yield str(folder / "store"), {}
        return
    url = f"{server.create_bucket('latency')}/{uuid.uuid4().hex[:12]}"
    if name == "s3":
        yield url, server.environment
        return
    parts = urllib.parse.urlsplit(server.endpoint)
    with line(str(parts.hostname), int(parts.port or 80), 0.3) as between:
        yield url, {**server.environment, "AWS_ENDPOINT_URL": between.endpoint}


def run_at(name: str, steps: int, staleness: int, flush_s: float | None, server: S3Server | None) -> dict[str, Any]:
    """One run's figures."""
    with tempfile.TemporaryDirectory(prefix="astraflow-latency-") as text:
        folder = Path(text)
        with place(name, folder, server) as (url, env):
            recipe = folder / "recipe.toml"
            flush = "" if flush_s is None else f"flush_s = {flush_s}"
            prefetch = min(2, max(1, staleness))
            recipe.write_text(RECIPE.format(steps=steps, staleness=staleness, prefetch=prefetch, flush=flush))
            with environment(env):
                config = load_recipe(recipe, default_store=url)
                create_run(open_store(config.store), config)
                with start_run(config.store, config.name, folder, env) as files:
                    pass
            return figures(read_stamps(files))


@contextlib.contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """The AWS_* variables, for this process's own requests."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def figures(stamps: dict[str, dict[str, float]]) -> dict[str, Any]:
    """The three latencies and the wait."""
    leased, started = stamps["leased"], stamps["started"]
    batches = []
    for key, at in stamps["batched"].items():
        n, _, groups = key.partition(":")
        ready = max(stamps["committed"][group] for group in groups.split(","))
        ahead = [stamps["consumed"][str(m)] for m in range(int(n)) if stamps["consumed"][str(m)] <= at]
        batches.append(at - max([ready, *ahead]))
    steps = [n for n in sorted(stamps["wait_s"], key=int) if int(n) > 0]
    waits = sum(stamps["wait_s"][n] for n in steps)
    whole = waits + sum(stamps["step_s"][n] + stamps["publish_s"][n] for n in steps)
    applied = stamps["applied"]
    return {
        "lease_to_start": spread([started[group] - leased[group] for group in started]),
        "commit_to_batch": spread(batches),
        "publish_to_applied": spread([at - stamps["published"][v] for v, at in applied.items() if v != "0"]),
        "trainer_wait": round(waits / whole, 4),
        "step_s": round(statistics.median(stamps["step_s"][n] for n in steps), 4),
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """p50 and p95."""
    ordered = sorted(values)
    at = {"p50": 0.5, "p95": 0.95}
    return {name: round(ordered[min(len(ordered) - 1, int(q * len(ordered)))], 4) for name, q in at.items()} | {
        "n": len(ordered)
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--places", nargs="+", choices=PLACES, default=list(PLACES))
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--staleness", type=int, default=4)
    parser.add_argument("--flush-s", type=float, default=None, help="the pools' flush_s; default: theirs (0, 5 on S3)")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        far = [name for name in given.places if name != "local"]
        server = None
        if far:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="astraflow-s3-")))
            server = stack.enter_context(s3_server(folder))
        latency = {
            name: run_at(name, given.steps, given.staleness, given.flush_s, server if name in far else None)
            for name in given.places
        }
    if given.json:
        print(json.dumps({"benchmark": "latency", "latency": latency, "steps": given.steps}, indent=2))
        return
    for name, found in latency.items():
        for what, values in found.items():
            print(f"{name:10} {what:20} {values}")


if __name__ == "__main__":
    main()
