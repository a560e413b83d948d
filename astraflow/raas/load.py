"""Putting a version's tensors into a torch model, whole or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from storage.errors import DataError

if TYPE_CHECKING:
    from astraflow.weights.update import WeightUpdate


def load_tensors(model: torch.nn.Module, update: WeightUpdate, *, everything: bool) -> None:
    """Copy the tensors of ``update`` (only the changed ones unless ``everything``) into ``model``, cast to its dtype.

    Everything is checked before the first copy. Raises ``DataError`` (kind ``shape``) if a tensor has no place or a
    place has no tensor; tied weights may be named by any of their names.
    """
    where = f"{update.policy} version {update.version}"
    places = model.state_dict(keep_vars=True)
    filled = {places[name].data_ptr() for name in update.tensors if name in places}
    missing = [name for name, place in places.items() if place.data_ptr() not in filled]
    unknown = [name for name in update.tensors if name not in places]
    wrong = [
        f"{name} {tuple(tensor.shape)} for {tuple(places[name].shape)}"
        for name, tensor in update.tensors.items()
        if name in places and tensor.shape != places[name].shape
    ]
    for text, names in (("unknown", unknown), ("missing", missing), ("of another shape", wrong)):
        if names:
            raise DataError(
                f"{len(names)} tensors are {text}: {', '.join(names[:3])}",
                where=where,
                remedy="The weights belong to another model than the run's config.json",
                kind="shape",
            )
    update.write_into(places, everything=everything)
