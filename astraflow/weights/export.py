"""A version of a policy as a Hugging Face folder: weights as safetensors, and the files its trainer put in the store.

The weights are checked against the version's digest before anything is written, and the folder appears whole or not
at all: it is made under another name beside it and renamed. In an empty folder that exists config.json comes last.
"""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from astraflow.models import check_model, download_model_files, no_progress_bars
from astraflow.weights.adapter import ADAPTER_CONFIG, is_adapter, save_adapter
from astraflow.weights.subscriber import Subscriber
from storage.errors import ConfigError
from storage.keys import RunKeys
from storage.store import ObjectStore


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written."""

    policy: str
    version: int
    step: int
    digest: str
    folder: str
    files: list[str]
    size_bytes: int


def export_policy(
    store: ObjectStore, keys: RunKeys, policy: str, folder: Path, *, version: int | None = None
) -> Exported:
    """Write ``version`` (the newest if None) of ``policy`` to ``folder``, which must not exist or be empty.

    Raises ``ConfigError`` if there is no such version or the folder is taken, ``DataError`` if the weights can't be
    had intact.
    """
    folder = folder.absolute()  # so that «.» has a name
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(
            "there is something in the folder already", where=str(folder), remedy="Name another folder", kind="exists"
        )
    subscriber = Subscriber(store, keys, policy)
    newest = subscriber.newest()
    wanted = newest if version is None else version
    if not 0 <= wanted <= newest:
        there = f"There are 0 to {newest}" if newest >= 0 else "None is published yet"
        raise ConfigError(
            f"policy {policy} of {keys.run} has no version {max(wanted, 0)}",
            where=keys.weights(policy),
            remedy=there,
            kind="version",
        )
    update = subscriber.fetch(wanted)
    _write(folder, lambda place: download_model_files(store, keys, policy, place), update.tensors)
    files = sorted(path.name for path in folder.iterdir())
    size_bytes = sum((folder / name).stat().st_size for name in files)
    return Exported(policy, wanted, update.step, update.digest, str(folder), files, size_bytes)


def _write(folder: Path, describe: Callable[[Path], None], tensors: dict[str, torch.Tensor]) -> None:
    """Make the folder's files under another name, then give them theirs. A folder that is there stays the same one:
    somebody may stand in it.
    """
    mark = uuid.uuid4().hex[:8]
    unfinished = folder / f".{mark}" if folder.exists() else folder.with_name(f".{folder.name}-{mark}")
    unfinished.parent.mkdir(parents=True, exist_ok=True)
    try:
        describe(unfinished)
        save_model(unfinished, tensors)
        if not folder.exists():
            unfinished.rename(folder)
            return
        for path in sorted(unfinished.iterdir(), key=lambda path: path.name == "config.json"):
            path.rename(folder / path.name)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def save_model(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    """Weights as transformers writes them: sharded when large, tied ones once. The model itself takes no memory.

    An adapter is written as peft writes it, with the adapter's own tensors only.
    """
    if is_adapter(folder, tensors):
        save_adapter(folder, tensors)
        return
    (folder / ADAPTER_CONFIG).unlink(missing_ok=True)  # the whole model was published: it needs none
    from transformers import AutoConfig, AutoModelForCausalLM  # noqa: PLC0415  # seconds: only an export needs it

    check_model(str(folder))
    no_progress_bars()
    factory: Any = AutoModelForCausalLM
    with torch.device("meta"):
        model = factory.from_config(AutoConfig.from_pretrained(folder), dtype=torch.bfloat16)
    model.save_pretrained(folder, state_dict=tensors)
