"""What changed, as files for the processes that hold an engine's weights.

The workers of an engine are other processes on this machine. They get a version as a folder of safetensors files, in
memory where there is room, which they map: few places of a tensor as its positions and new values, or the whole tensor.

Invariant: applied to the weights of the update before, a patch gives those of its version; a whole one needs none.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from astraflow.weights.update import WeightUpdate

_FILE_BYTES = 256 << 20  # what is copied at once while writing
_MEMORY = Path("/dev/shm")
_TABLE = "table.json"
_SPARE = 1.25  # of the bytes that a patch needs, where it is written


@dataclass(frozen=True, slots=True)
class Patch:
    """A patch as its readers see it. ``shapes`` names every tensor of the policy once, ``ties`` its other names."""

    folder: Path
    policy: str
    version: int
    whole: bool
    shapes: dict[str, tuple[int, ...]]
    ties: dict[str, list[str]]

    def tensors(self) -> Iterator[tuple[str, torch.Tensor, torch.Tensor | None]]:
        """Name, new values, and their positions [C] in the flat tensor, rising; None: all of it. Mapped, not read."""
        for path in sorted(self.folder.glob("*.safetensors")):
            with safe_open(path, framework="pt") as file:
                for key in file.keys():  # noqa: SIM118 - not a mapping
                    kind, _, name = key.partition("/")
                    if kind != "at":
                        yield name, file.get_tensor(key), file.get_tensor(f"at/{name}") if kind == "to" else None


def write_patch(update: WeightUpdate, parent: Path, *, whole: bool) -> Patch:
    """Write what ``update`` changed, or everything, to a new folder: in memory if it fits there, else in ``parent``."""
    names = _one_name_each(update)
    chosen = [name for name in names if whole or not names[name].isdisjoint(update.changed)]
    parts = {name: _part(update, name, whole=whole) for name in chosen}
    folder = _folder(sum(each.nbytes for part in parts.values() for each in part.values()), parent)
    batch: dict[str, torch.Tensor] = {}
    size = number = 0
    for part in parts.values():
        if size > _FILE_BYTES:
            save_file(batch, folder / f"{number:05d}.safetensors")
            batch, size, number = {}, 0, number + 1
        batch.update((key, each.clone()) for key, each in part.items())  # views of one buffer are refused
        size += sum(each.nbytes for each in part.values())
    save_file(batch, folder / f"{number:05d}.safetensors")
    shapes = {name: tuple(update.tensors[name].shape) for name in names}
    ties = {name: sorted(names[name] - {name}) for name in names if len(names[name]) > 1}
    patch = Patch(folder, update.policy, update.version, whole, shapes, ties)
    table = {"policy": update.policy, "version": update.version, "whole": whole, "shapes": shapes, "ties": ties}
    (folder / _TABLE).write_text(json.dumps(table), encoding="utf-8")
    return patch


def read_patch(folder: Path) -> Patch:
    """The patch in ``folder``."""
    table = json.loads((folder / _TABLE).read_text(encoding="utf-8"))
    shapes = {name: tuple(shape) for name, shape in table["shapes"].items()}
    return Patch(folder, table["policy"], table["version"], table["whole"], shapes, table["ties"])


def remove_patch(patch: Patch) -> None:
    """Give its memory back; those who map it may go on."""
    shutil.rmtree(patch.folder, ignore_errors=True)


def _one_name_each(update: WeightUpdate) -> dict[str, set[str]]:
    """Each tensor's first name, and all its names."""
    first: dict[tuple[int, tuple[int, ...]], str] = {}
    names: dict[str, set[str]] = {}
    for name, tensor in update.tensors.items():
        kept = first.setdefault((tensor.data_ptr(), tuple(tensor.shape)), name) if tensor.numel() else name
        names.setdefault(kept, set()).add(name)
    return names


def _part(update: WeightUpdate, name: str, *, whole: bool) -> dict[str, torch.Tensor]:
    tensor, places = update.tensors[name], update.places.get(name)
    if whole or places is None:
        return {f"all/{name}": tensor}
    return {f"at/{name}": places, f"to/{name}": tensor.reshape(-1)[places]}


def _folder(size_bytes: int, parent: Path) -> Path:
    roomy = _MEMORY.is_dir() and shutil.disk_usage(_MEMORY).free > _SPARE * size_bytes
    return Path(tempfile.mkdtemp(prefix="astraflow-patch-", dir=_MEMORY if roomy else parent))
