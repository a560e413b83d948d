"""The bf16 copy of masters that lie in rows on several ranks: each rank casts, hashes and uploads its own.

The rows are FSDP2's, which are those of ``torch.chunk``; small tensors go to rank 0 whole (``weights.sharding``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from astraflow.trainer.team import Team
from astraflow.weights.layout import Layout, TensorSpec
from astraflow.weights.sharding import Sharding
from astraflow.weights.shards import ShardEncoder, ShardPart, ShardPlan
from storage.errors import AstraFlowError, DataError
from storage.keys import RunKeys
from storage.store import ObjectStore


class _Outcome(msgspec.Struct, omit_defaults=True):
    """What a rank says of its part: the part, or why there is none."""

    part: ShardPart | None = None
    what: str = ""
    where: str = ""
    kind: str = ""


class ShardedWeights:
    """One rank's rows of a model's floating-point state, published together with the other ranks."""

    def __init__(self, model: Any, store: ObjectStore, keys: RunKeys, policy: str, team: Team, **coding: Any) -> None:
        self._team = team
        self._masters: dict[str, Tensor] = {}
        aliases: dict[str, str] = {}
        first: dict[int, str] = {}
        state = model.state_dict(keep_vars=True)
        for name in sorted(state):
            tensor = state[name]
            if tensor.is_floating_point() and first.setdefault(id(tensor), name) != name:
                aliases[name] = first[id(tensor)]
            elif tensor.is_floating_point():
                self._masters[name] = tensor
        specs = tuple(TensorSpec(name, "BF16", tuple(tensor.shape)) for name, tensor in self._masters.items())
        self.layout = Layout(specs, aliases, sharding=Sharding(team.size))
        self._encoder = ShardEncoder(store, keys, policy, self.layout, team.rank, **coding)

    @property
    def held(self) -> str:
        """The digest of the version whose words this rank has kept."""
        return self._encoder.held

    @torch.no_grad()
    def rows(self) -> dict[str, Tensor]:
        """This rank's rows, and on rank 0 the small tensors, in bf16 on the CPU. Every rank must call it."""
        found: dict[str, Tensor] = {}
        assert isinstance(self.layout.sharding, Sharding)
        for name, master in self._masters.items():
            if master.dim() and master.numel() >= self.layout.sharding.from_elements:
                own = (
                    master.to_local() if isinstance(master, DTensor) else master.chunk(self._team.size)[self._team.rank]
                )
                if own.numel():
                    found[name] = own.to("cpu", torch.bfloat16).contiguous()
            else:
                whole = master.full_tensor() if isinstance(master, DTensor) else master
                if self._team.rank == 0:
                    found[name] = whole.to("cpu", torch.bfloat16).contiguous()
        return found

    def encode(self, plan: ShardPlan, persist: Callable[[Callable[[], ShardPart]], ShardPart]) -> list[ShardPart]:
        """Every rank's part of the version. Raises ``DataError`` on every rank if one could not make its own."""
        rows = self.rows()
        try:
            outcome = _Outcome(part=persist(lambda: self._encoder.encode(rows, plan)))
        except AstraFlowError as error:  # told to the others, who wait for this rank's part; raised below
            outcome = _Outcome(what=error.what, where=error.where, kind=error.kind)
        told = [msgspec.json.decode(data, type=_Outcome) for data in self._team.collect(msgspec.json.encode(outcome))]
        bad = next((one for one in told if one.part is None), None)
        if bad is not None:
            raise DataError(
                f"rank {told.index(bad)}: {bad.what}",
                where=bad.where,
                remedy="Nothing was published: the next life goes on from the last checkpoint",
                kind=bad.kind,
            )
        return [one.part for one in told if one.part is not None]

    def keep(self, digest: str) -> None:
        """The version that was encoded last stands under ``digest``."""
        self._encoder.keep(digest)
