"""LoRA adapters as weights of their own: what is published is the adapter, never the model it sits on.

A policy whose model folder has ``adapter_config.json`` is an adapter. Its versions hold the adapter's tensors under
the names that peft gives them in a file, in a layout of their own: megabytes where the model has gigabytes, and
versions, deltas, merges and mirrors are the same. An export is a folder that ``PeftModel.from_pretrained`` loads.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import save_file

from storage.errors import DataError

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_FILE = "adapter_model.safetensors"
_MARKS = ("lora_A", "lora_B", "lora_embedding_A", "lora_embedding_B", "lora_magnitude_vector")


def is_adapter(folder: Path) -> bool:
    """Whether a model folder describes an adapter."""
    return (folder / ADAPTER_CONFIG).is_file()


def adapter_tensors(
    state: Mapping[str, torch.Tensor], *, name: str = "default", dtype: torch.dtype = torch.bfloat16
) -> dict[str, torch.Tensor]:
    """The tensors of adapter ``name`` in a peft model's ``state_dict``, on the CPU, under their names in a file.

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
        elif any(mark in parts for mark in _MARKS) and name in parts:
            parts.remove(name)
            found[".".join(parts)] = tensor
    if not found:
        raise DataError(
            f"the model has no tensors of an adapter {name!r}",
            where="adapter",
            remedy="Wrap the model by peft.get_peft_model, and name the adapter as there",
            kind="adapter",
        )
    return {key: tensor.detach().to("cpu", dtype).contiguous() for key, tensor in found.items()}


def save_adapter(folder: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write the tensors beside ``adapter_config.json``, and leave nothing there that calls the folder a whole model."""
    for name in ("config.json", "generation_config.json"):
        (folder / name).unlink(missing_ok=True)
    save_file({key: tensor.clone() for key, tensor in tensors.items()}, folder / ADAPTER_FILE, {"format": "pt"})
