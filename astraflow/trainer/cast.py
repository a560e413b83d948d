"""The bf16 copy of the fp32 masters: what is published and what engines sample from."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class Bf16Weights:
    """A model's floating-point state as CPU bf16 tensors, in buffers that are used again at every refresh.

    Tied parameters share one tensor here too, so that they are published once.
    """

    def __init__(self, model: Any) -> None:
        self._masters: list[Tensor] = []
        self._copies: list[Tensor] = []
        self.tensors: dict[str, Tensor] = {}
        seen: dict[int, Tensor] = {}
        for name, tensor in model.state_dict(keep_vars=True).items():
            if not tensor.is_floating_point():
                continue
            if id(tensor) not in seen:
                seen[id(tensor)] = torch.empty(tensor.shape, dtype=torch.bfloat16)
                self._masters.append(tensor)
                self._copies.append(seen[id(tensor)])
            self.tensors[name] = seen[id(tensor)]

    @torch.no_grad()
    def refresh(self) -> dict[str, Tensor]:
        """Round the masters to bf16 (nearest even) and return the tensors by name; valid until the next refresh."""
        for copy, master in zip(self._copies, self._masters, strict=True):
            copy.copy_(master)
        return self.tensors
