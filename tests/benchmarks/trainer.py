"""What a trainer costs beyond the model: the framework around a step, its memory, and its step beside TRL's.

    python tests/benchmarks/trainer.py --model DIR [--rows 8] [--prompt 64] [--response 128] [--pairs 5] [--json]

DIR is a Hugging Face causal LM (``infra/smollm2.py`` makes that of the 135M model), or ``tiny``. One
recorded batch, AdamW, fp32 masters, one thread; pairs alternate within one run, the first of each is left out, medians.
Process time, so that others on the machine do not matter.

``overhead``: share of a step, and of making the bf16 copy that is published, which is not forward (log-probs included),
backward, clipping or the optimizer. ``publish_share``: what publishing that copy to a local store adds to a step; pools
and the next batch's reading go on meanwhile, the step does not.
``memory_vs_bare``: peak resident memory beside a bare loop's, each in a process of
its own. ``vs_trl``: TRL's step time over ours, if ``--trl PYTHON`` names an interpreter that has TRL.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import astraflow.trainer.step as step_module
from astraflow.config import Trainer
from astraflow.models import build_tiny_qwen3, load_causal_lm
from astraflow.trainer.cast import Bf16Weights
from astraflow.trainer.learner import Learner, new_optimizer
from astraflow.trainer.losses import Grpo
from astraflow.trainer.reader import LoadedBatch, Part, Sequence
from astraflow.trainer.step import train_batch
from astraflow.weights.publisher import Publisher
from storage import open_store
from storage.keys import RunKeys

LR = 1e-6


def recorded(rows: int, prompt: int, response: int, vocabulary: int) -> LoadedBatch:
    """Two parts of sequences of uneven length, up to ``prompt`` and ``response`` tokens."""
    rng = np.random.default_rng(0)
    sequences = []
    for number in range(rows):
        length = response if number == 0 else int(rng.integers(response // 2, response + 1))
        sequences.append(
            Sequence(
                pool="local",
                prompt_ids=rng.integers(5, vocabulary, prompt).astype(np.int32),
                response_ids=rng.integers(5, vocabulary, length).astype(np.int32),
                logprobs=np.full(length, -np.log(vocabulary), np.float32),
                loss_mask=np.ones(length, np.bool_),
                lags=np.zeros(length, np.int64),
                reward=float(number % 2),
                temperature=1.0,
            )
        )
    return LoadedBatch(0, [Part(0, sequences[: rows // 2]), Part(1, sequences[rows // 2 :])], {})


def bare_step(model: Any, optimizer: torch.optim.Optimizer, batch: LoadedBatch) -> None:
    """The loop that one would write for this batch alone: padded rows, log_softmax, PPO's loss, clip, step."""
    sequences = [sequence for part in batch.parts for sequence in part.sequences]
    width = max(len(s.prompt_ids) + len(s.response_ids) for s in sequences)
    start = len(sequences[0].prompt_ids)
    ids = torch.zeros(len(sequences), width, dtype=torch.int64)
    mask = torch.zeros(len(sequences), width - start)
    old = torch.zeros(len(sequences), width - start)
    for line, s in enumerate(sequences):
        whole = np.concatenate([s.prompt_ids, s.response_ids])
        ids[line, : len(whole)] = torch.from_numpy(whole.astype(np.int64))
        mask[line, : len(s.response_ids)] = 1
        old[line, : len(s.response_ids)] = torch.from_numpy(s.logprobs)
    rewards = torch.tensor([[s.reward for s in part.sequences] for part in batch.parts])
    advantages = (rewards - rewards.mean(-1, keepdim=True)) / (rewards.std(-1, unbiased=False, keepdim=True) + 1e-6)
    logits = model(input_ids=ids, use_cache=False, logits_to_keep=width - start + 1).logits[:, :-1]
    logprobs = torch.log_softmax(logits, -1).gather(-1, ids[:, start:, None]).squeeze(-1)
    ratio = (logprobs - old).exp()
    a = advantages.flatten()[:, None]
    loss = (-torch.minimum(a * ratio, a * ratio.clamp(0.8, 1.28)) * mask).sum() / mask.sum()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def median_pairs(first: Callable[[], None], second: Callable[[], None], pairs: int) -> tuple[float, float]:
    """Median seconds of each, taken in turns; the first pair warms up."""
    times: tuple[list[float], list[float]] = ([], [])
    for number in range(pairs + 1):
        for work, found in zip((first, second), times, strict=True):
            began = time.process_time()
            work()
            if number:
                found.append(time.process_time() - began)
    return statistics.median(times[0]), statistics.median(times[1])


def learner(folder: str, budget: int) -> Learner:
    model = load_causal_lm(folder, torch.float32)
    config = Trainer(lr=LR, micro_batch_tokens=budget, weight_decay=0.0)
    return Learner(model, new_optimizer(model, config), Grpo(), config, pad_id=0, constant_tokens=128)


class Inner:
    """Seconds within forward, backward, clipping and the optimizer, of everything that calls them."""

    def __init__(self, pupil: Learner) -> None:
        self.seconds = 0.0
        self._places: list[tuple[Any, str]] = [
            (step_module, "_logprobs"),
            (torch.autograd, "backward"),
            (torch.nn.utils, "clip_grad_norm_"),
            (pupil.optimizer, "step"),
        ]
        self._calls = [getattr(owner, name) for owner, name in self._places]

    def __enter__(self) -> Inner:
        for (owner, name), call in zip(self._places, self._calls, strict=True):
            setattr(owner, name, self._timed(call))
        return self

    def __exit__(self, *_: object) -> None:
        for (owner, name), call in zip(self._places, self._calls, strict=True):
            setattr(owner, name, call)

    def _timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            began = time.process_time()
            try:
                return call(*arguments, **named)
            finally:
                self.seconds += time.process_time() - began

        return wrapped


def overhead(folder: str, batch: LoadedBatch, budget: int, pairs: int) -> dict[str, float]:
    """Shares of a step outside of the model, and of publishing it."""
    pupil = learner(folder, budget)
    weights = Bf16Weights(pupil.model)
    shares, published, steps = [], [], []
    with tempfile.TemporaryDirectory() as store:
        publisher = Publisher(open_store(store), RunKeys("bench"), "solver", anchor_every=10**9)
        for number in range(pairs + 1):
            with Inner(pupil) as inner:
                began = time.process_time()
                train_batch(pupil, batch)
                tensors = weights.refresh()
                whole = time.process_time() - began
            publisher.publish(tensors, step=number, incarnation=0, batch=number - 1)
            if number:
                shares.append((whole - inner.seconds) / whole)
                published.append((time.process_time() - began - whole) / whole)
                steps.append(whole)
    return {
        "overhead": round(statistics.median(shares), 4),
        "publish_share": round(statistics.median(published), 4),
        "step_s": round(statistics.median(steps), 3),
    }


def against_bare(folder: str, batch: LoadedBatch, budget: int, pairs: int) -> dict[str, float]:
    """Our step's time beside the bare loop's on the same model size."""
    pupil = learner(folder, budget)
    model = load_causal_lm(folder, torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0, fused=True)
    ours, bare = median_pairs(lambda: _train(pupil, batch), lambda: bare_step(model, optimizer, batch), pairs)
    return {"vs_bare": round(bare / ours, 3), "ours_s": round(ours, 3), "bare_s": round(bare, 3)}


def _train(pupil: Learner, batch: LoadedBatch) -> None:
    train_batch(pupil, batch)


def peak_mb(work: str, given: argparse.Namespace) -> float:
    """Peak resident memory of one kind of step in a process of its own."""
    command = [sys.executable, __file__, "--work", work, "--model", given.model]
    for name in ("rows", "prompt", "response", "budget"):
        command += [f"--{name}", str(getattr(given, name))]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def memory(given: argparse.Namespace) -> dict[str, float]:
    """Our peak beside the bare loop's."""
    ours, bare = peak_mb("ours", given), peak_mb("bare", given)
    return {"memory_vs_bare": round(ours / bare, 3), "ours_mb": round(ours), "bare_mb": round(bare)}


def alone(work: str, folder: str, batch: LoadedBatch, budget: int) -> None:
    """Two steps of one kind, and the peak of memory."""
    if work == "ours":
        pupil = learner(folder, budget)
        for _ in range(2):
            train_batch(pupil, batch)
    else:
        model = load_causal_lm(folder, torch.float32)
        optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0, fused=True)
        for _ in range(2):
            bare_step(model, optimizer, batch)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6)


def against_trl(given: argparse.Namespace, batch: LoadedBatch) -> dict[str, float]:
    """TRL's step on the same batch and model, by a process that alternates with ours (see ``trl_step.py``)."""
    sequences = [sequence for part in batch.parts for sequence in part.sequences]
    rows = [
        {"prompt": s.prompt_ids.tolist(), "response": s.response_ids.tolist(), "logprobs": s.logprobs.tolist()}
        for s in sequences
    ]
    rewards = [s.reward for s in sequences]
    script = str(Path(__file__).with_name("trl_step.py"))
    server = subprocess.Popen(
        [given.trl, script, given.model], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert server.stdin is not None and server.stdout is not None
    server.stdin.write(json.dumps({"rows": rows, "rewards": rewards, "lr": LR, "group": len(rows) // 2}) + "\n")

    def answer() -> dict[str, Any]:
        for line in server.stdout or ():
            if line.startswith("{"):
                found: dict[str, Any] = json.loads(line)
                return found
        raise RuntimeError("TRL's process ended")

    answer()  # it has built its trainer
    pupil = learner(given.model, given.budget)
    ours, theirs = [], []
    for number in range(given.pairs + 1):
        began = time.process_time()
        train_batch(pupil, batch)
        took = time.process_time() - began
        server.stdin.write("step\n")
        told = answer()
        if number:
            ours.append(took)
            theirs.append(float(told["seconds"]))
    server.stdin.close()
    server.wait(timeout=60)
    mine, other = statistics.median(ours), statistics.median(theirs)
    return {"vs_trl": round(other / mine, 3), "trl_s": round(other, 3), "ours_beside_trl_s": round(mine, 3)}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description="Cost of a trainer's step.")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--response", type=int, default=128)
    parser.add_argument("--budget", type=int, default=16384)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--trl", default="", help="a Python that has TRL")
    parser.add_argument("--work", choices=["ours", "bare"], help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        if given.model == "tiny":
            build_tiny_qwen3(Path(folder), 0)
            given.model = folder
        vocabulary = json.loads((Path(given.model) / "config.json").read_text())["vocab_size"]
        batch = recorded(given.rows, given.prompt, given.response, vocabulary)
        if given.work:
            alone(given.work, given.model, batch, given.budget)
            return
        figures: dict[str, float] = {}
        stages: list[Callable[[], dict[str, float]]] = [
            lambda: overhead(given.model, batch, given.budget, given.pairs),
            lambda: against_bare(given.model, batch, given.budget, given.pairs),
            lambda: memory(given),
        ]
        if given.trl:
            stages.insert(0, lambda: against_trl(given, batch))
        for stage in stages:
            found = stage()
            figures |= found
            print(found, file=sys.stderr, flush=True)
    print(json.dumps(figures) if given.json else "\n".join(f"{name:18} {value}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
