"""LoRA adapters as weights of their own: what is published is the adapter, never the model it sits on.

A policy whose model folder has ``adapter_config.json`` is an adapter. Its versions hold the adapter's tensors under
the names that peft gives them in a file, in a layout of their own: megabytes where the model has gigabytes, and
versions, deltas, merges and mirrors are the same. A trainer publishes ``adapter_tensors`` of its model; an engine,
whose base model is its own, puts each update in by ``load_adapter``. An export is a folder that
``PeftModel.from_pretrained`` loads.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from astraflow.weights.update import WeightUpdate
from storage.errors import DataError

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_FILE = "adapter_model.safetensors"
_PREFIX = "base_model."
_MARKS = ("lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B", "lora_magnitude_vector")


def is_adapter(folder: Path, names: Collection[str]) -> bool:
    """Whether tensors of these names are the adapter that a model folder describes, and not a whole model.

    In a file of peft's, all names begin alike, some are low-rank matrices, and no layer under them is there.
    """
    return (
        (folder / ADAPTER_CONFIG).is_file()
        and any(_has_mark(name) for name in names)
        and all(name.startswith(_PREFIX) and "base_layer" not in name.split(".") for name in names)
    )


def _has_mark(name: str) -> bool:
    return any(mark in name.split(".") for mark in _MARKS)


def adapter_tensors(
    state: Mapping[str, torch.Tensor], *, name: str = "default", dtype: torch.dtype = torch.bfloat16
) -> dict[str, torch.Tensor]:
    """The tensors of adapter ``name`` in a peft model's ``state_dict``, on the CPU, under their names in a file.

    This is what a trainer publishes. Raises as ``adapter_places`` does.
    """
    return {
        key: tensor.detach().to("cpu", dtype).contiguous() for key, tensor in adapter_places(state, name=name).items()
    }


def load_adapter(
    state: Mapping[str, torch.Tensor], update: WeightUpdate, *, name: str = "default", everything: bool = False
) -> None:
    """Write a version of an adapter into adapter ``name`` of the peft model whose ``state_dict`` is ``state``.

    Only what changed since the update before, unless ``everything``. Everything is checked before the first write:
    ``DataError`` (kind ``shape``) if a tensor has no place, or a place no tensor.
    """
    places = adapter_places(state, name=name)
    shapes = {key: tensor.shape for key, tensor in update.tensors.items()}
    if shapes != {key: place.shape for key, place in places.items()}:
        wrong = [
            key for key in places.keys() | shapes.keys() if key not in places or shapes.get(key) != places[key].shape
        ]
        raise DataError(
            f"{len(wrong)} tensors of the adapter are missing, unknown or of another shape: {min(wrong)}",
            where=f"{update.policy} version {update.version}",
            remedy="The version belongs to an adapter of another rank or other modules",
            kind="shape",
        )
    update.write_into(places, everything=everything)


def adapter_places(state: Mapping[str, torch.Tensor], *, name: str = "default") -> dict[str, torch.Tensor]:
    """The model's own tensors of adapter ``name``, by the names that they have in a file.

    Takes the low-rank matrices and the modules that peft saves whole (``modules_to_save``). Raises ``DataError`` (kind
    ``adapter``) if there are none.
    """
    found: dict[str, torch.Tensor] = {}
    for key, tensor in state.items():
        parts = key.split(".")
        if "modules_to_save" in parts:
            at = parts.index("modules_to_save")
            if parts[at + 1] == name:
                found[".".join(parts[:at] + parts[at + 2 :])] = tensor
        elif _has_mark(key) and name in parts:
            parts.remove(name)
            found[".".join(parts)] = tensor
    if not found:
        raise DataError(
            f"the model has no tensors of an adapter {name!r}",
            where="adapter",
            remedy="Wrap the model by peft.get_peft_model, and name the adapter as there",
            kind="adapter",
        )
    return found


def save_adapter(folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write the tensors beside ``adapter_config.json``, and leave nothing there that calls the folder a whole model."""
    for name in ("config.json", "generation_config.json"):
        (folder / name).unlink(missing_ok=True)
    save_file({key: tensor.clone() for key, tensor in tensors.items()}, folder / ADAPTER_FILE, {"format": "pt"})
