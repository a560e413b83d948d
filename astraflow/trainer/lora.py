"""Low-rank adapters in the trainer: only they learn, and what is published is the model with them merged in.

So every engine serves the policy as it is, and a reader never knows that it was trained by adapters. They are put into
the model's own modules; its class and the names of its weights stay.
"""

from __future__ import annotations

from typing import Any

import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora import LoraLayer
from torch import Tensor

from astraflow.config import Lora
from astraflow.trainer.cast import Bf16Weights
from storage.errors import ConfigError

ADAPTER = "default"
ALL_LINEAR = "all-linear"


def add_adapters(model: Any, lora: Lora, *, where: str) -> None:
    """Put adapters into the model's linear layers, in place; all other parameters no longer learn.

    Their first values come from torch's generator, and begin as no change. Raises ``ConfigError``.
    """
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]  # peft takes floats
        lora_dropout=0.0,
        target_modules=lora.targets or ALL_LINEAR,
        bias="none",
    )
    if not lora.targets:
        config.target_modules = linear_names(model)
    try:
        inject_adapter_in_model(config, model, adapter_name=ADAPTER)
    except ValueError as error:
        raise ConfigError(
            f"no adapters can be put into the model: {error}",
            where=f"{where}.targets",
            remedy="Name linear layers of the model, as ['q_proj', 'v_proj']",
            kind="lora",
        ) from error
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)


def linear_names(model: Any) -> list[str]:
    """Last names of all linear layers but the one that gives logits."""
    head = model.get_output_embeddings()
    linears = [
        name for name, module in model.named_modules() if isinstance(module, torch.nn.Linear) and module is not head
    ]
    return sorted({name.rpartition(".")[2] for name in linears})


class MergedWeights(Bf16Weights):
    """The weights of a model with adapters as those of the model alone: base + scale · B A, rounded to bf16."""

    def __init__(self, model: Any) -> None:
        super().__init__(model)
        self.tensors = {
            name.replace(".base_layer.", "."): tensor for name, tensor in self.tensors.items() if ".lora_" not in name
        }
        self._merged: list[tuple[LoraLayer, Tensor]] = [
            (module, self.tensors[f"{name}.weight"])
            for name, module in model.named_modules()
            if isinstance(module, LoraLayer)
        ]

    @torch.no_grad()
    def refresh(self) -> dict[str, Tensor]:
        super().refresh()
        for layer, copy in self._merged:
            base: Any = layer
            copy.copy_(base.base_layer.weight + base.get_delta_weight(ADAPTER))
        return self.tensors
