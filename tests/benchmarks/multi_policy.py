"""What a second policy buys: a solver alone against solver and verifier, and solver and selector, at equal tokens.

    python tests/benchmarks/multi_policy.py [--task picks] [--seeds 0 1 2] [--tokens 300000] [--partial F.json]

Two tasks of the tiny model: two-digit sums, where a verdict is as hard as an answer, and picks (``picks.py``), where
it is easier. Manager, pool and trainers are processes, without Prefect. Each seed has one warmed-up solver, verifier
and selector, and all variants start from them. *Score* is the share of 500 held-out problems that the whole workflow
answers right, sampled at temperature 1 by the product's own evaluations beside training; *tokens* are what all policies
sampled in groups that were admitted before the round. Every variant has the same budget of them. A selector's
*choices* are its right ones among those where the two answers differ in rightness: its reward is ½ for all others.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablation import picture
from picks import TAKEN, picks
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
problems.reward.name = "{reward}"
[dataflow]
group_size = 8
max_staleness = 2
[trainer]
steps = {steps}
batch_size = 32
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
problems.reward.name = "{reward}"
every = {every}
role = "{role}"
part = "{part}"
"""
POLICY = """
[policies.{name}]
model = {model}
sampling = {{ max_tokens = {max_tokens} }}
trainer = {{ lr = {lr} }}
"""
WARMUP = "warmup = {{ until_accuracy = {until}, max_steps = {most}, batch_size = 128, lr = 1e-3 }}\n"
VERIFY = (
    'workflow = {{ name = "solve_and_verify", options = {{ rounds = {rounds}, accept = "1", reject = "0", '
    'retry_prompt = "{retry}", verify_prompt = "{{prompt}}{{answer}}?" }} }}\n'
)
SELECT = (
    'workflow = {{ name = "solve_and_select", options = {{ one = "1", two = "2", '
    'select_prompt = "{{prompt}}{{first}}-{{second}}?" }} }}\n'
)
# How an episode is played, who plays, and whose word is scored.
VARIANTS: dict[str, tuple[str, tuple[str, ...], tuple[str, str]]] = {
    "solver": ("", ("solver",), ("solver", "")),
    "solver + verifier": (VERIFY, ("solver", "verifier"), ("solver", "")),
    "solver + selector": (SELECT, ("solver", "selector"), ("selector", "final")),
}


@dataclass(frozen=True)
class Task:
    """What is asked, how long answers and verdicts are, and where the supervised start ends."""

    make: Callable[[int, int], list[Problem]]  # of a seed, so many
    train: int
    reward: str
    max_tokens: dict[str, int]
    per_episode: dict[str, float]  # about how many tokens an episode of a variant has
    play: dict[str, str | int]  # the most rounds with a verifier, and what a rejected solver is asked
    until: dict[str, float]
    warmup_steps: int
    lr: dict[str, float]


TASKS = {
    "sums": Task(
        make=lambda seed, count: addition(seed, digits=2, count=count),
        train=4096,
        reward="exact",
        max_tokens={"solver": 4, "verifier": 2, "selector": 2},
        per_episode={"solver": 4.0, "solver + verifier": 9.0, "solver + selector": 10.0},
        play={"rounds": 2, "retry": "{prompt}{answer}-"},
        until={"solver": 0.3, "verifier": 0.6, "selector": 0.6},
        warmup_steps=800,
        lr={"solver": 3e-4, "verifier": 3e-4, "selector": 3e-4},
    ),
    "picks": Task(
        make=picks,
        train=16384,
        reward="picks:comes_to",
        max_tokens={"solver": TAKEN, "verifier": 1, "selector": 1},
        per_episode={"solver": TAKEN, "solver + verifier": 1.6 * (TAKEN + 1), "solver + selector": 2 * TAKEN + 1},
        play={"rounds": 2, "retry": "{prompt}"},
        until={"solver": 0.07, "verifier": 0.95, "selector": 0.85},
        warmup_steps=3000,
        lr={"solver": 3e-4, "verifier": 5e-5, "selector": 3e-4},
    ),
}
HELD_OUT = 500
ROUNDS = 10
Point = tuple[int, float]  # tokens, score
Curves = dict[str, list[Point]]  # «score», and the rewards of each policy


class Study:
    """Runs that sample about so many tokens each; warmed-up models are kept in ``models``."""

    def __init__(self, folder: Path, models: Path, task: Task, tokens: int) -> None:
        self._folder, self._models, self._task, self._tokens = folder, models, task, tokens

    def warm(self, seed: int, variants: Sequence[str]) -> dict[str, Path]:
        """Folders of the models that the variants of a seed start from."""
        models = {policy: self._models / f"model-{seed}-{policy}" for policy in ("solver", "verifier", "selector")}
        for name, play, trained in (("verify", VERIFY, "verifier"), ("select", SELECT, "selector")):
            cold = [policy for policy in ("solver", trained) if not models[policy].exists()]
            if not cold or (trained == "selector" and "solver + selector" not in variants):
                continue
            texts = [play.format(**self._task.play), self._base(seed, f"warm-{name}-{seed}", 1)]
            for policy in ("solver", trained):
                texts.append(self._policy(policy, "tiny-qwen3" if policy in cold else models[policy]))
                if policy in cold:
                    texts.append(WARMUP.format(until=self._task.until[policy], most=self._task.warmup_steps))
            run = self._run(f"warm-{name}-{seed}", texts)
            for policy in cold:
                export_policy(run.store, run.keys, policy, self._folder / "export", version=0)
                models[policy].parent.mkdir(parents=True, exist_ok=True)
                shutil.move(self._folder / "export", models[policy])
        return models

    def curves(self, seed: int, variant: str, models: dict[str, Path]) -> Curves:
        """One variant's run, and what became of it."""
        play, policies, (role, part) = VARIANTS[variant]
        steps = max(ROUNDS, round(self._tokens / (32 * 8 * self._task.per_episode[variant])))
        name = f"{'-'.join(policies)}-{seed}"
        texts = [
            play.format(**self._task.play),
            self._base(seed, name, steps),
            *(self._policy(policy, models[policy]) for policy in policies),
        ]
        held, every = json.dumps(str(self._problems(seed)[1])), max(1, steps // ROUNDS)
        texts.append(EVALUATION.format(held=held, reward=self._task.reward, every=every, role=role, part=part))
        return _read(self._run(name, texts), policies)

    def _problems(self, seed: int) -> tuple[Path, Path]:
        """Files of the problems that are trained on and, all of them others, of those that are held out."""
        files = self._folder / f"train-{seed}.jsonl", self._folder / f"held-{seed}.jsonl"
        if files[1].exists():
            return files
        made = self._task.make(seed, self._task.train + HELD_OUT)
        for file, part in zip(files, (made[:-HELD_OUT], made[-HELD_OUT:]), strict=True):
            file.write_text("\n".join(map(_line, part)))
        return files

    def _base(self, seed: int, name: str, steps: int) -> str:
        train = json.dumps(str(self._problems(seed)[0]))
        return RECIPE.format(name=name, seed=seed, steps=steps, train=train, reward=self._task.reward)

    def _policy(self, name: str, model: Path | str) -> str:
        task = self._task
        values = {"model": json.dumps(str(model)), "max_tokens": task.max_tokens[name], "lr": task.lr[name]}
        return POLICY.format(name=name, **values)

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
    batches = [row for row in run.table("batches").to_pylist() if row["consumed"]]
    for policy in policies:
        rows = [row for row in batches if row["policy"] == policy]
        curves[policy] = [(at[row["decision"]], row["reward_mean"]) for row in rows]
    if "selector" in policies:
        curves["choices"] = _choices(
            run, {row["n"]: at[row["decision"]] for row in batches if row["policy"] == "selector"}
        )
    return curves


def _choices(run: Run, spent: dict[int, int]) -> list[Point]:
    """By batch of the selector: the share of right choices among those between a right and a wrong answer."""
    query = (
        "select p.batch, avg(t.reward) as reward from trajectories t join parts p on p.policy = t.policy "
        "and p.group_id = t.group_id where t.role = 'selector' and t.reward_parts['differ'] = 1 "
        "and p.state = 'consumed' group by p.batch order by p.batch"
    )
    return [(spent[row["batch"]], row["reward"]) for row in run.sql(query).to_pylist()]


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
        for policy in [name for name in seeds[0] if name != "score"]:
            name = policy if policy == "choices" else f"reward of {policy}"
            ends = [[value for _, value in curves[policy]] for curves in seeds]
            if not all(ends):  # a solver that is never right leaves nothing to choose
                row[name] = None
                continue
            tenth = [max(1, len(values) // 10) for values in ends]
            first = statistics.mean(statistics.mean(v[:n]) for v, n in zip(ends, tenth, strict=True))
            last = statistics.mean(statistics.mean(v[-n:]) for v, n in zip(ends, tenth, strict=True))
            row[name] = f"{first:.3f} → {last:.3f}"
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
    parser.add_argument("--task", choices=TASKS, default="sums")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--tokens", type=int, default=300_000, help="about how many a run samples")
    parser.add_argument("--partial", type=Path, default=None, help="keeps finished curves, and goes on from them")
    parser.add_argument("--picture", type=Path, default=None)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    done: dict[str, Curves] = json.loads(given.partial.read_text()) if given.partial and given.partial.exists() else {}
    with tempfile.TemporaryDirectory(prefix="astraflow-policies-") as name:
        models = given.partial.absolute().with_suffix(".models") if given.partial else Path(name) / "models"
        study = Study(Path(name), models / given.task, TASKS[given.task], given.tokens)
        for seed in given.seeds:
            missing = [variant for variant in given.variants if f"{given.task}/{seed}/{variant}" not in done]
            started = study.warm(seed, missing) if missing else {}
            for variant in missing:
                began = time.monotonic()
                done[f"{given.task}/{seed}/{variant}"] = study.curves(seed, variant, started)
                print(f"seed {seed}, {variant}: {time.monotonic() - began:.0f} s", file=sys.stderr)
                if given.partial:
                    given.partial.parent.mkdir(parents=True, exist_ok=True)
                    given.partial.write_text(json.dumps(done))
    found = {variant: [done[f"{given.task}/{seed}/{variant}"] for seed in given.seeds] for variant in given.variants}
    rows = summary(found)
    if given.picture:
        scores = {variant: [curves["score"] for curves in seeds] for variant, seeds in found.items()}
        given.picture.write_text(picture(scores, "Score", "tokens sampled"))
    report = {"benchmark": "multi_policy", "task": given.task, "rows": rows, "curves": found, "seeds": given.seeds}
    print(json.dumps(report, indent=2) if given.json else table(rows))


if __name__ == "__main__":
    main()
