"""Losses: pure functions from log-probs of tokens to a loss a token; one place adds them up.

A loss sees a micro-batch and returns ``[B, T]``; ``row_weights`` and ``weighted_sum`` turn that into the number that
is differentiated. The weights are computed once for the *whole* batch, so that gradients do not depend on how
the batch is cut into micro-batches. Masked entries may hold anything, infinities included: they pass through
``torch.where`` before any arithmetic, never through a multiplication by 0 (0·inf is NaN).

The old policy of every ratio is the behaviour policy: the log-probs that the engine reported when it sampled.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from astraflow.component import check_options, find
from astraflow.config import Component
from storage.errors import ConfigError

Aggregate = Literal["token", "sequence", "constant"]


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """What a loss gives back: ``loss`` [B, T] (anything where masked) and ``clipped`` [B, T], for the eye only."""

    loss: Tensor
    clipped: Tensor


class TrainerLoss(Protocol):
    """A policy-gradient loss a token. An own one is a function or class that gives such a callable."""

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor) -> TokenLoss:
        """``logprobs`` [B, T] with gradient; ``old_logprobs`` [B, T]; ``advantages`` [B]; ``mask`` [B, T] bool."""
        ...


MAX_LOG_RATIO = 20.0
"""Beyond e^±20 a ratio is no measurement; the clamp keeps exp() finite, so that a clipped token's 0·inf is no NaN."""


def masked_log_ratio(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor) -> Tensor:
    """``log π/π_old`` [B, T] within ±``MAX_LOG_RATIO``; exactly 0 (and without gradient) where masked."""
    zero = torch.zeros_like(logprobs)
    log_ratio = torch.where(mask, logprobs, zero) - torch.where(mask, old_logprobs, zero)
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


@dataclass(frozen=True, slots=True)
class Grpo:
    """PPO's clipped surrogate with GRPO's advantages and DAPO's asymmetric clip (arXiv 1707.06347, 2503.14476).

    ``max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high))``. ``kl`` > 0 adds ``kl`` times the k3 estimate of
    KL(π ‖ π_old), ``1/r - 1 + log r`` with r from π_old's samples turned round: a pull towards the behaviour policy.
    ``dual_clip`` > 1 bounds the loss of negative advantages at ``-A dual_clip`` (arXiv 1912.09729).
    """

    clip_low: float = 0.2
    clip_high: float = 0.28
    kl: float = 0.0
    dual_clip: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.clip_low < 1 or self.clip_high < 0 or self.kl < 0:
            raise ValueError("0 <= clip_low < 1, clip_high >= 0 and kl >= 0 must hold")
        if self.dual_clip is not None and self.dual_clip <= 1:
            raise ValueError("dual_clip must be above 1")

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor) -> TokenLoss:
        log_ratio = masked_log_ratio(logprobs, old_logprobs, mask)
        ratio = log_ratio.exp()
        minus_a = -advantages.unsqueeze(-1)  # [B, 1]
        free = minus_a * ratio
        bound = minus_a * ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        loss = torch.maximum(free, bound)
        clipped = bound > free
        if self.dual_clip is not None:
            ceiling = minus_a * self.dual_clip
            clipped = clipped | ((minus_a > 0) & (loss > ceiling))
            loss = torch.where(minus_a > 0, torch.minimum(loss, ceiling), loss)
        if self.kl > 0:
            loss = loss + self.kl * ((-log_ratio).exp() - 1 + log_ratio)
        return TokenLoss(loss, clipped & mask)


@dataclass(frozen=True, slots=True)
class Gspo:
    """Sequence-level ratio ``exp(mean log ratio)``, clipped as in PPO (GSPO-token, arXiv 2507.18071)."""

    clip_low: float = 3e-4
    clip_high: float = 4e-4

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor) -> TokenLoss:
        log_ratio = masked_log_ratio(logprobs, old_logprobs, mask)
        mean = log_ratio.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)  # [B, 1]
        current = torch.where(mask, logprobs, torch.zeros_like(logprobs))
        ratio = (mean.detach() + current - current.detach()).exp()  # the sequence's value, each token's gradient
        minus_a = -advantages.unsqueeze(-1)
        free = minus_a * ratio
        bound = minus_a * ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        return TokenLoss(torch.maximum(free, bound), (bound > free) & mask)


@dataclass(frozen=True, slots=True)
class Cispo:
    """REINFORCE with a clipped importance weight that carries no gradient (CISPO, arXiv 2506.13585)."""

    clip_high: float = 2.0
    clip_low: float = 1.0

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor) -> TokenLoss:
        ratio = masked_log_ratio(logprobs, old_logprobs, mask).detach().exp()
        weight = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        current = torch.where(mask, logprobs, torch.zeros_like(logprobs))
        return TokenLoss(-advantages.unsqueeze(-1) * weight * current, (weight != ratio) & mask)


LOSSES: dict[str, Callable[..., TrainerLoss]] = {"grpo": Grpo, "gspo": Gspo, "cispo": Cispo}


def load_loss(component: Component, *, key: str = "trainer.loss") -> TrainerLoss:
    """The loss of a config section: a built-in name, or a factory ``package.module:attribute`` of its options.

    Raises ``ConfigError`` naming the key and the remedy.
    """
    factory: Callable[..., TrainerLoss] = find(component.name, LOSSES, where=f"{key}.name")
    check_options(factory, component.options, given=0, where=f"{key}.options")
    try:
        return factory(**component.options)
    except ValueError as error:
        raise ConfigError(
            f"an option of loss {component.name!r} is out of range: {error}",
            where=f"{key}.options",
            remedy="Set it within that range",
            kind="options",
        ) from error


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
