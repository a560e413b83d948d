"""At ``max_staleness = 0`` the whole system equals a plain synchronous loop bit for bit; without it, it is not slower.

    python tests/benchmarks/sync_parity.py [--steps 40] [--repeats 3] [--json]

``equal``: after every step the fp32 parameters of the run (manager, pool and trainer as processes, a store between)
have the digest of the loop's (``sync_loop.py``, one process). Times are seconds a step, the first ``SKIP`` left out,
the median of alternating repeats; ``sync_parity`` is the loop's over the run's with ``max_staleness = 2``: ≥ 1 is
wanted. ``staleness_0`` says what waiting for every version costs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from run_processes import NOTE_DIGESTS, start_run

from astraflow.bootstrap import create_run
from astraflow.recipe import load_recipe
from storage import open_store

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SKIP = 3
RECIPE = """
name = "parity"
code = [{here}]
[problems]
source = "addition"
options = {{ digits = 2, count = 512 }}
reward.name = "parity_parts:digits"
[policies.solver]
model = "tiny-qwen3"
sampling = {{ max_tokens = {tokens} }}
[dataflow]
group_size = 8
max_staleness = {staleness}
curator.name = "sequential"
order.name = "parity_parts:ByGroup"
[trainer]
steps = {steps}
batch_size = {groups}
lr = 1e-3
checkpoint_every = 1000
[pools.local]
capacity = {capacity}
max_batch = 4096
"""


def write_recipe(folder: Path, *, staleness: int, steps: int, groups: int, tokens: int) -> Path:
    """The recipe of both sides."""
    capacity = groups * (staleness + 1)
    text = RECIPE.format(
        here=json.dumps(str(HERE)), staleness=staleness, steps=steps, groups=groups, tokens=tokens, capacity=capacity
    )
    file = folder / f"staleness-{staleness}.toml"
    file.write_text(text)
    return file


def plain(folder: Path, recipe: Path) -> list[tuple[str, float]]:
    """The loop's marks."""
    out = folder / "plain.json"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, str(HERE / "sync_loop.py"), str(recipe), str(out)], env=env, check=True)
    return [(digest, at) for digest, at in json.loads(out.read_text())]


def whole(folder: Path, recipe: Path) -> list[tuple[str, float]]:
    """The run's marks."""
    with tempfile.TemporaryDirectory(dir=folder) as name:
        place = Path(name)
        config = load_recipe(recipe, default_store=str(place / "store"))
        create_run(open_store(config.store), config)
        with start_run(config.store, config.name, place, {NOTE_DIGESTS: "1"}):
            pass
        lines = (place / "notes.jsonl").read_text().splitlines()
    return [(digest, at) for digest, at in map(json.loads, lines)]


def step_s(marks: list[tuple[str, float]]) -> float:
    """Seconds a step."""
    return (marks[-1][1] - marks[SKIP - 1][1]) / (len(marks) - SKIP)


def measure(*, steps: int, repeats: int, groups: int, tokens: int) -> dict[str, Any]:
    """Both, alternating."""
    times: dict[str, list[float]] = {"plain": [], "staleness_0": [], "staleness_2": []}
    equal: list[int] = []
    with tempfile.TemporaryDirectory(prefix="astraflow-parity-") as name:
        folder = Path(name)
        size = {"steps": steps, "groups": groups, "tokens": tokens}
        strict, loose = write_recipe(folder, staleness=0, **size), write_recipe(folder, staleness=2, **size)
        for _ in range(repeats):
            loop, same, free = plain(folder, strict), whole(folder, strict), whole(folder, loose)
            equal.append(sum(a[0] == b[0] for a, b in zip(loop, same, strict=True)))
            for key, marks in zip(times, (loop, same, free), strict=True):
                times[key].append(step_s(marks))
    medians = {key: statistics.median(values) for key, values in times.items()}
    return {
        "benchmark": "sync_parity",
        "equal": all(count == steps for count in equal),
        "equal_steps": equal,
        "sync_parity": medians["plain"] / medians["staleness_2"],
        "staleness_0_to_plain": medians["staleness_0"] / medians["plain"],
        "seconds_a_step": medians,
        "all_seconds_a_step": times,
        "steps": steps,
        "sequences_a_step": groups * 8,
    }


def main() -> None:
    """Measure and print; exit code 1 if a single bit differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--groups", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    figures = measure(steps=given.steps, repeats=given.repeats, groups=given.groups, tokens=given.tokens)
    if given.json:
        print(json.dumps(figures, indent=2))
    else:
        print(f"bits equal: {figures['equal']}; plain over asynchronous: {figures['sync_parity']:.2f}")
    sys.exit(0 if figures["equal"] else 1)


if __name__ == "__main__":
    main()
