"""A model made ready to train: layers that are computed twice, and parameters that several ranks share (FSDP2)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint

from astraflow.config import Trainer
from astraflow.trainer.team import Team


def decoder_layers(model: nn.Module) -> list[nn.Module]:
    """The repeated blocks of a transformer: the longest list of modules of one class; [] if there is none."""
    lists = [
        list(module)
        for module in model.modules()
        if isinstance(module, nn.ModuleList) and len({type(child) for child in module}) == 1
    ]
    return max(lists, key=len, default=[])


def compute_layers_twice(model: nn.Module) -> None:
    """Keep only each block's input for backward, and compute the block again there.

    The block's ``forward`` is wrapped, not its call: so it holds for a model in evaluation mode, in which there is no
    dropout, and inside of what FSDP gathers for the block.
    """
    for layer in decoder_layers(model):
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def spread(model: Any, settings: Trainer, team: Team) -> None:
    """Give every rank its rows of each parameter. All ranks begin with rank 0's values.

    Each block is gathered for its own forward and backward only. Masters and gradients stay fp32; with ``compute =
    "bfloat16"`` blocks are gathered and computed in bf16.
    """
    with torch.no_grad():
        for tensor in _tensors(model):
            dist.broadcast(tensor, 0)
    low = torch.bfloat16 if settings.compute == "bfloat16" else None
    policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32 if low else None)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    mesh = init_device_mesh(device, (team.size,))
    for layer in decoder_layers(model):
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    fully_shard(model, mesh=mesh, mp_policy=policy)


def _tensors(model: nn.Module) -> Iterator[torch.Tensor]:
    """Parameters and buffers, each once."""
    seen: set[int] = set()
    for tensor in [*model.parameters(), *model.buffers()]:
        if id(tensor) not in seen:
            seen.add(id(tensor))
            yield tensor.data
