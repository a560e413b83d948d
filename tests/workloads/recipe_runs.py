"""Runs the workloads' recipes for one CPU machine, each by one command and with a real model, and checks records.

    python -m tests.workloads.recipe_runs [RECIPE…] [--tiny] [--steps 4] [--max-tokens 64] [--set KEY=VALUE] [--json]

Each is `astraflow run RECIPE` on a local stack of its own; fewer steps and shorter answers than the recipe's keep one
under a few minutes. A row a recipe is printed, and the exit code is 1 if a run fails or a record cannot be
(``sane_records``). The model is the recipes' own of 135M, whose folder `python -m infra.smollm2` makes first, or with
``--tiny`` one of bytes that knows nothing (``byte_model``).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from astraflow.query import Run
from infra.smollm2 import FOLDER
from storage import open_store
from tests.e2e.stack import LocalStack, finish, local_stack
from tests.workloads.byte_model import write_model
from tests.workloads.sane_records import Records

RECIPES = ("maths-cpu", "code-cpu", "gym-cpu", "search-cpu", "shop-cpu", "household-cpu")
TIMEOUT_S = 1800.0


def play(stack: LocalStack, recipe: str, given: argparse.Namespace) -> dict[str, Any]:
    """One recipe's run to its end: its figures, and under ``faults`` what is wrong with it."""
    overrides = [f"name={recipe}", f"trainer.steps={given.steps}", *given.set]
    if recipe not in ("shop-cpu", "household-cpu"):  # an action is shorter
        overrides.append(f"policies.solver.sampling.max_tokens={given.max_tokens}")
    if recipe == "household-cpu":
        overrides.append(f"workflow.options.environment_options.python={Path(given.household).absolute()}")
    began = time.monotonic()
    answer = finish(stack.start("run", recipe, *overrides, "--json"), timeout_s=TIMEOUT_S)
    took_s = time.monotonic() - began
    if answer.code:
        return {"run": recipe, "faults": [f"exit code {answer.code}: {answer.err[-2000:]}"]}
    records = Records(Run(open_store(str(stack.folder / "store")), recipe))
    return {**records.figures(), "faults": records.faults(), "took_s": round(took_s)}


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    lines = [
        "| recipe | steps | reward, first and last two | trajectories | tokens sampled (injected) | endings | failed |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if "steps" not in row:
            lines.append(f"| `{row['run']}` | did not end |")
            continue
        endings = ", ".join(f"{count} {name}" for name, count in row["endings"].items())
        failed = ", ".join(f"{count} {name}" for name, count in row["failed"].items()) or "0"
        lines.append(
            f"| `{row['run']}` | {row['steps']} | {row['reward'][0]:.3f} → {row['reward'][1]:.3f} | "
            f"{row['trajectories']} | {row['tokens']} ({row['injected']}) | {endings} | {failed} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Play the recipes one after the other; exit with 1 if any of them is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipes", nargs="*", default=RECIPES, metavar="RECIPE")
    parser.add_argument("--tiny", action="store_true", help="with a model of bytes instead of the 135M model")
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--max-tokens", type=int, default=64, help="of an answer")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a further override")
    parser.add_argument("--household", default=sys.executable, help="a Python with TextWorld, for household-cpu")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    if not (given.tiny or (FOLDER.expanduser() / "config.json").is_file()):
        raise SystemExit(f"there is no model in {FOLDER}: python -m infra.smollm2 makes it; --tiny goes without it")
    with tempfile.TemporaryDirectory(prefix="astraflow-workloads-") as name, local_stack(Path(name), {}) as stack:
        if given.tiny:
            write_model(stack.folder / "model")
            given.set.append(f"policies.solver.model={stack.folder / 'model'}")
        rows = []
        for recipe in given.recipes:
            rows.append(play(stack, recipe, given))
            print(json.dumps(rows[-1]), file=sys.stderr)
    print(json.dumps(rows, indent=2) if given.json else table(rows))
    raise SystemExit(1 if any(row["faults"] for row in rows) else 0)


if __name__ == "__main__":
    main()
