"""Losses that keep two policies apart: the behaviour policy, which sampled, and the proximal one, as a batch began.

With π_b the engine's log-probs, π_p the trainer's own at the batch's start and π the present ones, the step is
clipped by π/π_p and the difference of π_p to π_b (lag, and the engine's other arithmetic) is corrected by a weight
that carries no gradient. The trainer sees ``needs_proximal`` and hands π_p over; with one update a batch π_p is π.

``M2po`` instead chooses, over the whole batch and all ranks, which tokens are trained at all (``select``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from astraflow.trainer.surrogate import TokenLoss, check_clip, clipped_surrogate, masked_log_ratio, per_token

Everyone = Callable[[Tensor], Sequence[Tensor]]
"""The values [n] of every rank, on every rank; n may differ."""


class ProximalLoss(Protocol):
    """A loss that is also given ``proximal`` [B, T]: log-probs of the policy that began the batch, no gradient."""

    needs_proximal: bool

    def __call__(
        self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor, *, proximal: Tensor
    ) -> TokenLoss: ...


@dataclass(frozen=True, slots=True)
class TokensOfBatch:
    """What a selection sees of one micro-batch: as the arguments of a loss, all without gradient."""

    proximal: Tensor  # [B, T]
    old_logprobs: Tensor  # [B, T]
    advantages: Tensor  # [B] or [B, T]
    mask: Tensor  # [B, T]


@runtime_checkable
class SelectingLoss(Protocol):
    """A loss that also chooses the trained tokens of a whole batch, before any of its gradients."""

    def select(self, micros: Sequence[TokensOfBatch], everyone: Everyone) -> list[Tensor]:
        """The masks [B, T] of the micro-batches that are to be trained, each within the mask given."""
        ...


def _decoupled(
    ratios: tuple[Tensor, Tensor], weight: Tensor, advantages: Tensor, mask: Tensor, clips: tuple[float, float]
) -> TokenLoss:
    to_proximal, to_behaviour = ratios
    loss, clipped = clipped_surrogate(to_proximal, per_token(advantages, mask), *clips)
    return TokenLoss(weight * loss, clipped & mask, {"behaviour_weight": weight, "behaviour_kl": -to_behaviour})


@dataclass(frozen=True, slots=True)
class Decoupled:
    """PPO with the proximal policy apart from the behaviour policy: ``(π_p/π_b) · max(-A r, -A clip r)``, r = π/π_p.

    Source: arXiv 2110.00641, as AReaL uses it (arXiv 2505.24298). Tokens whose weight π_p/π_b is above ``weight_cap``
    are left out; none by default.
    """

    clip_low: float = 0.2
    clip_high: float = 0.2
    weight_cap: float = math.inf
    needs_proximal = True

    def __post_init__(self) -> None:
        check_clip(self.clip_low, self.clip_high)
        if self.weight_cap <= 0:
            raise ValueError("weight_cap must be above 0")

    def __call__(
        self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor, *, proximal: Tensor
    ) -> TokenLoss:
        behaviour = masked_log_ratio(proximal, old_logprobs, mask)
        weight = behaviour.exp()
        weight = torch.where(weight <= self.weight_cap, weight, torch.zeros_like(weight))
        ratios = masked_log_ratio(logprobs, proximal, mask), behaviour
        return _decoupled(ratios, weight, advantages, mask, (self.clip_low, self.clip_high))


@dataclass(frozen=True, slots=True)
class Tis:
    """Truncated importance sampling: the decoupled loss with the weight ``min(π_p/π_b, cap)``.

    Source: Yao et al., «Your efficient RL framework secretly brings you off-policy RL training», 2025.
    """

    cap: float = 2.0
    clip_low: float = 0.2
    clip_high: float = 0.28
    needs_proximal = True

    def __post_init__(self) -> None:
        check_clip(self.clip_low, self.clip_high)
        if self.cap <= 0:
            raise ValueError("cap must be above 0")

    def __call__(
        self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor, *, proximal: Tensor
    ) -> TokenLoss:
        behaviour = masked_log_ratio(proximal, old_logprobs, mask)
        ratios = masked_log_ratio(logprobs, proximal, mask), behaviour
        weight = behaviour.exp().clamp(max=self.cap)
        return _decoupled(ratios, weight, advantages, mask, (self.clip_low, self.clip_high))


@dataclass(frozen=True, slots=True)
class IcePop:
    """The decoupled loss with tokens left out whose weight π_p/π_b is not in [``low``, ``high``] (arXiv 2510.18855).

    A token that is left out still counts in the batch's mean.
    """

    low: float = 0.5
    high: float = 5.0
    clip_low: float = 0.2
    clip_high: float = 0.28
    needs_proximal = True

    def __post_init__(self) -> None:
        check_clip(self.clip_low, self.clip_high)
        if not 0 <= self.low <= 1 <= self.high:
            raise ValueError("0 <= low <= 1 <= high must hold")

    def __call__(
        self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor, *, proximal: Tensor
    ) -> TokenLoss:
        behaviour = masked_log_ratio(proximal, old_logprobs, mask)
        weight = behaviour.exp()
        weight = torch.where((weight >= self.low) & (weight <= self.high), weight, torch.zeros_like(weight))
        ratios = masked_log_ratio(logprobs, proximal, mask), behaviour
        return _decoupled(ratios, weight, advantages, mask, (self.clip_low, self.clip_high))


@dataclass(frozen=True, slots=True)
class M2po:
    """Second-moment trust region: the tokens that drifted most are left out, the rest trained as in PPO.

    Of the tokens that a step would push further off (A > 0 and π_p > π_b, or A < 0 and π_p < π_b) those with the
    largest ``m = (log π_b - log π_p)²`` are masked until the mean of the others' m is below ``threshold``; if the mean
    is not above it already, none. The batch's mean then counts only tokens that are left. Source: arXiv 2510.01161.
    """

    threshold: float = 0.01
    clip_low: float = 0.2
    clip_high: float = 0.28

    def __post_init__(self) -> None:
        check_clip(self.clip_low, self.clip_high)
        if self.threshold <= 0:
            raise ValueError("threshold must be above 0")

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor) -> TokenLoss:
        log_ratio = masked_log_ratio(logprobs, old_logprobs, mask)
        loss, clipped = clipped_surrogate(log_ratio, per_token(advantages, mask), self.clip_low, self.clip_high)
        return TokenLoss(loss, clipped & mask)

    def select(self, micros: Sequence[TokensOfBatch], everyone: Everyone) -> list[Tensor]:
        """The masks without the tokens that drifted most, by one limit for the batch."""
        moments = [_drifting(micro) for micro in micros]
        own = torch.cat([m[drifts] for m, drifts in moments]) if moments else torch.zeros(0)
        limit = _limit(torch.cat(list(everyone(own))), self.threshold)
        return [micro.mask & ~(drifts & (m > limit)) for micro, (m, drifts) in zip(micros, moments, strict=True)]


def _drifting(micro: TokensOfBatch) -> tuple[Tensor, Tensor]:
    """m [B, T], and which tokens a step pushes further from the behaviour policy [B, T]."""
    log_ratio = masked_log_ratio(micro.proximal, micro.old_logprobs, micro.mask)
    drifts = micro.mask & (per_token(micro.advantages, micro.mask) * log_ratio > 0)
    return log_ratio.square(), drifts


def _limit(moments: Tensor, threshold: float) -> float:
    """The largest m that stays. Tokens of equal m stay or go together."""
    if not moments.numel() or float(moments.double().mean()) <= threshold:
        return math.inf
    ordered = moments.double().sort().values
    means = ordered.cumsum(0) / torch.arange(1, len(ordered) + 1, device=ordered.device)
    kept = int((means < threshold).sum())  # the means of the smallest 1, 2, … never fall
    if kept and ordered[kept - 1] == ordered[kept]:  # a tie across the edge: all of it goes
        kept = int((ordered < ordered[kept]).sum())
    return float(ordered[kept - 1]) if kept else -1.0
