"""Half of the rollouts in another region: what crosses the link, what waits for it, and whether it learns as well.

    python tests/benchmarks/regions.py [--parts weights reward] [--seeds 0 1 2] [--steps 90] [--json]

Two regions are two network namespaces of this machine (``region_network``), each with its own S3 server. The link
between them is limited to ``--rate-mbit`` by the kernel, which counts what is sent by lane (the far region's mirror,
its pools, those at home that ask the far region's store), headers included; the way over it takes ``--rtt-s`` there
and back (``region_gateway``). A run is processes without Prefect.

*weights*: the 135M model at lr 3e-6, trained at home, played far. ``link_bytes_per_version`` is all that the mirror
sent and received between the far engine's first update and the end, its questions and beats included, over the
versions in between; ``full_bytes`` what a version has in full; ``publish_to_applied_s`` from the manifest's creation at
home to the far engine's sampling from it.

*reward*: ``tiny-add`` with three pools at 100, 60 and 30 % speed, a decode step of the first taking 0.6 s, and a
trainer whose step takes 5 s, both slowed down on purpose; all seeds at home alone and with the two slower pools far,
side by side. ``reward_gap`` is the difference of the mean rewards of the last 20 batches, which may be
max(0.03, 2 standard errors); ``trainer_wait_ratio`` the share of the trainer's time, after the first ``SKIP`` steps, in
which it had no batch. Exit code 1 if the gap is wider, or if two regions make the trainer wait by 0.01 more than one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from region_network import LANES, OTHER, missing, network
from region_run import RunSpec, die_with_parent, write_run_spec
from run_processes import ROOT

from infra.smollm2 import FOLDER

REWARD = """
extends = "{recipes}/tiny-add.toml"
name = "reward"
seed = {seed}
[dataflow]
max_staleness = 4
prefetch = 2
[trainer]
steps = {steps}
checkpoint_every = 100000
[pools.local]
capacity = 16
max_batch = 64
[pools.sixty]
capacity = 16
max_batch = 64
[pools.thirty]
capacity = 16
max_batch = 64
"""
WEIGHTS = """
extends = "{recipes}/smollm2-3e-6.toml"
name = "weights"
policies.solver.model = {model}
[trainer]
steps = {steps}
"""
RECIPES = ROOT / "infra" / "recipes"
SPEEDS = {"local": 1.0, "sixty": 0.6, "thirty": 0.3}
PACE_S = 0.6
STEP_S = 5.0
SKIP = 5
LAST = 20
PLACES = {"one": {"sixty": "home", "thirty": "home"}, "two": {"sixty": "far", "thirty": "far"}}
WAIT_ALLOWED = 0.01
GAP_ALLOWED = 0.03


def main() -> None:
    """Measure and print."""
    given = _arguments()
    if why := missing():
        raise SystemExit(f"bench-regions cannot run here: {why}")
    signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))
    began = time.monotonic()
    report: dict[str, Any] = {"benchmark": "regions", "rate_mbit": given.rate_mbit, "rtt_s": given.rtt_s}
    with tempfile.TemporaryDirectory(prefix="astraflow-regions-") as name:
        if "weights" in given.parts:
            report |= weights(Path(name), given)
        if "reward" in given.parts:
            report |= reward(Path(name), given)
    report["minutes"] = round((time.monotonic() - began) / 60, 1)
    report["missed"] = missed(report)
    print(json.dumps(report, indent=2) if given.json else shown(report))
    sys.exit(1 if report["missed"] else 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=("weights", "reward"), default=["weights", "reward"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=90, help="of each run of part reward")
    parser.add_argument("--versions", type=int, default=8, help="steps of part weights")
    parser.add_argument("--model", type=Path, default=FOLDER, help="of part weights: python -m infra.smollm2 makes it")
    parser.add_argument("--rate-mbit", type=float, default=100.0)
    parser.add_argument("--rtt-s", type=float, default=0.3)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if not (given.rate_mbit > 0 and given.rtt_s >= 0 and given.versions >= 3 and given.steps > SKIP):
        parser.error(f"--rate-mbit above 0, --rtt-s not below, --versions from 3, --steps above {SKIP}")
    if "weights" in given.parts and not (given.model.expanduser() / "config.json").is_file():
        parser.error(f"no model in {given.model}: python -m infra.smollm2 makes it; or --parts reward")
    return given


# --- the two parts ------------------------------------------------------------------------------------


def weights(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """What a version of a real model costs."""
    recipe = WEIGHTS.format(recipes=RECIPES, model=json.dumps(str(given.model)), steps=given.versions)
    (found,) = side_by_side(folder, given, {"weights": {"recipe": recipe, "regions": {"local": "far"}, "speeds": {}}})
    return weights_figures(found)


def weights_figures(found: dict[str, Any]) -> dict[str, Any]:
    """What the counters, the stamps and the run's log come to."""
    applied = {int(v): at for v, at in _by_kind(found["stamps"]["pool.local"], "applied").items()}
    published = {int(v): at for v, at in _by_kind(found["stamps"]["trainer"], "published").items()}
    first = min(version for version in applied if version > 0)  # 1, unless it was passed over
    after = next(sent for at, sent in found["sent"] if at is None or at > applied[first])
    ended = found["sent"][-1][1]
    later = [row for row in found["versions"] if row["version"] > first]
    taken_s = sorted(at - published[v] for v, at in applied.items() if v > 0)
    crossed = {lane: _both(ended, lane) - _both(after, lane) for lane in (*LANES, OTHER)}
    return {
        "link_bytes_per_version": round(crossed["mirror"] / len(later)),
        "delta_bytes_per_version": round(statistics.mean(row["delta_bytes"] for row in later)),
        "full_bytes": later[0]["full_bytes"],
        "full_over_link": round(later[0]["full_bytes"] * len(later) / crossed["mirror"], 1),
        "first_versions_link_bytes": _both(after, "mirror"),
        "publish_to_applied_s": _spread(taken_s),
        "first_version_to_applied_s": round(applied[0] - published[0], 2),
        "weights_versions": len(later),
        "weights_step_s": _spread([row["step_s"] for row in found["batches"]]),
        "weights_trainer_wait_ratio": wait_ratio(found["steps"], skip=2),
        "other_link_bytes_per_version": {
            lane: round(crossed[lane] / len(later)) for lane in crossed if lane != "mirror"
        },
    }


def reward(folder: Path, given: argparse.Namespace) -> dict[str, Any]:
    """Whether two regions learn as one does, and who waits."""
    plans = {
        f"{place}-{seed}": {
            "recipe": REWARD.format(recipes=RECIPES, seed=seed, steps=given.steps),
            "regions": {"local": "home"} | regions,
            "speeds": SPEEDS,
            "pace_s": PACE_S,
            "step_s": STEP_S,
        }
        for seed in given.seeds
        for place, regions in PLACES.items()
    }
    found = dict(zip(plans, side_by_side(folder, given, plans), strict=True))
    runs = {name: _run_figures(result) for name, result in found.items()}
    last = {place: [runs[f"{place}-{seed}"]["reward_last"] for seed in given.seeds] for place in PLACES}
    waits = {place: statistics.mean(runs[f"{place}-{s}"]["wait_ratio"] for s in given.seeds) for place in PLACES}
    error = math.sqrt(sum(statistics.variance(values) / len(values) for values in last.values() if len(values) > 1))
    return {
        "trainer_wait_ratio": round(waits["two"], 4),
        "trainer_wait_ratio_one_region": round(waits["one"], 4),
        "reward_gap": round(statistics.mean(last["two"]) - statistics.mean(last["one"]), 4),
        "reward_gap_se": round(error, 4),
        "reward_gap_allowed": round(max(GAP_ALLOWED, 2 * error), 4),
        "reward_last": {place: round(statistics.mean(values), 4) for place, values in last.items()},
        "steps": given.steps,
        "runs": runs,
    }


def _run_figures(found: dict[str, Any]) -> dict[str, Any]:
    """One run of part reward."""
    rewards = [row["reward_mean"] for row in found["batches"] if row["consumed"]]
    lags = [row["lag_mean"] for row in found["batches"][SKIP:] if row["consumed"]]
    published = _by_kind(found["stamps"]["trainer"], "published")
    pools: dict[str, Any] = {}
    for row in found["pools"]:
        stamps = found["stamps"][f"pool.{row['pool']}"]
        paced = _by_kind(stamps, "paced")
        taken_s = sorted(at - published[v] for v, at in _by_kind(stamps, "applied").items() if int(v) > SKIP)
        pools[row["pool"]] = {
            "region": row["region"],
            "admitted_groups": row["admitted"],
            "publish_to_applied_s": _spread(taken_s),
            "late_decode_steps": round(paced.get("late", 0.0) / max(1.0, paced.get("turns", 0.0)), 4),
        }
    ended = found["sent"][-1][1]
    return {
        "reward_first": round(statistics.mean(rewards[:LAST]), 4),
        "reward_last": round(statistics.mean(rewards[-LAST:]), 4),
        "wait_ratio": wait_ratio(found["steps"], skip=SKIP),
        "step_s": _spread([row["step_s"] for row in found["batches"][SKIP:] if row["consumed"]]),
        "lag_mean": round(statistics.mean(lags), 3),
        "pools": pools,
        "link_bytes_per_step": {lane: round(_both(ended, lane) / len(rewards)) for lane in (*LANES, OTHER)},
    }


def missed(report: dict[str, Any]) -> list[str]:
    """What was to be reached and was not."""
    if "reward_gap" not in report:
        return []
    more = report["trainer_wait_ratio"] - report["trainer_wait_ratio_one_region"]
    gap, allowed = report["reward_gap"], report["reward_gap_allowed"]
    return [
        *([f"reward_gap {gap:+.4f}, allowed {allowed:.4f}"] if abs(gap) > allowed else []),
        *([f"the trainer waits by {more:.4f} more, allowed {WAIT_ALLOWED}"] if more > WAIT_ALLOWED else []),
    ]


# --- runs ---------------------------------------------------------------------------------------------


def side_by_side(folder: Path, given: argparse.Namespace, plans: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """All runs at once, each with a network of its own; what ``region_run`` said of each.

    Raises ``RuntimeError`` with the end of the log of the first that failed; the others are ended.
    """
    with contextlib.ExitStack() as stack:
        children = {}
        for name, plan in plans.items():
            made = stack.enter_context(network(given.rate_mbit))
            place = folder / name
            place.mkdir()
            spec = RunSpec(network=asdict(made), folder=str(place), rtt_s=given.rtt_s, **plan)
            children[name] = stack.enter_context(started(spec, made.inside("home")))
        while True:
            running = any(child.poll() is None for child in children.values())
            for name, child in children.items():
                if child.poll() not in (None, 0):
                    raise RuntimeError(f"{name}: {(folder / name / 'run.log').read_text()[-4000:]}")
            if not running:
                break
            time.sleep(0.5)
    return [json.loads((folder / name / "run.out").read_text()) for name in plans]


@contextlib.contextmanager
def started(spec: RunSpec, before: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A run's process, which is ended with the block."""
    place = Path(spec.folder)
    write_run_spec(spec, place / "run.json")
    script = Path(__file__).with_name("region_run.py")
    command = [*before, *die_with_parent(), sys.executable, str(script), str(place / "run.json")]
    with (place / "run.out").open("wb") as out, (place / "run.log").open("wb") as log:
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        child = subprocess.Popen(command, cwd=place, stdout=out, stderr=log, env=env)
    try:
        yield child
    finally:
        if child.poll() is None:
            child.terminate()
            try:
                child.wait(60)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()


# --- figures ------------------------------------------------------------------------------------------


def _by_kind(stamps: dict[str, float], kind: str) -> dict[str, float]:
    return {key.partition("/")[2]: at for key, at in stamps.items() if key.startswith(f"{kind}/")}


def _both(sent: dict[str, dict[str, int]], lane: str) -> int:
    """Bytes of a lane, there and back."""
    return sum(lanes[lane] for lanes in sent.values())


def wait_ratio(steps: Iterable[dict[str, Any]], *, skip: int) -> float:
    """The share of the trainer's time in which it had no batch, the first steps left out."""
    rows = [row for row in steps if row["step"] > skip]
    waited = sum(row["wait_s"] for row in rows)
    return round(waited / sum(row["wait_s"] + row["step_s"] + row["publish_s"] for row in rows), 4)


def _spread(values: Sequence[float]) -> dict[str, float]:
    """p50, p95 and how many."""
    ordered = sorted(values)
    at = {"p50": 0.5, "p95": 0.95}
    found = {name: round(ordered[min(len(ordered) - 1, int(q * len(ordered)))], 3) for name, q in at.items()}
    return found | {"n": len(ordered)}


def shown(report: dict[str, Any]) -> str:
    """The figures, one a line."""
    return "\n".join(f"{name:32} {value}" for name, value in report.items() if name != "runs")


if __name__ == "__main__":
    main()
