"""Two policies trained without barriers against the same run with them: the real system, on this machine.

    python tests/benchmarks/async_ratio.py [--steps 20] [--repeats 2] [--json]

The recipe is ``tiny-add-verify`` (a solver, a verifier, up to two rounds) with a short warm-up: a manager, a pool and
two trainers as processes over a local store. *barriers*: ``max_staleness = 0`` and ``coupling = "slowest"``, so a
batch is played with the newest weights of both policies and all of it is trained before anything else is played;
``sync_parity.py`` shows that such a run makes the steps of a plain loop, bit by bit. *none*: ``max_staleness = 2``, as
the recipe says. An iteration is over when both trainers have said its step; the first ``SKIP`` are left out.
``async_ratio`` is the time of an iteration with barriers over that without: on cores that are busy all the time either
way, it can only be what waiting cost.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from pathlib import Path
from typing import Any

from run_processes import start_run

from astraflow.bootstrap import create_run
from astraflow.recipe import load_recipe
from storage import open_store

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "infra" / "recipes" / "tiny-add-verify.toml"
POLICIES = ("solver", "verifier")
SKIP = 3
KINDS = {
    "barriers": ("dataflow.max_staleness=0", "dataflow.coupling=slowest"),
    "none": ("dataflow.max_staleness=2",),
}


def iterations(kind: str, steps: int, warmup_steps: int) -> list[float]:
    """When each iteration of one run was over."""
    with tempfile.TemporaryDirectory(prefix="astraflow-ratio-") as name:
        folder = Path(name)
        overrides = [
            *KINDS[kind],
            f"trainer.steps={steps}",
            "trainer.checkpoint_every=100000",
            *(f"policies.{policy}.warmup.max_steps={warmup_steps}" for policy in POLICIES),
        ]
        config = load_recipe(RECIPE, overrides, default_store=str(folder / "store"))
        create_run(open_store(config.store), config)
        roles = ("manager", *(f"trainer.{policy}" for policy in POLICIES), "pool")
        with start_run(config.store, config.name, folder, roles=roles) as files:
            pass
        said = [json.loads(files[f"trainer.{policy}"].read_text()) for policy in POLICIES]
    return [max(stamps[f"consumed/{n}"] for stamps in said) for n in range(steps)]


def iteration_s(times: list[float]) -> float:
    """Seconds an iteration."""
    return (times[-1] - times[SKIP - 1]) / (len(times) - SKIP)


def measure(*, steps: int, repeats: int, warmup_steps: int) -> dict[str, Any]:
    """Both, alternating."""
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(repeats):
        for kind, times in found.items():
            times.append(iteration_s(iterations(kind, steps, warmup_steps)))
    medians = {kind: statistics.median(times) for kind, times in found.items()}
    return {
        "benchmark": "async_ratio",
        "async_ratio": medians["barriers"] / medians["none"],
        "seconds_an_iteration": medians,
        "all_seconds_an_iteration": found,
        "steps": steps,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--warmup-steps", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    figures = measure(steps=given.steps, repeats=given.repeats, warmup_steps=given.warmup_steps)
    if given.json:
        print(json.dumps(figures, indent=2))
    else:
        print(f"an iteration with barriers takes {figures['async_ratio']:.2f} times as long")


if __name__ == "__main__":
    main()
