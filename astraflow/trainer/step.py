"""One optimizer step: forward, backward, clip, AdamW on fp32 masters.

A step whose loss or gradient is not finite changes nothing and is counted; the batch is consumed all the same, since
it would give the same numbers again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from astraflow.config import Trainer
from astraflow.trainer.advantage import part_advantages
from astraflow.trainer.batch import MicroBatch, micro_batches
from astraflow.trainer.logprobs import token_logprobs
from astraflow.trainer.losses import TrainerLoss, masked_log_ratio, row_weights, weighted_sum
from astraflow.trainer.reader import LoadedBatch, Sequence


def learning_rate(config: Trainer, step: int) -> float:
    """The learning rate of optimizer step ``step`` (from 0): linear warm-up to the peak, then constant."""
    return config.lr * min(1.0, (step + 1) / max(1, config.lr_warmup_steps))


def new_optimizer(model: Any, config: Trainer) -> torch.optim.AdamW:
    """AdamW over the model's fp32 parameters, with the config's settings."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config.lr, betas=config.betas, weight_decay=config.weight_decay, fused=True
    )
    for parameter in model.parameters():  # the state that the first step would make: a checkpoint has one form
        optimizer.state[parameter] = {
            "step": torch.zeros((), dtype=torch.float32, device=parameter.device),
            "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
            "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
        }
    return optimizer


@dataclass(slots=True)
class Learner:
    """What a trainer learns with. ``step`` is the number of batches consumed, so also the next batch's number."""

    model: Any
    optimizer: torch.optim.Optimizer
    loss: TrainerLoss
    config: Trainer
    pad_id: int
    constant_tokens: int
    step: int = 0
    bad_steps: int = 0  # in a row


@dataclass(slots=True)
class StepResult:
    """Figures of one step: scalars, and the mean |Δlog-prob| to the engine by pool."""

    metrics: dict[str, float]
    mismatch_by_pool: dict[str, float] = field(default_factory=dict)


def train_batch(learner: Learner, batch: LoadedBatch) -> StepResult:
    """Train on one batch and count it; an empty batch changes no weights."""
    sequences = [sequence for part in batch.parts for sequence in part.sequences]
    rate = learning_rate(learner.config, learner.step)
    metrics = {"lr": rate, **batch_metrics(batch, sequences)}
    result = StepResult(metrics)
    if any(sequence.loss_mask.any() for sequence in sequences):
        _optimise(learner, batch, sequences, rate, result)
    learner.step += 1
    return result


def batch_metrics(batch: LoadedBatch, sequences: Rows[Sequence]) -> dict[str, float]:
    """Figures that need no model: rewards, lags, sizes."""
    rewards = np.array([sequence.reward for sequence in sequences], dtype=np.float64)
    lags = [sequence.lags[sequence.loss_mask] for sequence in sequences]
    lag = np.concatenate(lags) if lags else np.zeros(0, dtype=np.int64)
    return {
        "parts": float(len(batch.parts)),
        "skipped_parts": float(len(batch.skipped)),
        "sequences": float(len(sequences)),
        "prompt_tokens": float(sum(len(sequence.prompt_ids) for sequence in sequences)),
        "response_tokens": float(sum(len(sequence.response_ids) for sequence in sequences)),
        "trained_tokens": float(len(lag)),
        "reward_mean": float(rewards.mean()) if len(rewards) else 0.0,
        "reward_std": float(rewards.std()) if len(rewards) else 0.0,
        "lag_mean": float(lag.mean()) if len(lag) else 0.0,
        "lag_max": float(lag.max()) if len(lag) else 0.0,
    }


def _optimise(learner: Learner, batch: LoadedBatch, sequences: Rows[Sequence], rate: float, result: StepResult) -> None:
    config = learner.config
    micros = prepare(learner, batch, sequences)
    totals = _Totals()
    learner.model.eval()  # no dropout: the ratio compares with an engine that has none
    learner.optimizer.zero_grad(set_to_none=True)
    for micro in micros:
        logprobs = token_logprobs(learner.model, micro.input_ids, micro.keep, micro.temperatures)
        outcome = learner.loss(logprobs, micro.old_logprobs, micro.advantages, micro.mask)
        loss = weighted_sum(outcome.loss, micro.mask, micro.weights)
        torch.autograd.backward(loss)
        totals.add(micro, logprobs.detach(), outcome.clipped, loss.detach())
    norm = float(torch.nn.utils.clip_grad_norm_(learner.model.parameters(), config.grad_clip, foreach=True))
    is_finite = math.isfinite(norm) and math.isfinite(totals.loss)
    if is_finite:
        for group in learner.optimizer.param_groups:
            group["lr"] = rate
        learner.optimizer.step()
    learner.bad_steps = 0 if is_finite else learner.bad_steps + 1
    learner.optimizer.zero_grad(set_to_none=True)
    result.metrics.update(totals.metrics(), grad_norm=norm, step_refused=float(not is_finite))
    result.mismatch_by_pool = totals.by_pool([sequence.pool for sequence in sequences])


def prepare(learner: Learner, batch: LoadedBatch, sequences: Rows[Sequence]) -> list[MicroBatch]:
    """Advantages by part, weights by the whole batch, then micro-batches."""
    advantages = [
        float(advantage)
        for part in batch.parts
        for advantage in part_advantages(
            np.array([sequence.reward for sequence in part.sequences], dtype=np.float64), learner.config.advantage
        )
    ]
    tokens = torch.tensor([int(sequence.loss_mask.sum()) for sequence in sequences])
    weights = row_weights(tokens, learner.config.aggregate, learner.constant_tokens)
    return micro_batches(
        sequences, advantages, weights, pad_id=learner.pad_id, budget_tokens=learner.config.micro_batch_tokens
    )


@dataclass(slots=True)
class _Totals:
    """Sums over a batch's micro-batches, all over trained tokens."""

    loss: float = 0.0
    tokens: int = 0
    ratio: float = 0.0
    clipped: int = 0
    surprise: float = 0.0
    difference_max: float = 0.0
    rows: dict[int, tuple[float, int]] = field(default_factory=dict)  # row -> Σ|Δlog-prob|, tokens

    def add(self, micro: MicroBatch, logprobs: Tensor, clipped: Tensor, loss: Tensor) -> None:
        mask = micro.mask
        log_ratio = masked_log_ratio(logprobs, micro.old_logprobs, mask)
        differences = log_ratio.abs()
        counts = mask.sum(-1)
        self.loss += float(loss)
        self.tokens += int(counts.sum())
        self.ratio += float((log_ratio.exp() * mask).sum())
        self.clipped += int(clipped.sum())
        self.surprise -= float(torch.where(mask, logprobs, torch.zeros_like(logprobs)).sum())
        self.difference_max = max(self.difference_max, float(differences.max()))
        sums = zip(micro.rows, differences.sum(-1).tolist(), counts.tolist(), strict=True)
        self.rows.update({row: (difference, count) for row, difference, count in sums})

    def metrics(self) -> dict[str, float]:
        difference = sum(difference for difference, _ in self.rows.values())
        return {
            "loss": self.loss,
            "ratio_mean": self.ratio / self.tokens,
            "clipped_share": self.clipped / self.tokens,
            "entropy": self.surprise / self.tokens,  # mean of -log π of sampled tokens: an estimate
            "mismatch_mean": difference / self.tokens,
            "mismatch_max": self.difference_max,
        }

    def by_pool(self, pools: Rows[str]) -> dict[str, float]:
        sums: dict[str, tuple[float, int]] = {}
        for row, (difference, count) in sorted(self.rows.items()):
            total, tokens = sums.get(pools[row], (0.0, 0))
            sums[pools[row]] = (total + difference, tokens + count)
        return {pool: total / tokens for pool, (total, tokens) in sorted(sums.items()) if tokens}
