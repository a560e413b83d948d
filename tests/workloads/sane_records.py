"""Whether what a run recorded can be: every row of it, against its config, its tokenizer and its own logs.

    python -m tests.workloads.sane_records STORE RUN

Prints one line of figures as JSON; what cannot be is listed on stderr, and the exit code is 1. Rewards are worked out
again from what the answers say, as far as the run's workflow is known here, so a reward that belongs to another answer
is found. Nothing but the store is asked.
"""

from __future__ import annotations

import asyncio
import json
import math
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astraflow.models import download_model_files, load_tokenizer
from astraflow.problems import problems_from_table
from astraflow.query import Run
from astraflow.rewards import ScoredProblem, load_reward
from astraflow.trajectory import from_runs
from astraflow.workflows.environment_agent import environment_agent
from astraflow.workflows.render import Renderer, stop_ids
from astraflow.workflows.solve import ask, fill, solve
from storage import open_store
from storage.tables import read_table

Row = Mapping[str, Any]
NEAR = 1e-5  # rewards are kept in 32 bits


@dataclass(frozen=True)
class Policy:
    """What a policy's rows are held to."""

    renderer: Renderer
    vocabulary: int
    stop_ids: frozenset[int]
    stop: tuple[str, ...]
    max_tokens: int


class Records:
    """One run's rows and what they are compared with."""

    def __init__(self, run: Run) -> None:
        self.run, self.config = run, run.config
        table = read_table(run.store, run.keys.problems(self.config.data_hash))
        self.problems = {problem.id: problem for problem in problems_from_table(table)}
        self.policies = {name: self._policy(name) for name in self.config.policies}
        self.rows: list[Row] = run.trajectories().to_table().to_pylist()

    def _policy(self, name: str) -> Policy:
        sampling = self.config.policies[name].sampling
        with tempfile.TemporaryDirectory() as folder:
            download_model_files(self.run.store, self.run.keys, name, Path(folder))
            tokenizer = load_tokenizer(folder)
            said = json.loads((Path(folder) / "config.json").read_text())
            generation = Path(folder) / "generation_config.json"
            eos = json.loads(generation.read_text()).get("eos_token_id") if generation.exists() else []
        ends = stop_ids(tokenizer, sampling.stop_tokens, [eos] if isinstance(eos, int) else eos or [])
        renderer = Renderer(tokenizer)
        return Policy(renderer, said["vocab_size"], ends, tuple(sampling.stop), sampling.max_tokens)

    def faults(self) -> list[str]:
        """Everything that cannot be, a line each."""
        found = [f"{row['trajectory_id']}: {fault}" for row in self.rows for fault in self._row_faults(row)]
        found += [*self._reward_faults(), *self._group_faults(), *self._lag_faults(), *self._table_faults()]
        return found

    # --- one row ------------------------------------------------------------------------------------

    def _row_faults(self, row: Row) -> Iterator[str]:
        ids, logprobs, mask = row["response_ids"], row["logprobs"], row["loss_mask"]
        policy = self.policies[row["policy"]]
        if not len(ids) == len(logprobs) == len(mask):
            yield f"{len(ids)} ids, {len(logprobs)} log-probs, {len(mask)} marks"
            return
        if not any(mask):
            yield "nothing was sampled"
        strange = [i for i in [*row["prompt_ids"], *ids] if not 0 <= i < policy.vocabulary]
        if strange:
            yield f"ids outside of the vocabulary: {strange[:5]}"
        sampled = [logprob for logprob, own in zip(logprobs, mask, strict=True) if own]
        if not all(math.isfinite(logprob) and logprob <= 0 for logprob in sampled):
            yield f"log-probs above 0 or none: {[x for x in sampled if not x <= 0][:5]}"
        if any(logprob for logprob, own in zip(logprobs, mask, strict=True) if not own):
            yield "an injected token has a log-prob"
        if not math.isfinite(row["reward"]):
            yield f"reward {row['reward']}"
        yield from self._turn_faults(row, policy)
        yield from self._version_faults(row)
        yield from self._prompt_faults(row, policy)

    def _turn_faults(self, row: Row, policy: Policy) -> Iterator[str]:
        """Turns cover the response, the model's own carry loss, and each ended as it says."""
        end = 0
        for turn in row["turns"]:
            if turn["start"] != end or turn["end"] <= turn["start"]:
                yield f"turns do not follow each other at {end}"
            end = turn["end"]
            own = turn["role"] == "assistant"
            if set(row["loss_mask"][turn["start"] : end]) != {own}:
                yield f"loss on a turn of {turn['role']}" if not own else "an answer without loss"
            if own:
                yield from _ending_faults(row["response_ids"][turn["start"] : end], turn["finish_reason"], policy)
        if end != len(row["response_ids"]):
            yield f"turns end at {end} of {len(row['response_ids'])}"

    def _version_faults(self, row: Row) -> Iterator[str]:
        versions = from_runs(row["version_start"], row["version_id"], len(row["response_ids"]))
        sampled = [version for version, own in zip(versions, row["loss_mask"], strict=True) if own]
        if sampled != sorted(sampled):
            yield "versions fall along the tokens"
        unknown = {v for v in versions if (row["policy"], v) not in self.run.fold.versions}
        if unknown:
            yield f"versions that were never published: {sorted(unknown)}"
        if sampled and (min(sampled), max(sampled)) != (row["version_min"], row["version_max"]):
            yield f"versions {min(sampled)}-{max(sampled)}, said {row['version_min']}-{row['version_max']}"

    def _prompt_faults(self, row: Row, policy: Policy) -> Iterator[str]:
        """What the model was shown has the problem in it; for ``solve`` it is that to the last token."""
        problem = self.problems[row["problem_id"]]
        shown = policy.renderer.decode(row["prompt_ids"], special=True)
        if problem.prompt.strip() not in shown:
            yield "the prompt does not show the problem"
        if self.config.workflow.name == solve.name:
            options = self.config.workflow.options
            question = fill(options.get("prompt", "{prompt}"), prompt=problem.prompt)
            expected = policy.renderer.text(ask(question, options.get("system_prompt", "")))
            if policy.renderer.prompt(expected) != row["prompt_ids"]:
                yield f"the prompt is {shown!r}, not {expected!r}"

    # --- rewards ------------------------------------------------------------------------------------

    def _reward_faults(self) -> list[str]:
        expected = asyncio.run(self._earned())
        return [
            f"{row['trajectory_id']}: reward {row['reward']}, earned {earned}"
            for row, earned in zip(self.rows, expected, strict=True)
            if earned is not None and not abs(earned - row["reward"]) < NEAR
        ]

    async def _earned(self) -> list[float | None]:
        """What each row's answer earns; None where that is not known here."""
        scorer: Any = load_reward(self.config.problems.reward)
        try:
            return list(await asyncio.gather(*(self._earned_by(row, scorer) for row in self.rows)))
        finally:
            if hasattr(scorer, "close"):
                await scorer.close()

    async def _earned_by(self, row: Row, scorer: Any) -> float | None:
        parts = dict(row["reward_parts"] or {})
        match self.config.workflow.name:
            case "solve":
                return await ScoredProblem.of(self.problems[row["problem_id"]], scorer).score(self.answer(row))
            case "search_agent":
                return float(parts["f1"] * parts["format"])
            case "environment_agent":
                known = environment_agent.play.__kwdefaults__ or {}
                options = {**known, **self.config.workflow.options}
                if parts["score"] <= 0:
                    return float(options["failure"])
                return float(parts["score"] * options["discount"] ** (parts["actions"] - 1))
        return None

    def answer(self, row: Row) -> str:
        """The text of a row's last answer, without the token that ended it."""
        turn, policy = row["turns"][-1], self.policies[row["policy"]]
        ids = row["response_ids"][turn["start"] : turn["end"]]
        kept = ids[:-1] if ids[-1] in policy.stop_ids else ids
        return policy.renderer.decode(kept, special=False)

    # --- the whole ----------------------------------------------------------------------------------

    def _group_faults(self) -> Iterator[str]:
        """Each admitted part has every episode of its group, each with sequences from slot 0 on."""
        slots: dict[tuple[str, int], dict[tuple[int, str], list[int]]] = defaultdict(lambda: defaultdict(list))
        for row in self.rows:
            slots[row["policy"], row["group_id"]][row["episode"], row["role"]].append(row["slot"])
        for (policy, group), found in slots.items():
            if {episode for episode, _ in found} != set(range(self.config.dataflow.group_size)):
                yield f"{policy} of group {group}: episodes {sorted(found)}"
            for place, numbers in found.items():
                if sorted(numbers) != list(range(len(numbers))):
                    yield f"{policy} of group {group}, {place}: slots {sorted(numbers)}"

    def _lag_faults(self) -> Iterator[str]:
        """Every token that was trained on has a lag from 0 to the largest that is allowed."""
        batch_of = {
            (part["policy"], part["group_id"]): part["batch"]
            for part in self.run.table("parts").to_pylist()
            if part["state"] == "consumed"
        }
        for row in self.rows:
            batch = batch_of.get((row["policy"], row["group_id"]))
            if batch is None:
                continue
            steps = {v: self.run.fold.versions[row["policy"], v].step for v in row["version_id"]}
            lags = [batch - step for step in steps.values()]
            if min(lags) < 0 or max(lags) > self.config.dataflow.max_staleness:
                yield f"{row['trajectory_id']}: lag {min(lags)} to {max(lags)} in batch {batch}"

    def _table_faults(self) -> Iterator[str]:
        """The tables say what the rows say, and the run ended as it should."""
        figures = self.run.figures()
        if figures.state != "stopped" or figures.rejected:
            yield f"the run is {figures.state}, rejected {figures.rejected}"
        for policy in self.config.trained:
            wanted = self.config.trainer_of(policy).steps
            if (figures.policies[policy].steps, figures.policies[policy].ended) != (wanted, "done"):
                yield f"{policy}: {figures.policies[policy].steps} of {wanted} steps, {figures.policies[policy].ended}"
        query = (
            "select p.policy, p.group_id, p.rows, p.response_tokens as tokens, p.reward_mean as reward, "
            "count(*) as seen, sum(len(t.response_ids)) as seen_tokens, avg(t.reward) as seen_reward "
            "from parts p join trajectories t on p.policy = t.policy and p.group_id = t.group_id "
            "where p.path is not null group by all"
        )
        parts = self.run.sql(query).to_pylist()
        for part in parts:
            same = part["rows"] == part["seen"] and part["tokens"] == part["seen_tokens"]
            if not same or not abs(part["reward"] - part["seen_reward"]) < NEAR:
                yield f"the table of parts and the rows differ: {part}"
        if sum(part["seen"] for part in parts) != len(self.rows):
            yield f"{len(self.rows)} rows, {sum(part['seen'] for part in parts)} of them in parts"

    def figures(self) -> dict[str, Any]:
        """What the run comes to: steps, rewards of its first and last batches, rows, tokens, endings, failures."""
        batches = [row for row in self.run.table("batches").to_pylist() if row["consumed"]]
        rewards = [row["reward_mean"] for row in batches]
        endings = Counter(t["finish_reason"] for row in self.rows for t in row["turns"] if t["role"] == "assistant")
        drops = self.run.fold.drops.items()
        return {
            "run": self.config.name,
            "steps": len(batches),
            "reward": [_rounded(rewards[:2]), _rounded(rewards[-2:])],
            "trajectories": len(self.rows),
            "tokens": sum(sum(row["loss_mask"]) for row in self.rows),
            "injected": sum(len(row["loss_mask"]) - sum(row["loss_mask"]) for row in self.rows),
            "scores": dict(sorted(Counter(round(row["reward"], 3) for row in self.rows).items())),
            "endings": dict(sorted(endings.items())),
            "lag": max((row["lag_max"] for row in batches), default=None),
            "failed": dict(self.run.fold.failures),
            "dropped": {f"{policy} {reason}": count for (policy, reason), count in drops},
        }


def _ending_faults(ids: Sequence[int], reason: str, policy: Policy) -> Iterator[str]:
    """An answer ends as it says: by a token or text that ends answers, or by its length."""
    if len(ids) > policy.max_tokens:
        yield f"an answer of {len(ids)} tokens, {policy.max_tokens} are the most"
    by_token = ids[-1] in policy.stop_ids
    text = policy.renderer.decode(list(ids), special=True) if policy.stop else ""
    by_text = any(stop in text for stop in policy.stop)
    if reason == "stop" and not (by_token or by_text):
        yield "an answer ended by «stop» without anything that stops"
    if reason == "length" and (by_token or by_text):
        yield "an answer ended by «length» behind what stops"
    if reason not in ("stop", "length"):
        yield f"an answer ended by {reason!r}"
    if any(i in policy.stop_ids for i in ids[:-1]):
        yield "an answer goes on behind a token that ends it"


def _rounded(values: Sequence[float]) -> float:
    return round(sum(values) / len(values), 4) if values else math.nan


def check(run: Run) -> dict[str, Any]:
    """The figures of a run whose records are sane. Raises ``AssertionError`` with what is not."""
    records = Records(run)
    found = records.faults()
    assert not found, "\n".join(found)
    return records.figures()


def main() -> None:
    """Print the figures; exit with 1 if anything cannot be."""
    store, name = sys.argv[1:]
    records = Records(Run(open_store(store), name))
    print(json.dumps(records.figures()))
    found = records.faults()
    if found:
        print("\n".join(found), file=sys.stderr)
        raise SystemExit(1)


if __name__ == "__main__":
    main()
