"""What a trainer is trained for: the three methods by which ``rl``, ``sft``, ``distill`` and own kinds differ.

The trainer does the rest: it cuts the examples into micro-batches for its ranks, runs the model, adds up the loss a
token with one denominator for the batch, steps, publishes. An own kind is a class of the user's; ``docs/trainer.md``
has one. It is called with the policy's ``[trainer]`` section, in every life, on every rank.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from astraflow.config import RunConfig, Trainer
from astraflow.trainer.advantage import EPSILON, part_advantages
from astraflow.trainer.batch import Advantages, MicroBatch
from astraflow.trainer.logprobs import micro_logprobs
from astraflow.trainer.losses import load_loss
from astraflow.trainer.proximal import Everyone, ProximalLoss, SelectingLoss, TokensOfBatch
from astraflow.trainer.reader import LoadedBatch, Sequence
from astraflow.trainer.surrogate import TokenLoss, TrainerLoss, reference_kl


@dataclass(frozen=True, slots=True)
class Setting:
    """Where an objective works. ``first_model`` gives the policy as it was at version 0, frozen, on the device."""

    config: RunConfig
    policy: str
    device: torch.device
    folder: Path  # temporary
    first_model: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Examples:
    """What a batch is to be trained on: sequences, and how good each is (or each of its response tokens)."""

    sequences: list[Sequence]
    advantages: Advantages
    figures: dict[str, float] = field(default_factory=dict)


@runtime_checkable
class Objective(Protocol):
    """One kind of training. It may also have ``needs_proximal`` and ``select`` as losses do (see ``proximal``)."""

    def start(self, setting: Setting) -> None:
        """Once in a life, before the first batch: load what it needs. Raises ``ConfigError``."""
        ...

    def examples(self, batch: LoadedBatch) -> Examples:
        """What to train on. The same on every rank, and nothing but a function of the batch."""
        ...

    def loss(self, logprobs: Tensor, micro: MicroBatch, proximal: Tensor) -> TokenLoss:
        """The loss of each token [B, K]. ``logprobs`` has the gradient, ``proximal`` is that of the batch's start."""
        ...


class Rl:
    """Reinforcement learning: advantages by part, the configured loss, and a pull towards version 0 if asked for."""

    def __init__(
        self, settings: Trainer, loss: TrainerLoss | ProximalLoss | None = None, *, key: str = "trainer.loss"
    ) -> None:
        self._settings = settings
        self._loss: Any = loss if loss is not None else load_loss(settings.loss, key=key)
        self._first_model: Callable[[], Any] | None = None
        self._reference: Any = None
        self.needs_proximal = bool(getattr(self._loss, "needs_proximal", False))
        self.selects = isinstance(self._loss, SelectingLoss)

    def start(self, setting: Setting) -> None:
        self._first_model = setting.first_model

    def examples(self, batch: LoadedBatch) -> Examples:
        advantages: list[float] = []
        penalty = 0.0
        for part in batch.parts:
            taken = np.array([self._penalty(sequence) for sequence in part.sequences], dtype=np.float64)
            rewards = np.array([sequence.reward for sequence in part.sequences], dtype=np.float64) - taken
            penalty += float(taken.sum())
            advantages += self._of_part(part.sequences, rewards).tolist()
        sequences = [sequence for part in batch.parts for sequence in part.sequences]
        figures = {} if self._settings.overlong is None else {"overlong_penalty": penalty / max(1, len(sequences))}
        if self._settings.normalise_batch:
            advantages = normalised(sequences, advantages)
        return Examples(sequences, advantages, figures)

    def select(self, micros: list[TokensOfBatch], everyone: Everyone) -> list[Tensor]:
        """The masks that the loss chooses."""
        masks: list[Tensor] = self._loss.select(micros, everyone)
        return masks

    def loss(self, logprobs: Tensor, micro: MicroBatch, proximal: Tensor) -> TokenLoss:
        extra = {"proximal": proximal} if self.needs_proximal else {}
        outcome: TokenLoss = self._loss(logprobs, micro.old_logprobs, micro.advantages, micro.mask, **extra)
        if self._settings.kl is None:
            return outcome
        kl = self._settings.kl
        estimate = reference_kl(logprobs, self._reference_logprobs(micro), micro.mask, kl.estimator)
        parts = {**outcome.parts, "policy_loss": outcome.loss.detach(), "reference_kl": estimate.detach()}
        return TokenLoss(outcome.loss + kl.weight * estimate, outcome.clipped, parts)

    def _penalty(self, sequence: Sequence) -> float:
        """What is taken off the reward of a long answer (DAPO, arXiv 2503.14476, eq. 13)."""
        if self._settings.overlong is None:
            return 0.0
        limit = self._settings.overlong
        over = int(sequence.loss_mask.sum()) - (limit.max_tokens - limit.buffer_tokens)
        return limit.penalty * min(1.0, max(0.0, over / limit.buffer_tokens))

    def _of_part(self, sequences: list[Sequence], rewards: np.ndarray[Any, np.dtype[np.float64]]) -> Any:
        """Advantages of a part's sequences, each among those that ``advantage_within`` compares it with."""
        within = self._settings.advantage_within
        keys = [(s.role if within != "part" else "", s.slot if within == "slot" else 0) for s in sequences]
        found = np.zeros(len(sequences), dtype=np.float64)
        for key in dict.fromkeys(keys):
            members = np.array([own == key for own in keys])
            found[members] = part_advantages(rewards[members], self._settings.advantage)
        return found

    @torch.no_grad()
    def _reference_logprobs(self, micro: MicroBatch) -> Tensor:
        if self._reference is None:
            assert self._first_model is not None, "start comes first"
            self._reference = self._first_model()
        return micro_logprobs(self._reference, micro)[0]


def normalised(sequences: list[Sequence], advantages: list[float]) -> list[float]:
    """Advantages divided by their spread over the batch's trained sequences.

    A part's mean is 0 already, so nothing is taken off: what was exactly 0 stays so.
    """
    used = [a for sequence, a in zip(sequences, advantages, strict=True) if sequence.loss_mask.any()]
    spread = float(np.std(used)) if used else 0.0
    return [a / (spread + EPSILON) if a else 0.0 for a in advantages]
