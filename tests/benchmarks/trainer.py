"""What a trainer costs beyond the model: the framework around a step, its memory, and its step beside TRL's.

    python tests/benchmarks/trainer.py --model DIR [--rows 8] [--prompt 64] [--response 128] [--pairs 5] [--json]

DIR is a Hugging Face causal LM (``infra/smollm2.py`` makes that of the 135M model), or ``tiny``. One
recorded batch, AdamW, fp32 masters, one thread; pairs alternate within one run, the first of each is left out, medians.
Process time where nothing else is said, so that others on the machine do not matter.

``overhead``: share of a step that is not forward (log-probs included), backward, clipping or optimizer. The step is
one beside which the version before is published to a local store and recorded, as the trainer's loop does it, with its
own bf16 copy; the other four are those of a step beside which nothing is written. So it holds what publishing slows
the step down by. Wall time; ``overhead_cpu`` is the same in processor time of the thread that trains, on a machine
that others use too. ``framework_share``: that of the step alone, without copy and publishing.
``version_write_s``: how long writing a version takes beside the training.
``memory_vs_bare``: peak resident memory beside a bare loop's, each in a process of its own;
``memory_publishing_vs_bare``: that of a step with publishing, which keeps the weights in bf16 twice.
``vs_trl``: TRL's step time over ours, if ``--trl PYTHON`` names an interpreter that has TRL.
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import astraflow.trainer.step as step_module
from astraflow.config import Trainer
from astraflow.models import build_tiny_qwen3, load_causal_lm
from astraflow.participant import Outbox
from astraflow.trainer.cast import Bf16Weights
from astraflow.trainer.learner import Learner, new_optimizer
from astraflow.trainer.losses import Grpo
from astraflow.trainer.publishing import Publishing
from astraflow.trainer.reader import LoadedBatch, Part, Sequence
from astraflow.trainer.start import published
from astraflow.trainer.step import train_batch
from astraflow.weights.publisher import Publisher
from storage import open_store
from storage.keys import RunKeys

LR = 1e-6
WORKS = ("ours", "publishing", "bare")


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


@dataclass(frozen=True)
class Clocks:
    """Seconds on the wall, and of processor time of this thread."""

    wall_s: float
    cpu_s: float

    @classmethod
    def now(cls) -> Clocks:
        return cls(time.monotonic(), time.thread_time())

    def __add__(self, other: Clocks) -> Clocks:
        return Clocks(self.wall_s + other.wall_s, self.cpu_s + other.cpu_s)

    def __sub__(self, other: Clocks) -> Clocks:
        return Clocks(self.wall_s - other.wall_s, self.cpu_s - other.cpu_s)


class Inner:
    """Seconds within forward, backward, clipping and the optimizer, of everything that calls them."""

    def __init__(self, pupil: Learner) -> None:
        self.clocks = Clocks(0.0, 0.0)
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
            began = Clocks.now()
            try:
                return call(*arguments, **named)
            finally:
                self.clocks += Clocks.now() - began

        return wrapped


class Published:
    """A learner's versions, written to a local store as the trainer's loop does it."""

    def __init__(self, pupil: Learner, folder: str, publishing: Publishing) -> None:
        self._pupil, self._publishing = pupil, publishing
        self._weights = Bf16Weights(pupil.model)
        store, keys = open_store(folder), RunKeys("bench")
        self._publisher = Publisher(store, keys, "solver", anchor_every=10**9)
        self._outbox = Outbox(store, keys, "trainer-solver-0")
        self.write_s: list[float] = []

    def begin(self) -> None:
        """Copy the weights, and have them written."""
        self._publishing.settle()
        tensors, step = self._weights.refresh(), self._pupil.step
        self._publishing.begin(lambda: self._write(tensors, step))

    def _write(self, tensors: dict[str, torch.Tensor], step: int) -> None:
        began_s = time.monotonic()
        manifest = self._publisher.publish(tensors, step=step, incarnation=0, batch=step - 1)
        self._outbox.append([published(manifest)])
        self.write_s.append(time.monotonic() - began_s)


def overhead(folder: str, batch: LoadedBatch, budget: int, pairs: int) -> dict[str, float]:
    """Shares of a step outside of the model; steps with and without publishing beside them take turns."""
    pupil = learner(folder, budget)
    pure, plain, whole = [], [], []
    with tempfile.TemporaryDirectory() as store, Publishing() as publishing:
        versions = Published(pupil, store, publishing)
        versions.begin()
        for number in range(pairs + 1):
            publishing.settle()
            began = Clocks.now()
            with Inner(pupil) as inner:
                train_batch(pupil, batch)
            alone = Clocks.now() - began
            versions.begin()
            began = Clocks.now()
            train_batch(pupil, batch)
            versions.begin()
            if number:
                pure.append(inner.clocks)
                plain.append(alone)
                whole.append(Clocks.now() - began)
    pairs_of = list(zip(pure, plain, whole, strict=True))
    return {
        "overhead": round(statistics.median(1 - a.wall_s / c.wall_s for a, _, c in pairs_of), 4),
        "overhead_cpu": round(statistics.median(1 - a.cpu_s / c.cpu_s for a, _, c in pairs_of), 4),
        "framework_share": round(statistics.median(1 - a.cpu_s / b.cpu_s for a, b, _ in pairs_of), 4),
        "step_s": round(statistics.median(each.wall_s for each in whole), 3),
        "step_cpu_s": round(statistics.median(each.cpu_s for each in whole), 3),
        "version_write_s": round(statistics.median(versions.write_s[2:]), 3),
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
    ours, publishing, bare = (peak_mb(work, given) for work in WORKS)
    return {
        "memory_vs_bare": round(ours / bare, 3),
        "memory_publishing_vs_bare": round(publishing / bare, 3),
        "ours_mb": round(ours),
        "bare_mb": round(bare),
    }


def alone(work: str, folder: str, batch: LoadedBatch, budget: int) -> None:
    """Three steps of one kind, and the peak of memory."""
    if work == "bare":
        model = load_causal_lm(folder, torch.float32)
        optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=0.0, fused=True)
        for _ in range(3):
            bare_step(model, optimizer, batch)
    else:
        pupil = learner(folder, budget)
        with tempfile.TemporaryDirectory() as store, Publishing() as publishing:
            versions = Published(pupil, store, publishing) if work == "publishing" else None
            for _ in range(3):
                train_batch(pupil, batch)
                if versions is not None:
                    versions.begin()
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
    parser.add_argument("--work", choices=WORKS, help=argparse.SUPPRESS)
    parser.add_argument("--only", default="", help="one stage: trl, overhead, bare or memory")
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
        stages: dict[str, Callable[[], dict[str, float]]] = {
            "trl": lambda: against_trl(given, batch) if given.trl else {},
            "overhead": lambda: overhead(given.model, batch, given.budget, given.pairs),
            "bare": lambda: against_bare(given.model, batch, given.budget, given.pairs),
            "memory": lambda: memory(given),
        }
        for stage in [stages[given.only]] if given.only else stages.values():
            found = stage()
            figures |= found
            print(found, file=sys.stderr, flush=True)
    print(json.dumps(figures) if given.json else "\n".join(f"{name:18} {value}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
