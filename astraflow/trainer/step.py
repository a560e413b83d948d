"""One optimizer step: forward, backward, clip, AdamW on fp32 masters.

A step whose loss or gradient is not finite changes nothing and is counted; the batch is consumed all the same, since
it would give the same numbers again. Every rank is given the whole batch and takes its share of the micro-batches; one
denominator for the batch makes the gradient the same however it is cut.
"""

from __future__ import annotations

import math
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from astraflow.trainer.batch import MicroBatch, micro_batches
from astraflow.trainer.figures import Totals, batch_metrics
from astraflow.trainer.learner import Learner, StepResult, learning_rate, new_optimizer
from astraflow.trainer.logprobs import micro_logprobs
from astraflow.trainer.objective import Examples, Objective, Rl
from astraflow.trainer.proximal import TokensOfBatch
from astraflow.trainer.reader import LoadedBatch
from astraflow.trainer.surrogate import row_weights, weighted_sum
from storage.errors import DataError

__all__ = ["Learner", "StepResult", "batch_metrics", "learning_rate", "new_optimizer", "train_batch"]


def train_batch(learner: Learner, batch: LoadedBatch) -> StepResult:
    """Train on one batch and count it; an empty batch changes no weights.

    Raises ``DataError`` (kind ``non_finite``) before the step is counted if the config stops at bad numbers.
    """
    objective = learner.objective or Rl(learner.config, learner.loss)
    examples = objective.examples(batch)
    rate = learning_rate(learner.config, learner.step)
    result = StepResult({"lr": rate, **batch_metrics(batch, examples.sequences), **examples.figures})
    if any(sequence.loss_mask.any() for sequence in examples.sequences):
        _optimise(learner, objective, examples, rate, result)
    learner.step += 1
    return result


@dataclass(frozen=True, slots=True)
class _Update:
    """One optimizer update: this rank's micro-batches, and the log-probs of the batch's start where they are needed."""

    micros: list[MicroBatch]
    proximal: list[Tensor | None]


def _optimise(learner: Learner, objective: Objective, examples: Examples, rate: float, result: StepResult) -> None:
    learner.model.eval()  # no dropout: the ratio compares with an engine that has none
    pool_of = [sequence.pool for sequence in examples.sequences]
    totals = Totals(sorted(set(pool_of)))
    norms, refused = [], 0
    for update in _updates(learner, objective, examples):
        norm, is_finite = _update(learner, objective, update, rate=rate, totals=totals, pool_of=pool_of)
        norms.append(norm)
        refused += not is_finite
        if not is_finite and learner.config.non_finite == "stop":
            raise DataError(
                f"the loss or the gradient is not finite (norm {norm:g})",
                where=f"step {learner.step}",
                remedy="Nothing was published of it: lower the learning rate, or set trainer.non_finite = 'skip'",
                kind="non_finite",
            )
    learner.bad_steps = learner.bad_steps + 1 if refused else 0
    totals.join(learner.team)
    share = totals.sums["tokens"] / result.metrics["trained_tokens"]  # what the loss left of them
    result.metrics.update(
        totals.metrics(), trained_share=share, grad_norm=max(norms, key=_badness), step_refused=float(refused > 0)
    )
    result.mismatch_by_pool = totals.mismatch()


def _badness(norm: float) -> float:
    return norm if math.isfinite(norm) else math.inf


def _updates(learner: Learner, objective: Objective, examples: Examples) -> list[_Update]:
    """The batch divided into its updates, in order. All that depends on the batch's first weights is computed here."""
    config, team = learner.config, learner.team
    count = min(config.minibatches, len(examples.sequences))
    updates = []
    for rows in np.array_split(np.arange(len(examples.sequences)), count):
        sequences = [examples.sequences[row] for row in rows]
        tokens = torch.tensor([int(sequence.loss_mask.sum()) for sequence in sequences])
        if not tokens.any():
            continue
        micros = micro_batches(
            sequences,
            [examples.advantages[row] for row in rows],
            row_weights(tokens, config.aggregate, learner.constant_tokens),
            pad_id=learner.pad_id,
            budget_tokens=config.micro_batch_tokens,
            packing=config.packing,
            share=(team.rank, team.size),
        )
        updates.append(_prepared(learner, objective, [m.to(learner.device) for m in micros], rows.tolist()))
    return updates


def _prepared(learner: Learner, objective: Objective, micros: list[MicroBatch], rows: list[int]) -> _Update:
    """Look at the micro-batches with the batch's first weights, if the objective asks for that."""
    selects = getattr(objective, "selects", hasattr(objective, "select"))
    apart = getattr(objective, "needs_proximal", False) and learner.config.minibatches > 1
    proximal: list[Tensor | None] = [None] * len(micros)
    if selects or apart:
        with torch.no_grad():
            seen = [_logprobs(learner, micro)[0] for micro in micros]
        proximal = list(seen)
        if selects:
            micros = _selected(learner, objective, micros, seen)
    numbered = [_renumbered(micro, rows) for micro in micros]
    return _Update(numbered, proximal)


def _selected(learner: Learner, objective: Any, micros: list[MicroBatch], seen: list[Tensor]) -> list[MicroBatch]:
    """The micro-batches with the tokens that the objective keeps, and the weights that go with these."""
    views = [
        TokensOfBatch(logprobs, micro.old_logprobs, micro.advantages, micro.mask)
        for micro, logprobs in zip(micros, seen, strict=True)
    ]
    masks = objective.select(views, learner.team.everyone)
    size = max((max(micro.rows, default=-1) for micro in micros), default=-1) + 1
    size = max(int(each) for each in learner.team.everyone(torch.tensor([size])))
    counts = torch.zeros(size, dtype=torch.int64)
    for micro, mask in zip(micros, masks, strict=True):
        if micro.rows:
            counts[micro.rows] = mask.sum(-1).cpu()
    counts = torch.stack(list(learner.team.everyone(counts))).sum(0)
    weights = row_weights(counts, learner.config.aggregate, learner.constant_tokens)
    return [
        micro.training(mask, (weights[micro.rows] if micro.rows else micro.weights.cpu()).to(mask.device))
        for micro, mask in zip(micros, masks, strict=True)
    ]


def _renumbered(micro: MicroBatch, rows: Rows[int]) -> MicroBatch:
    """The micro-batch with its sequences numbered as in the whole batch."""
    micro.rows[:] = [rows[row] for row in micro.rows]
    return micro


def _logprobs(learner: Learner, micro: MicroBatch) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies [B, K] in the arithmetic of the config; with ranks FSDP casts by itself."""
    low = learner.config.compute == "bfloat16" and learner.team.size == 1
    with torch.autocast(learner.device.type, dtype=torch.bfloat16, enabled=low):
        return micro_logprobs(learner.model, micro)


def _update(
    learner: Learner, objective: Objective, update: _Update, *, rate: float, totals: Totals, pool_of: Rows[str]
) -> tuple[float, bool]:
    """One optimizer update; the gradient's norm, and whether all was finite (else nothing has changed)."""
    learner.optimizer.zero_grad(set_to_none=True)
    whole = torch.zeros((), dtype=torch.float64)
    for micro, before in zip(update.micros, update.proximal, strict=True):
        logprobs, entropy = _logprobs(learner, micro)
        outcome = objective.loss(logprobs, micro, logprobs.detach() if before is None else before)
        loss = weighted_sum(outcome.loss, micro.mask, micro.weights)
        torch.autograd.backward(loss * learner.team.size)  # FSDP takes the mean over ranks, the loss is a sum
        totals.add(micro, outcome, logprobs=logprobs, entropy=entropy, loss=loss.detach(), pool_of=pool_of)
        whole += loss.detach().cpu()
    parameters = [parameter for group in learner.optimizer.param_groups for parameter in group["params"]]
    norm = _whole(torch.nn.utils.clip_grad_norm_(parameters, learner.config.grad_clip, foreach=True))
    losses = torch.cat(list(learner.team.everyone(whole.reshape(1))))
    is_finite = math.isfinite(norm) and bool(torch.isfinite(losses).all())
    if is_finite:
        for group in learner.optimizer.param_groups:
            group["lr"] = rate
        learner.optimizer.step()
    learner.optimizer.zero_grad(set_to_none=True)
    return norm, is_finite


def _whole(norm: Any) -> float:
    """A norm that may lie in parts on the ranks."""
    return float(norm.full_tensor()) if hasattr(norm, "full_tensor") else float(norm)
