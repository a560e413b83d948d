"""What a trainer learns with: model, optimizer, schedule, and what it is trained for."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from astraflow.config import Trainer
from astraflow.trainer.proximal import ProximalLoss
from astraflow.trainer.surrogate import TrainerLoss
from astraflow.trainer.team import ALONE, Team

if TYPE_CHECKING:
    from astraflow.trainer.objective import Objective
    from astraflow.trainer.reader import LoadedBatch


def learning_rate(config: Trainer, step: int) -> float:
    """The learning rate of step ``step`` (from 0): linear warm-up to the peak, then the schedule to the last step.

    It depends on nothing but the step, so a checkpoint holds no scheduler.
    """
    if step < config.lr_warmup_steps:
        return config.lr * (step + 1) / config.lr_warmup_steps
    if config.lr_schedule == "constant":
        return config.lr
    left = max(1, config.steps - 1 - config.lr_warmup_steps)
    done = min(1.0, (step - config.lr_warmup_steps) / left)
    fall = done if config.lr_schedule == "linear" else (1 - math.cos(math.pi * done)) / 2
    return config.lr * (1 - (1 - config.lr_min_share) * fall)


def new_optimizer(model: Any, config: Trainer) -> torch.optim.AdamW:
    """AdamW over the model's trainable fp32 parameters, with the config's settings."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(
        parameters, lr=config.lr, betas=config.betas, weight_decay=config.weight_decay, fused=True
    )
    for parameter in parameters:  # the state that the first step would make: a checkpoint has one form
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
    loss: TrainerLoss | ProximalLoss
    config: Trainer
    pad_id: int
    constant_tokens: int
    step: int = 0
    bad_steps: int = 0  # in a row
    objective: Objective | None = None  # None: 'rl' with ``loss``
    team: Team = ALONE
    train: Callable[[Learner, LoadedBatch], StepResult] | None = None  # None: ``step.train_batch``

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        found: torch.device = next(self.model.parameters()).device
        return found


@dataclass(slots=True)
class StepResult:
    """Figures of one step: scalars, and the mean |log-prob - that of the engine|, lag included, by pool."""

    metrics: dict[str, float]
    mismatch_by_pool: dict[str, float] = field(default_factory=dict)
