"""What a second policy buys: a solver alone against solver and verifier, and solver and selector, at equal tokens.

    python tests/benchmarks/multi_policy.py [--seeds 0 1 2] [--tokens 300000] [--partial F.json] [--picture F.svg]

Two-digit sums on the tiny model; manager, pool and trainers are processes, without Prefect. Each seed has one
warmed-up solver (30 % right), verifier and selector (60 %), and all variants start from them. *Score* is the share of
500 held-out sums that the whole workflow answers right, sampled at temperature 1 by the product's own evaluations
beside training; *tokens* are what all policies sampled in groups that were admitted before the round. Every variant
has the same budget of them.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ablation import picture
from run_processes import start_run

from astraflow import records as r
from astraflow.bootstrap import create_run
from astraflow.problems import Problem, addition
from astraflow.query import Run
from astraflow.recipe import load_recipe
from astraflow.weights.export import export_policy
from storage import open_store

RECIPE = """
name = "{name}"
seed = {seed}
problems.source = {train}
[dataflow]
group_size = 8
max_staleness = 2
[trainer]
steps = {steps}
batch_size = 32
lr = 3e-4
lr_warmup_steps = 10
betas = [0.9, 0.95]
advantage = "mean_std"
loss = {{ name = "grpo", options = {{ clip_low = 0.2, clip_high = 0.28 }} }}
checkpoint_every = 10000
[pools.local]
capacity = 96
max_batch = 512
"""
EVALUATION = """
[evaluations.held_out]
problems.source = {held}
every = {every}
role = "{role}"
part = "{part}"
"""
POLICY = """
[policies.{name}]
model = {model}
sampling = {{ max_tokens = {max_tokens} }}
"""
WARMUP = "warmup = {{ until_accuracy = {until}, max_steps = 800, batch_size = 128, lr = 1e-3 }}\n"
VERIFY = (
    'workflow = { name = "solve_and_verify", options = { rounds = 2, accept = "1", reject = "0", '
    'retry_prompt = "{prompt}{answer}-", verify_prompt = "{prompt}{answer}?" } }\n'
)
SELECT = (
    'workflow = { name = "solve_and_select", options = { one = "1", two = "2", '
    'select_prompt = "{prompt}{first}-{second}?" } }\n'
)
# How an episode is played, who plays, whose word is scored, and about how many tokens an episode has.
VARIANTS: dict[str, tuple[str, tuple[str, ...], tuple[str, str], float]] = {
    "solver": ("", ("solver",), ("solver", ""), 4.0),
    "solver + verifier": (VERIFY, ("solver", "verifier"), ("solver", ""), 9.0),
    "solver + selector": (SELECT, ("solver", "selector"), ("selector", "final"), 10.0),
}
MAX_TOKENS = {"solver": 4, "verifier": 2, "selector": 2}
UNTIL = {"solver": 0.3, "verifier": 0.6, "selector": 0.6}
HELD_OUT = 500
ROUNDS = 10
Point = tuple[int, float]  # tokens, score
Curves = dict[str, list[Point]]  # «score», and the rewards of each policy


class Study:
    """Runs that sample about so many tokens each; ``folder`` holds their models."""

    def __init__(self, folder: Path, tokens: int) -> None:
        self._folder, self._tokens = folder, tokens

    def warm(self, seed: int) -> dict[str, Path]:
        """Folders of the models that every variant of a seed starts from."""
        models: dict[str, Path] = {}
        for name, play, trained in (("verify", VERIFY, "verifier"), ("select", SELECT, "selector")):
            texts = [play, self._base(seed, f"warm-{name}-{seed}", 1)]
            for policy in ("solver", trained):
                texts.append(_policy(policy, models.get(policy, "tiny-qwen3")))
                texts.append("" if policy in models else WARMUP.format(until=UNTIL[policy]))
            run = self._run(f"warm-{name}-{seed}", texts)
            for policy in {"solver", trained} - set(models):
                models[policy] = self._folder / f"model-{seed}-{policy}"
                export_policy(run.store, run.keys, policy, models[policy], version=0)
        return models

    def curves(self, seed: int, variant: str, models: dict[str, Path]) -> Curves:
        """One variant's run, and what became of it."""
        play, policies, (role, part), per_episode = VARIANTS[variant]
        steps = max(ROUNDS, round(self._tokens / (32 * 8 * per_episode)))
        name = f"{'-'.join(policies)}-{seed}"
        evaluation = {"held": self._problems(seed)[1], "every": max(1, steps // ROUNDS), "role": role, "part": part}
        texts = [play, self._base(seed, name, steps), *(_policy(policy, models[policy]) for policy in policies)]
        texts.append(EVALUATION.format(**{**evaluation, "held": json.dumps(str(evaluation["held"]))}))
        return _read(self._run(name, texts), policies)

    def _problems(self, seed: int) -> tuple[Path, Path]:
        """Files of the sums that are trained on and, all of them others, of those that are held out."""
        files = self._folder / f"train-{seed}.jsonl", self._folder / f"held-{seed}.jsonl"
        if files[1].exists():
            return files
        made = addition(seed, digits=2, count=4096 + HELD_OUT)
        for file, part in zip(files, (made[:-HELD_OUT], made[-HELD_OUT:]), strict=True):
            file.write_text("\n".join(map(_line, part)))
        return files

    def _base(self, seed: int, name: str, steps: int) -> str:
        train = json.dumps(str(self._problems(seed)[0]))
        return RECIPE.format(name=name, seed=seed, steps=steps, train=train)

    def _run(self, name: str, texts: Iterable[str]) -> Run:
        recipe = self._folder / f"{name}.toml"
        recipe.write_text("\n".join(texts))
        config = load_recipe(recipe, default_store=str(self._folder / "store"))
        store = open_store(config.store)
        config = create_run(store, config)
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        roles = ("manager", "pool", *(f"trainer.{policy}" for policy in config.trained))
        with start_run(config.store, config.name, folder, roles=roles):
            pass
        return Run(store, name)


def _policy(name: str, model: Path | str) -> str:
    return POLICY.format(name=name, model=json.dumps(str(model)), max_tokens=MAX_TOKENS[name])


def _line(problem: Problem) -> str:
    return json.dumps({"id": problem.id, "prompt": problem.prompt, "answer": problem.answer})


def _read(run: Run, policies: Sequence[str]) -> Curves:
    """Score and rewards against the tokens that had been sampled."""
    parts = run.table("parts").select(["policy", "group_id", "response_tokens"]).to_pylist()
    tokens_of = {(part["policy"], part["group_id"]): part["response_tokens"] or 0 for part in parts}
    spent, at, begun = 0, {}, {}
    for seq, record in run.fold.decisions:
        for decision in record.decisions:
            if isinstance(decision, r.Admitted):
                spent += sum(tokens_of.get((policy, group), 0) for group in decision.groups for policy in policies)
            elif isinstance(decision, r.EvalStarted):
                begun[decision.round] = seq
        at[seq] = spent
    curves: Curves = {"score": []}
    for row in run.table("evaluations").to_pylist():
        curves["score"].append((at[begun[row["round"]]], dict(row["figures"])["avg@1"]))
    for policy in policies:
        rows = [row for row in run.table("batches").to_pylist() if row["policy"] == policy and row["consumed"]]
        curves[policy] = [(at[row["decision"]], row["reward_mean"]) for row in rows]
    return curves


# --- tables and pictures ------------------------------------------------------------------------------


def score_at(points: Sequence[Point], tokens: int) -> float:
    """The score that a curve has at so many tokens, between its points in a straight line."""
    before = [point for point in points if point[0] <= tokens][-1]
    after = next((point for point in points if point[0] > tokens), before)
    share = (tokens - before[0]) / (after[0] - before[0]) if after != before else 0.0
    return before[1] + share * (after[1] - before[1])


def summary(found: dict[str, list[Curves]]) -> list[dict[str, Any]]:
    """A row a variant: means over the seeds at the tokens that all have spent, and how rewards went."""
    budget = min(curves["score"][-1][0] for seeds in found.values() for curves in seeds)
    rows = []
    for variant, seeds in found.items():
        scores = [score_at(curves["score"], budget) for curves in seeds]
        row: dict[str, Any] = {
            "variant": variant,
            "start": statistics.mean(curves["score"][0][1] for curves in seeds),
            f"score at {budget} tokens": statistics.mean(scores),
            "standard error": statistics.stdev(scores) / math.sqrt(len(scores)) if len(scores) > 1 else None,
        }
        for policy in VARIANTS[variant][1]:
            ends = [[value for _, value in curves[policy]] for curves in seeds]
            tenth = [max(1, len(values) // 10) for values in ends]
            first = statistics.mean(statistics.mean(v[:n]) for v, n in zip(ends, tenth, strict=True))
            last = statistics.mean(statistics.mean(v[-n:]) for v, n in zip(ends, tenth, strict=True))
            row[f"reward of {policy}"] = f"{first:.3f} → {last:.3f}"
        rows.append(row)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown."""
    names = list(dict.fromkeys(name for row in rows for name in row))

    def cell(value: Any) -> str:
        return "–" if value is None else f"{value:.3f}" if isinstance(value, float) else f"{value}"

    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    return "\n".join([*lines, *("| " + " | ".join(cell(row.get(name)) for name in names) + " |" for row in rows)])


def main() -> None:
    """Run all variants of all seeds, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tokens", type=int, default=300_000, help="about how many a run samples")
    parser.add_argument("--partial", type=Path, default=None, help="keeps finished curves, and goes on from them")
    parser.add_argument("--picture", type=Path, default=None)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    done: dict[str, Curves] = json.loads(given.partial.read_text()) if given.partial and given.partial.exists() else {}
    with tempfile.TemporaryDirectory(prefix="astraflow-policies-") as name:
        study = Study(Path(name), given.tokens)
        for seed in given.seeds:
            missing = [variant for variant in VARIANTS if f"{seed}/{variant}" not in done]
            models = study.warm(seed) if missing else {}
            for variant in missing:
                began = time.monotonic()
                done[f"{seed}/{variant}"] = study.curves(seed, variant, models)
                print(f"seed {seed}, {variant}: {time.monotonic() - began:.0f} s", file=sys.stderr)
                if given.partial:
                    given.partial.parent.mkdir(parents=True, exist_ok=True)
                    given.partial.write_text(json.dumps(done))
    found = {variant: [done[f"{seed}/{variant}"] for seed in given.seeds] for variant in VARIANTS}
    rows = summary(found)
    if given.picture:
        scores = {variant: [curves["score"] for curves in seeds] for variant, seeds in found.items()}
        given.picture.write_text(picture(scores, "Score", "tokens sampled"))
    report = {"benchmark": "multi_policy", "rows": rows, "curves": found, "seeds": given.seeds}
    print(json.dumps(report, indent=2) if given.json else table(rows))


if __name__ == "__main__":
    main()
