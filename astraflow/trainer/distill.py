"""``distill``: on-policy distillation. The policy samples, a teacher says of each token how likely it had been.

The loss is the configured one with a token's own advantage ``log π_teacher - log π``: on the policy's own samples that
is the gradient of the reverse KL(π ‖ π_teacher) (arXiv 2306.13649; K. Lu, «On-policy distillation», 2025). Rewards do
not matter. The teacher runs beside the trainer, in the arithmetic that the trainer computes in.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from astraflow.config import Trainer
from astraflow.models import load_causal_lm
from astraflow.trainer.batch import MicroBatch
from astraflow.trainer.logprobs import micro_logprobs
from astraflow.trainer.losses import load_loss
from astraflow.trainer.objective import Examples, Setting
from astraflow.trainer.proximal import SelectingLoss
from astraflow.trainer.reader import LoadedBatch
from astraflow.trainer.surrogate import MAX_LOG_RATIO, TokenLoss
from storage.errors import ConfigError


class Distill:
    """Reverse KL to ``teacher`` on sampled tokens."""

    def __init__(self, settings: Trainer) -> None:
        self._settings = settings
        self._loss: Any = load_loss(settings.loss)
        if isinstance(self._loss, SelectingLoss):
            raise ConfigError(
                f"loss {settings.loss.name!r} chooses tokens by advantages, which 'distill' has only as it trains",
                where="trainer.loss.name",
                remedy="Take one that trains every token: grpo, gspo, cispo, decoupled, tis or icepop",
                kind="options",
            )
        self.needs_proximal = bool(getattr(self._loss, "needs_proximal", False))
        self._teacher: Any = None

    def start(self, setting: Setting) -> None:
        where = f"policies.{setting.policy}.trainer.teacher"
        if not self._settings.teacher:
            raise ConfigError(
                "kind 'distill' needs a teacher",
                where=where,
                remedy="Name the folder of a causal LM with the policy's tokenizer",
                kind="teacher",
            )
        dtype = torch.bfloat16 if self._settings.compute == "bfloat16" else torch.float32
        teacher: Any = load_causal_lm(self._settings.teacher, dtype)
        self._teacher = teacher.to(setting.device).requires_grad_(False)

    def examples(self, batch: LoadedBatch) -> Examples:
        sequences = [sequence for part in batch.parts for sequence in part.sequences]
        return Examples(sequences, [0.0] * len(sequences))

    def loss(self, logprobs: Tensor, micro: MicroBatch, proximal: Tensor) -> TokenLoss:
        with torch.no_grad():
            self._check_vocabulary(micro)
            teacher, _ = micro_logprobs(self._teacher, micro)
            gap = (teacher - logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
            advantages = torch.where(micro.mask, gap, torch.zeros_like(gap))
        extra = {"proximal": proximal} if self.needs_proximal else {}
        outcome: TokenLoss = self._loss(logprobs, micro.old_logprobs, advantages, micro.mask, **extra)
        return TokenLoss(outcome.loss, outcome.clipped, {**outcome.parts, "teacher_kl": -advantages})

    def _check_vocabulary(self, micro: MicroBatch) -> None:
        known = self._teacher.get_input_embeddings().num_embeddings
        if int(micro.input_ids.max()) >= known:
            raise ConfigError(
                f"the batch has tokens beyond the teacher's vocabulary of {known}",
                where="trainer.teacher",
                remedy="The teacher must have the policy's tokenizer",
                kind="teacher",
            )
