"""Figures of a step: of the batch as it came, and of what the model said of it, over all micro-batches and ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from astraflow.trainer.batch import MicroBatch
from astraflow.trainer.reader import LoadedBatch, Sequence
from astraflow.trainer.surrogate import TokenLoss, masked_log_ratio
from astraflow.trainer.team import Team


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
        "stale_share": float((lag > 0).mean()) if len(lag) else 0.0,
    }


@dataclass(slots=True)
class Totals:
    """Sums and extremes over trained tokens. Every rank adds its micro-batches; ``metrics`` is the same on all."""

    pools: list[str]
    sums: dict[str, float] = field(default_factory=dict)
    extremes: dict[str, float] = field(default_factory=dict)
    by_pool: dict[str, tuple[float, float]] = field(default_factory=dict)  # Σ|Δlog-prob|, tokens

    def add(
        self,
        micro: MicroBatch,
        outcome: TokenLoss,
        *,
        logprobs: Tensor,
        entropy: Tensor,
        loss: Tensor,
        pool_of: Rows[str],
    ) -> None:
        """Take in one micro-batch; tensors [B, K] of tokens, ``pool_of`` by number of the sequence."""
        mask = micro.mask
        chosen = logprobs.detach()
        log_ratio = masked_log_ratio(chosen, micro.old_logprobs, mask)
        ratio = log_ratio.exp()
        differences = log_ratio.abs()
        counts = mask.sum(-1)
        tokens = {
            "ratio_mean": ratio,
            "clipped_share": outcome.clipped,
            "surprise": -chosen,
            "entropy": entropy,
            "mismatch_mean": differences,
            "behaviour_k1": -log_ratio,
            "behaviour_k3": ratio - 1 - log_ratio,
            **{name: values.detach() for name, values in outcome.parts.items()},
        }
        zero = torch.zeros((), device=mask.device)
        found = [torch.where(mask, values, zero).sum(dtype=torch.float64) for values in tokens.values()]
        for name, value in zip(tokens, torch.stack(found).tolist(), strict=True):
            self._add(name, value)
        self._add("loss", float(loss))
        self._add("tokens", float(counts.sum()))
        self._add("columns", float(micro.input_ids.numel()) * (not micro.is_idle))
        self._add("micro_batches", float(not micro.is_idle))
        if mask.any():
            self._extreme("ratio_max", float(torch.where(mask, ratio, zero).max()))
            self._extreme("ratio_min_inverse", float(torch.where(mask, (-log_ratio).exp(), zero).max()))
            self._extreme("mismatch_max", float(differences.max()))
        if micro.is_idle:
            return
        for row, difference, count in zip(micro.rows, differences.sum(-1).tolist(), counts.tolist(), strict=True):
            total, seen = self.by_pool.get(pool_of[row], (0.0, 0.0))
            self.by_pool[pool_of[row]] = (total + difference, seen + count)

    def join(self, team: Team) -> None:
        """Add up all ranks. The names are the same on every rank, in the same order."""
        if team.size == 1:
            return
        pools = [value for pool in self.pools for value in self.by_pool.get(pool, (0.0, 0.0))]
        extremes = [self.extremes.get(name, 0.0) for name in _EXTREMES]
        found = torch.stack(list(team.everyone(torch.tensor([*self.sums.values(), *pools, *extremes]).double())))
        sums, most = found.sum(0).tolist(), found.max(0).values.tolist()
        self.sums = dict(zip(self.sums, sums, strict=False))
        at = len(self.sums)
        self.by_pool = {pool: (sums[at + 2 * i], sums[at + 2 * i + 1]) for i, pool in enumerate(self.pools)}
        self.extremes = dict(zip(_EXTREMES, most[at + 2 * len(self.pools) :], strict=True))

    def metrics(self) -> dict[str, float]:
        """Means over trained tokens, the loss as it was differentiated, and extremes."""
        tokens = self.sums["tokens"]
        whole = ("loss", "tokens", "columns", "micro_batches")
        means = {name: value / max(1.0, tokens) for name, value in self.sums.items() if name not in whole}
        return {
            "loss": self.sums["loss"],
            **means,
            "ratio_max": self.extremes.get("ratio_max", 1.0),
            "ratio_min": 1 / max(1e-30, self.extremes.get("ratio_min_inverse", 1.0)),
            "mismatch_max": self.extremes.get("mismatch_max", 0.0),
            "micro_batches": self.sums["micro_batches"],
            "computed_tokens": self.sums["columns"],
        }

    def mismatch(self) -> dict[str, float]:
        """Mean |log-prob now - log-prob when sampled| by pool, in name order."""
        return {pool: total / tokens for pool, (total, tokens) in sorted(self.by_pool.items()) if tokens}

    def _add(self, name: str, value: float) -> None:
        self.sums[name] = self.sums.get(name, 0.0) + value

    def _extreme(self, name: str, value: float) -> None:
        self.extremes[name] = max(self.extremes.get(name, -math.inf), value)


_EXTREMES = ("ratio_max", "ratio_min_inverse", "mismatch_max")
