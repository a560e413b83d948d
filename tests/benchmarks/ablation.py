"""What each data algorithm buys: accuracy against rollouts spent, on 512 fixed sums, as the paper's figure 9.

    python tests/benchmarks/ablation.py [--seeds 0 1 2] [--steps 150] [--partial F.json] [--picture F.svg] [--json]

Real runs (manager, pool and trainer as threads over a store in memory, no Prefect) from one model a seed, which has
imitated 4096 sums until it is right in three of ten: rough knowledge that rewards on 512 can sharpen. Variants:
``vanilla``; ``dynamic`` drops groups whose rewards are all equal; ``replay 0.3`` and ``0.5`` fill that share of each
batch from parts that were trained already; ``greso`` also leaves out problems that gave no signal lately. All but the
first sample dynamically. *Accuracy* of a version is exact: the mean probability, over the problems, that sampling at
temperature 1 gives the right answer; no variant's choice of problems touches it. *Rollouts* are episodes of groups
that were admitted until the version's step was trained.

The pool has two places for a batch of 32 groups, so rollouts are what the trainer waits for, as where data algorithms
matter: parts are young when they are batched, and staleness (at most 8 steps, as in the paper) leaves some to replay.
With ``--partial`` whatever is finished is kept, warmed-up models too, and the same command goes on from there.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import queue
import shutil
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from astraflow import records as r
from astraflow.bootstrap import create_run
from astraflow.config import RunConfig
from astraflow.participant import DecisionsReader
from astraflow.problems import load_problems
from astraflow.recipe import load_recipe
from storage import open_store
from storage.keys import RunKeys
from storage.store import ObjectStore

RECIPE = """
name = "ablation"
seed = {seed}
[problems]
source = "addition"
options = {{ digits = 2, count = {count} }}
[policies.solver]
model = {model}
sampling = {{ max_tokens = 4 }}
{warmup}
[dataflow]
group_size = 8
max_staleness = 8
{flow}
[trainer]
steps = {steps}
batch_size = {groups}
lr = {lr}
lr_warmup_steps = 10
betas = [0.9, 0.95]
checkpoint_every = 10000
anchor_every = 1000
[weights]
merge_every = []
[pools.local]
capacity = {capacity}
max_batch = 1024
"""
DYNAMIC = 'filters = [{ name = "zero_advantage" }]\n'
REPLAY = 'replay = {{ name = "uniform", options = {{ ratio = {ratio}, max_uses = 2 }} }}\n'
VARIANTS = {
    "vanilla": "",
    "dynamic": DYNAMIC,
    "dynamic, replay 0.3": DYNAMIC + REPLAY.format(ratio=0.3),
    "dynamic, replay 0.5": DYNAMIC + REPLAY.format(ratio=0.5),
    "dynamic, greso": DYNAMIC + 'curator.name = "greso"\n',
}
GOALS = (0.4, 0.45, 0.5)
Curve = list[tuple[int, float]]  # rollouts, accuracy


def run(folder: Path, *, keep: Path | None = None, every: int = 1, **fields: Any) -> Curve:
    """One run; its curve at every ``every``-th step. ``keep`` gets version 0 as a model folder."""
    defaults = {"warmup": "", "flow": "", "count": 512, "groups": 32, "capacity": 2, "lr": 3e-4}
    recipe = folder / "recipe.toml"
    recipe.write_text(RECIPE.format(**{**defaults, **fields, "model": json.dumps(str(fields["model"]))}))
    config = load_recipe(recipe, default_store=f"memory://{folder.name}")
    store = open_store(config.store)
    config = create_run(store, config)
    take_part(store, config)
    keys = RunKeys(config.name)
    if keep is not None:
        from astraflow.weights.export import export_policy

        export_policy(store, keys, "solver", keep, version=0)
        return []
    return curve(store, keys, config, every)


def take_part(store: ObjectStore, config: RunConfig) -> None:
    """All participants of the run, to its end. Raises what any of them raises."""
    from astraflow.dataflow.manager import run_manager
    from astraflow.raas.pool import run_pool
    from astraflow.trainer.loop import run_trainer

    lives = [
        lambda: run_manager(store, config, holder="ablation"),
        lambda: run_trainer(store, config, "solver"),
        lambda: asyncio.run(run_pool(store, config, "local")),
    ]
    ends: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    for life in lives:
        threading.Thread(target=live, args=(life, ends), daemon=True).start()
    for _ in lives:
        if (error := ends.get()) is not None:
            raise error


def live(life: Callable[[], None], ends: queue.SimpleQueue[BaseException | None]) -> None:
    """One participant's life, and how it ended."""
    try:
        life()
    except BaseException as error:  # noqa: BLE001  # raised where the run is waited for
        ends.put(error)
    else:
        ends.put(None)


def curve(store: ObjectStore, keys: RunKeys, config: RunConfig, every: int) -> Curve:
    """Accuracy of the versions, at the rollouts that were spent when each was published."""
    steps = spent(store, keys, config.dataflow.group_size)
    wanted = [0, *range(every, len(steps) + 1, every)]
    scores = accuracies(store, keys, config, wanted)
    return [(steps[n - 1] if n else 0, scores[n]) for n in wanted]


def spent(store: ObjectStore, keys: RunKeys, group_size: int) -> list[int]:
    """Episodes admitted before each step's batch was said to be trained."""
    admitted, counts = 0, []
    reader = DecisionsReader(store, keys)
    outboxes: dict[str, int] = {}
    while records := reader.poll():
        for _, record in records:
            for name, cursor in record.cursors.items():
                for seq in range(outboxes.get(name, 0), cursor):
                    facts = r.decode(store.get(keys.outbox(name, seq)), r.FactRecord, where=name).facts
                    counts += [admitted * group_size for fact in facts if isinstance(fact, r.Consumed)]
                outboxes[name] = cursor
            admitted += sum(len(d.groups) for d in record.decisions if isinstance(d, r.Admitted))
    return counts


def accuracies(store: ObjectStore, keys: RunKeys, config: RunConfig, steps: Sequence[int]) -> dict[int, float]:
    """By step: the mean probability of the right answer, its end included."""
    import torch

    from astraflow.models import download_model_files, empty_causal_lm, load_tokenizer
    from astraflow.weights.subscriber import Subscriber

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        download_model_files(store, keys, "solver", Path(name))
        tokenizer, model = load_tokenizer(name), empty_causal_lm(name, torch.float32)
    problems = load_problems(config.problems, config.seed)
    bos = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    texts = [
        (
            bos + tokenizer.encode(p.prompt, add_special_tokens=False),
            tokenizer.encode(p.answer, add_special_tokens=False),
        )
        for p in problems
    ]
    rows = torch.tensor([prompt + answer + [tokenizer.eos_token_id] for prompt, answer in texts])
    first = len(texts[0][0])
    subscriber = Subscriber(store, keys, "solver")
    found = {}
    for step in steps:  # a run that nobody disturbed: version n is that of step n
        subscriber.fetch(step).write_into(dict(model.state_dict()), everything=True)
        with torch.inference_mode():
            logprobs = model(rows).logits.log_softmax(-1)[:, first - 1 : -1]
        chosen = logprobs.gather(-1, rows[:, first:, None])[..., 0]
        found[step] = float(chosen.sum(-1).exp().mean())
    return found


# --- tables and pictures ------------------------------------------------------------------------------


def rollouts_to(found: Curve, goal: float) -> int | None:
    """Rollouts spent when the accuracy was first reached."""
    return next((rollouts for rollouts, accuracy in found if accuracy >= goal), None)


def accuracy_at(found: Curve, rollouts: int) -> float:
    """The accuracy of the last version before so many rollouts were spent."""
    return [accuracy for spent_, accuracy in found if spent_ <= rollouts][-1]


def summary(curves: dict[str, list[Curve]]) -> list[dict[str, Any]]:
    """A row a variant, means over the seeds; the common budget is what the thriftiest run spent in all."""
    budget = min(found[-1][0] for seeds in curves.values() for found in seeds)
    rows = []
    for variant, seeds in curves.items():
        row: dict[str, Any] = {
            "variant": variant,
            "rollouts": round(statistics.mean(found[-1][0] for found in seeds)),
            "final": statistics.mean(found[-1][1] for found in seeds),
            f"at {budget}": statistics.mean(accuracy_at(found, budget) for found in seeds),
            "spread": max(accuracy_at(f, budget) for f in seeds) - min(accuracy_at(f, budget) for f in seeds),
        }
        for goal in GOALS:
            reached = [rollouts_to(found, goal) for found in seeds]
            row[f"to {goal:g}"] = (
                None if None in reached else round(statistics.mean(x for x in reached if x is not None))
            )
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""

    def cell(value: Any) -> str:
        return "–" if value is None else f"{value:.3f}" if isinstance(value, float) else f"{value}"

    lines = ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    return "\n".join([*lines, *("| " + " | ".join(map(cell, row.values())) + " |" for row in rows)])


COLOURS = ("#4c566a", "#d08770", "#5e81ac", "#8f5fa8", "#3b8f5a")


def picture(curves: dict[str, list[Curve]], up: str = "Accuracy", across: str = "rollouts spent") -> str:
    """The mean curve of each variant as SVG: ``up`` (0 to 1) against ``across``."""
    width, height, left, bottom = 640, 360, 48, 36
    most = max(found[-1][0] for seeds in curves.values() for found in seeds)
    lines = []
    for tick in range(6):
        y = height - bottom - (height - bottom - 12) * tick / 5
        x = left + (width - left - 12) * tick / 5
        lines.append(f'<line x1="{left}" x2="{width - 12}" y1="{y:.0f}" y2="{y:.0f}" stroke="#ddd"/>')
        lines.append(f'<text x="{left - 6}" y="{y + 4:.0f}" text-anchor="end">{tick / 5:.1f}</text>')
        lines.append(f'<text x="{x:.0f}" y="{height - 16}" text-anchor="middle">{most * tick / 5 / 1000:.0f}k</text>')
    for colour, (number, (variant, seeds)) in zip(COLOURS, enumerate(curves.items()), strict=False):
        points = []
        for index in range(min(map(len, seeds))):
            spent_ = statistics.mean(found[index][0] for found in seeds)
            accuracy = statistics.mean(found[index][1] for found in seeds)
            x = left + (width - left - 12) * spent_ / most
            points.append(f"{x:.1f},{height - bottom - (height - bottom - 12) * accuracy:.1f}")
        lines.append(f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{" ".join(points)}"/>')
        y = height - bottom - 12 - 16 * (len(curves) - 1 - number)
        lines.append(f'<text x="{width - 180}" y="{y}" fill="{colour}">{variant}</text>')
    lines.append(f'<text x="{width / 2:.0f}" y="{height - 2}" text-anchor="middle">{across}</text>')
    body = "\n".join(lines)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="12">\n<title>{up} against {across}</title>\n{body}\n</svg>\n'
    )


class Kept:
    """Finished curves and warmed-up models; in a file and a folder beside it, so that a later call goes on."""

    def __init__(self, file: Path | None, folder: Path, settings: dict[str, Any]) -> None:
        self._file, self._settings = file, settings
        self.models = file.absolute().with_suffix(".models") if file else folder
        self.curves: dict[str, Curve] = {}
        if file and file.exists():
            kept = json.loads(file.read_text())
            if kept["settings"] != settings:
                raise SystemExit(f"{file} holds curves of other settings: {kept['settings']}, not {settings}")
            self.curves = {name: [(rollouts, score) for rollouts, score in c] for name, c in kept["curves"].items()}

    def keep(self, name: str, found: Curve) -> None:
        self.curves[name] = found
        if self._file:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            text = json.dumps({"settings": self._settings, "curves": self.curves})
            unfinished = self._file.with_suffix(".part")
            unfinished.write_text(text)
            unfinished.replace(self._file)


def play(kept: Kept, folder: Path, seed: int, variant: str, until: float, size: dict[str, Any], **curve: int) -> None:
    """One variant of one seed, from the seed's warmed-up model, which the first one makes."""
    model = kept.models / f"model-{seed}"
    if not model.exists():
        warm = Path(tempfile.mkdtemp(dir=folder))
        warmup = f"warmup = {{ until_accuracy = {until}, max_steps = 800, batch_size = 128, lr = 1e-3 }}"
        run(
            warm, keep=warm / "kept", seed=seed, model="tiny-qwen3", warmup=warmup, **size | {"steps": 1, "count": 4096}
        )
        kept.models.mkdir(parents=True, exist_ok=True)
        shutil.move(warm / "kept", model)
    own = Path(tempfile.mkdtemp(dir=folder))
    began = time.monotonic()
    kept.keep(f"{seed}/{variant}", run(own, seed=seed, model=model, flow=VARIANTS[variant], **size, **curve))
    print(f"seed {seed}, {variant}: {time.monotonic() - began:.0f} s", file=sys.stderr)
    shutil.rmtree(own)


def main() -> None:
    """Run all variants of all seeds, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--groups", type=int, default=32, help="groups a batch")
    parser.add_argument("--every", type=int, default=10, help="steps between two points of a curve")
    parser.add_argument("--lr", type=float, default=3e-4)
    parser.add_argument("--until", type=float, default=0.3, help="accuracy at which the warm-up ends")
    parser.add_argument("--picture", type=Path, default=None)
    parser.add_argument("--partial", type=Path, default=None, help="keeps finished curves, and goes on from them")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    size = {"steps": given.steps, "groups": given.groups, "capacity": max(1, given.groups // 16), "lr": given.lr}
    settings = {**size, "until": given.until, "every": given.every}
    with tempfile.TemporaryDirectory(prefix="astraflow-ablation-") as name:
        kept = Kept(given.partial, Path(name), settings)
        for seed in given.seeds:
            for variant in VARIANTS:
                if f"{seed}/{variant}" not in kept.curves:
                    play(kept, Path(name), seed, variant, given.until, size, every=given.every)
    curves = {variant: [kept.curves[f"{seed}/{variant}"] for seed in given.seeds] for variant in VARIANTS}
    rows = summary(curves)
    if given.picture:
        given.picture.write_text(picture(curves))
    report = {"benchmark": "ablation", "rows": rows, "curves": curves, "seeds": given.seeds, **settings}
    print(json.dumps(report, indent=2) if given.json else table(rows))


if __name__ == "__main__":
    main()
