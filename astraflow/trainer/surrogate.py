"""What all losses are made of: ratios, the clipped surrogate, KL estimates, and the one place that adds tokens up.

A loss sees a micro-batch and returns ``[B, T]``; ``row_weights`` and ``weighted_sum`` turn that into the number that
is differentiated. The weights are computed once for the *whole* batch, so that gradients do not depend on how
the batch is cut into micro-batches or given to ranks. Masked entries may hold anything, infinities included: they pass
through ``torch.where`` before any arithmetic, never through a multiplication by 0 (0·inf is NaN).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, Protocol

import torch
from torch import Tensor

Aggregate = Literal["token", "sequence", "constant"]


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """What a loss gives back: ``loss`` [B, T] (anything where masked) and ``clipped`` [B, T], for the eye only.

    ``parts`` are named summands or statistics [B, T]; their means over trained tokens stand in the step's row.
    """

    loss: Tensor
    clipped: Tensor
    parts: dict[str, Tensor] = field(default_factory=dict)


class TrainerLoss(Protocol):
    """A policy-gradient loss a token. An own one is a function or class that gives such a callable."""

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor) -> TokenLoss:
        """``logprobs`` [B, T] with gradient; ``old_logprobs`` [B, T]; ``advantages`` [B] or [B, T]; ``mask`` [B, T]."""
        ...


MAX_LOG_RATIO = 20.0
"""Beyond e^±20 a ratio is no measurement; the clamp keeps exp() finite, so that a clipped token's 0·inf is no NaN."""


def masked_log_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """``log π/π_old`` [B, T] within ±``MAX_LOG_RATIO``; exactly 0 (and without gradient) where masked."""
    zero = torch.zeros_like(logprobs)
    log_ratio = torch.where(mask, logprobs, zero) - torch.where(mask, old_logprobs, zero)
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def per_token(advantages: Tensor, mask: Tensor) -> Tensor:
    """Advantages of sequences [B] as [B, 1]; those of tokens [B, T] with 0 where masked."""
    if advantages.dim() == 1:
        return advantages.unsqueeze(-1)
    return torch.where(mask, advantages, torch.zeros_like(advantages))


def clipped_surrogate(
    log_ratio: Tensor, advantages: Tensor, clip_low: float, clip_high: float, dual_clip: float | None = None
) -> tuple[Tensor, Tensor]:
    """PPO's ``max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high))`` [B, T] and where the bound holds [B, T].

    ``dual_clip`` > 1 bounds the loss of negative advantages at ``-A dual_clip`` (arXiv 1912.09729).
    """
    ratio = log_ratio.exp()
    minus_a = -advantages  # [B, 1] or [B, T]
    free = minus_a * ratio
    bound = minus_a * ratio.clamp(1 - clip_low, 1 + clip_high)
    loss = torch.maximum(free, bound)
    clipped = bound > free
    if dual_clip is not None:
        ceiling = minus_a * dual_clip
        clipped = clipped | ((minus_a > 0) & (loss > ceiling))
        loss = torch.where(minus_a > 0, torch.minimum(loss, ceiling), loss)
    return loss, clipped


def check_clip(clip_low: float, clip_high: float, dual_clip: float | None = None) -> None:
    """Raise ``ValueError`` for clip bounds that make no sense."""
    if not 0 <= clip_low < 1 or clip_high < 0:
        raise ValueError("0 <= clip_low < 1 and clip_high >= 0 must hold")
    if dual_clip is not None and dual_clip <= 1:
        raise ValueError("dual_clip must be above 1")


def reference_kl(logprobs: Tensor, reference: Tensor, mask: Tensor, estimator: Literal["k1", "k2", "k3"]) -> Tensor:
    """Estimates a token of KL(π ‖ π_ref) from π's own samples, with d = log π - log π_ref: [B, T], 0 where masked.

    ``k1`` is d (unbiased, of any sign; as a loss its gradient has the mean 0), ``k2`` is d²/2 (its gradient is the
    KL's), ``k3`` is exp(-d) - 1 + d (unbiased, never negative; GRPO's). Source: J. Schulman, «Approximating KL
    divergence», 2020.
    """
    d = masked_log_ratio(logprobs, reference, mask)
    if estimator == "k1":
        return d
    if estimator == "k2":
        return d.square() / 2
    return (-d).exp() - 1 + d


def row_weights(tokens: Tensor, aggregate: Aggregate, constant_tokens: int) -> Tensor:
    """The weight [N] of each row's tokens in the batch's mean, from their counts of trained tokens ``tokens`` [N].

    ``token``: every trained token of the batch counts the same (DAPO). ``sequence``: every row with a trained token
    counts the same, its tokens share that (GRPO). ``constant``: a token counts ``1 / (rows · constant_tokens)``,
    so that length changes no gradient (Dr. GRPO). N is the whole batch: a micro-batch takes its rows of the result.
    """
    counts = tokens.to(torch.float64)
    used = counts > 0
    rows = used.sum().clamp(min=1)
    if aggregate == "token":
        weights = torch.ones_like(counts) / counts.sum().clamp(min=1)
    elif aggregate == "sequence":
        weights = 1 / (rows * counts.clamp(min=1))
    else:
        weights = torch.ones_like(counts) / (rows * constant_tokens)
    return torch.where(used, weights, torch.zeros_like(weights)).to(torch.float32)


def weighted_sum(loss: Tensor, mask: Tensor, weights: Tensor) -> Tensor:
    """``Σ weights · loss`` over unmasked entries: loss [B, T], mask [B, T], weights [B] of ``row_weights``."""
    return (torch.where(mask, loss, torch.zeros_like(loss)) * weights.unsqueeze(-1)).sum()
