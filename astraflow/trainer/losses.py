"""The losses by name: pure functions from log-probs of tokens to a loss a token (``docs/trainer.md`` has the table).

The losses here take the behaviour policy (the log-probs that the engine reported when it sampled) as the old
policy of every ratio. Those that also look at the policy as it was when the batch began are in ``proximal``; what they
share, and how tokens are added up, is in ``surrogate``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from astraflow.component import check_options, find
from astraflow.config import Component
from astraflow.trainer.proximal import Decoupled, IcePop, M2po, ProximalLoss, Tis
from astraflow.trainer.surrogate import (
    MAX_LOG_RATIO,
    Aggregate,
    TokenLoss,
    TrainerLoss,
    check_clip,
    clipped_surrogate,
    masked_log_ratio,
    per_token,
    row_weights,
    weighted_sum,
)
from storage.errors import ConfigError

__all__ = [
    "LOSSES",
    "MAX_LOG_RATIO",
    "Aggregate",
    "Cispo",
    "Decoupled",
    "Grpo",
    "Gspo",
    "IcePop",
    "M2po",
    "Tis",
    "TokenLoss",
    "TrainerLoss",
    "load_loss",
    "masked_log_ratio",
    "row_weights",
    "weighted_sum",
]


@dataclass(frozen=True, slots=True)
class Grpo:
    """PPO's clipped surrogate with GRPO's advantages and DAPO's asymmetric clip (arXiv 1707.06347, 2503.14476).

    ``max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high))``. ``kl`` > 0 adds ``kl`` times the k3 estimate of
    KL(π ‖ π_old), ``1/r - 1 + log r`` with r from π_old's samples turned round: a pull towards the behaviour policy.
    ``dual_clip`` as in ``clipped_surrogate``.
    """

    clip_low: float = 0.2
    clip_high: float = 0.28
    kl: float = 0.0
    dual_clip: float | None = None

    def __post_init__(self) -> None:
        check_clip(self.clip_low, self.clip_high, self.dual_clip)
        if self.kl < 0:
            raise ValueError("kl >= 0 must hold")

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor) -> TokenLoss:
        log_ratio = masked_log_ratio(logprobs, old_logprobs, mask)
        loss, clipped = clipped_surrogate(
            log_ratio, per_token(advantages, mask), self.clip_low, self.clip_high, self.dual_clip
        )
        if self.kl > 0:
            loss = loss + self.kl * ((-log_ratio).exp() - 1 + log_ratio)
        return TokenLoss(loss, clipped & mask)


@dataclass(frozen=True, slots=True)
class Gspo:
    """Sequence-level ratio ``exp(mean log ratio)``, clipped as in PPO (GSPO-token, arXiv 2507.18071)."""

    clip_low: float = 3e-4
    clip_high: float = 4e-4

    def __post_init__(self) -> None:
        check_clip(self.clip_low, self.clip_high)

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor) -> TokenLoss:
        log_ratio = masked_log_ratio(logprobs, old_logprobs, mask)
        mean = log_ratio.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)  # [B, 1]
        current = torch.where(mask, logprobs, torch.zeros_like(logprobs))
        # The sequence's value, each token's gradient.
        loss, clipped = clipped_surrogate(
            mean.detach() + current - current.detach(), per_token(advantages, mask), self.clip_low, self.clip_high
        )
        return TokenLoss(loss, clipped & mask)


@dataclass(frozen=True, slots=True)
class Cispo:
    """REINFORCE with a clipped importance weight that carries no gradient (CISPO, arXiv 2506.13585)."""

    clip_high: float = 2.0
    clip_low: float = 1.0

    def __post_init__(self) -> None:
        if not 0 <= self.clip_low <= 1 or self.clip_high < 0:
            raise ValueError("0 <= clip_low <= 1 and clip_high >= 0 must hold")

    def __call__(self, logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, mask: Tensor) -> TokenLoss:
        ratio = masked_log_ratio(logprobs, old_logprobs, mask).detach().exp()
        weight = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        current = torch.where(mask, logprobs, torch.zeros_like(logprobs))
        return TokenLoss(-per_token(advantages, mask) * weight * current, (weight != ratio) & mask)


LOSSES: dict[str, Callable[..., Any]] = {
    "grpo": Grpo,
    "gspo": Gspo,
    "cispo": Cispo,
    "decoupled": Decoupled,
    "tis": Tis,
    "icepop": IcePop,
    "m2po": M2po,
}


def load_loss(component: Component, *, key: str = "trainer.loss") -> TrainerLoss | ProximalLoss:
    """The loss of a config section: a built-in name, or a factory ``package.module:attribute`` of its options.

    Raises ``ConfigError`` naming the key and the remedy.
    """
    factory: Callable[..., TrainerLoss | ProximalLoss] = find(component.name, LOSSES, where=f"{key}.name")
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
