"""From the command line: imitate a file, learn from reward with two ranks, be distilled into a fresh model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from astraflow import open_run
from astraflow.problems import addition
from tests.e2e.stack import LocalStack

pytestmark = [pytest.mark.e2e, pytest.mark.soak]  # three runs, one after the other

RECIPE = """
name = "imitate"
workflow = { name = "demonstrate" }
problems = { source = "sums.jsonl" }
policies.solver = { model = "tiny-qwen3", sampling = { max_tokens = 4 } }
dataflow = { group_size = 1, drain_s = 4 }
trainer = { kind = "sft", steps = 40, batch_size = 32, lr = 3e-3, checkpoint_every = 20 }
pools.local = { capacity = 64, flush_s = 0.0 }
"""
REWARDED = """
extends = "imitate.toml"
name = "rewarded"
workflow.name = "solve"
dataflow.group_size = 4
trainer = { kind = "rl", steps = 3, batch_size = 4, lr = 1e-4, ranks = 2 }
policies.solver.model = "imitated"
"""
DISTILLED = """
extends = "rewarded.toml"
name = "distilled"
trainer = { kind = "distill", steps = 4, lr = 1e-3, ranks = 1, teacher = "imitated" }
policies.solver.model = "tiny-qwen3"
"""


def rows(stack: LocalStack, run: str) -> list[dict[str, float]]:
    """The run's steps table."""
    return open_run(f"{stack.folder}/store/{run}").sql("select * from steps order by step").to_pylist()


def test_sft_then_rl_then_distillation(stack: LocalStack, tmp_path: Path) -> None:
    lines = [json.dumps({"prompt": p.prompt, "completion": p.answer}) for p in addition(0, digits=1, count=100)]
    (tmp_path / "sums.jsonl").write_text("\n".join(lines))
    for name, text in (("imitate", RECIPE), ("rewarded", REWARDED), ("distilled", DISTILLED)):
        (tmp_path / f"{name}.toml").write_text(text)

    stack.astraflow("run", str(tmp_path / "imitate.toml"), timeout_s=600).ok()
    imitated = rows(stack, "imitate")
    assert len(imitated) == 40 and imitated[-1]["loss"] < 0.5 * imitated[0]["loss"]
    stack.astraflow("export", "imitate", "solver", "--to", str(tmp_path / "imitated")).ok()

    stack.astraflow("run", str(tmp_path / "rewarded.toml"), timeout_s=600).ok()
    rewarded = rows(stack, "rewarded")
    assert len(rewarded) == 3 and all(row["step_refused"] == 0 for row in rewarded)
    assert rewarded[0]["mismatch_mean"] < 0.02  # what the engine said is what two ranks compute

    stack.astraflow("run", str(tmp_path / "distilled.toml"), timeout_s=600).ok()
    distilled = rows(stack, "distilled")
    assert len(distilled) == 4 and distilled[0]["teacher_kl"] > 0.1
