"""Does it learn? ``tiny-add`` over several seeds, each beside its control with shuffled rewards.

    python tests/benchmarks/learning.py [--seeds 0 1 2] [--controls 0] [--override trainer.steps=420] [--json]

A run must reach: last 20 batches ≥ 1.6 × the first 20, gain ≥ 0.25, last 20 ≥ 0.65. A control must gain ≤ 0.05.
The curve has no warm-up in it: batch 0 is the first of RL. Exit code 1 if a run misses.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "infra" / "recipes"
FIGURES = (
    "reward_first20",
    "reward_last20",
    "reward_gain",
    "steps",
    "seconds",
    "lag_mean",
    "lag_max",
    "wait_ratio",
    "delta_bytes",
    "full_bytes",
)


def main() -> None:
    """Run all seeds one after the other, print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--controls", type=int, nargs="*", default=[0], help="seeds of the control runs")
    parser.add_argument("--override", action="append", default=[], help="key=value for every run")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    plans = [("tiny-add", seed) for seed in arguments.seeds] + [
        ("tiny-add-control", seed) for seed in arguments.controls
    ]
    with tempfile.TemporaryDirectory(prefix="astraflow-learning-") as folder:
        cli = Cli(Path(folder))
        cli.call("up")
        try:
            results = [one_run(cli, recipe, seed, arguments.override) for recipe, seed in plans]
        finally:
            cli.call("down")
    report = {"machine": f"{platform.machine()}, {os.cpu_count()} cores", "runs": results}
    print(json.dumps(report, indent=2) if arguments.json else table(results))
    sys.exit(0 if all(result["passed"] for result in results) else 1)


class Cli:
    """The command line, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._env = {**os.environ, "ASTRAFLOW_HOME": str(folder / ".astraflow")}
        self._env.pop("PREFECT_API_URL", None)

    def call(self, *arguments: str) -> str:
        """What the command prints. Raises ``CalledProcessError`` unless it ends well."""
        command = [sys.executable, "-m", "infra.cli", *arguments]
        done = subprocess.run(command, cwd=self._folder, env=self._env, check=True, stdout=subprocess.PIPE, text=True)
        return done.stdout


def one_run(cli: Cli, recipe: str, seed: int, overrides: list[str]) -> dict[str, object]:
    """Run a recipe with a seed; its figures, wall time and verdict."""
    name = f"{recipe}-{seed}"
    start = time.monotonic()
    cli.call("run", str(RECIPES / f"{recipe}.toml"), f"name={name}", f"seed={seed}", *overrides)
    wall_s = time.monotonic() - start
    figures = json.loads(cli.call("status", name, "--json"))
    result: dict[str, object] = {"recipe": recipe, "seed": seed, "wall_s": round(wall_s, 1)}
    result.update({key: figures[key] for key in FIGURES})
    first, last, gain = figures["reward_first20"], figures["reward_last20"], figures["reward_gain"]
    is_control = recipe.endswith("control")
    result["passed"] = gain <= 0.05 if is_control else last >= 1.6 * first and gain >= 0.25 and last >= 0.65
    return result


def table(results: list[dict[str, object]]) -> str:
    """A Markdown table of the runs."""
    columns = [
        "recipe",
        "seed",
        "reward_first20",
        "reward_last20",
        "reward_gain",
        "lag_max",
        "wait_ratio",
        "wall_s",
        "passed",
    ]
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    for result in results:
        cells = [f"{value:.3f}" if isinstance(value := result[key], float) else str(value) for key in columns]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
