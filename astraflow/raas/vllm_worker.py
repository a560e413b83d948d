"""What runs inside vLLM's worker processes: a new version is prepared beside decoding and swapped in between two steps.

``prepare`` starts a thread that maps the patch, finds each value's place in this rank's memory and checks everything;
``swap`` then only writes. Both come by vLLM's ``collective_rpc``, which the workers serve between steps.

On CPUs vLLM packs linear weights into a form of its own that can't be written to (and a tied output layer keeps a
packed copy of its own). The packing is left out here, so that weights stay where they are.

Invariant: ``swap`` writes the whole of a patch that was prepared without an error, or nothing.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import torch
import vllm.model_executor.layers.utils as layer_utils
import xxhash

from astraflow.raas.vllm_boxes import Box, find_boxes, unfilled
from astraflow.raas.vllm_patch import Patch, read_patch
from storage.errors import DataError

Write = tuple[torch.Tensor, torch.Tensor, torch.Tensor] | tuple[Box, torch.Tensor]
"""Memory, places and values; or a box and the whole tensor it is filled from."""

_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class SparseUpdates:
    """Mixed into vLLM's worker; its attributes must not be those of one. Each method is called by name."""

    model_runner: Any
    device: Any
    _astraflow_shapes: dict[str, tuple[int, ...]]

    def astraflow_prepare(self, folder: str) -> None:
        """Begin to make the patch in ``folder`` ready; at first find where the model keeps each tensor."""
        if (before := getattr(self, "_astraflow_preparing", None)) is not None:
            before.join()  # of a load that was given up
        self._astraflow_writes: list[Write] = []
        self._astraflow_wrong: DataError | None = None
        self._astraflow_preparing = threading.Thread(target=self._astraflow_make_ready, args=(Path(folder),))
        self._astraflow_preparing.start()

    def astraflow_prepared(self) -> dict[str, str] | None:
        """None while it is being prepared, then what is wrong with it: empty if nothing is."""
        if self._astraflow_preparing.is_alive():
            return None
        wrong = self._astraflow_wrong
        return {} if wrong is None else {"what": wrong.what, "where": wrong.where, "kind": wrong.kind}

    def astraflow_swap(self) -> float:
        """Write what was prepared; returns how long it took, in seconds."""
        begun = time.perf_counter()
        self._astraflow_preparing.join()
        with torch.inference_mode():
            for write in self._astraflow_writes:
                if len(write) == 2:
                    write[0].fill(write[1])
                else:
                    _scatter(*write)
        self._astraflow_writes = []
        return time.perf_counter() - begun

    def astraflow_digests(self) -> dict[str, str]:
        """What this rank holds of each checkpoint tensor, hashed: equal weights have equal digests."""
        found = {}
        for name, boxes in self._astraflow_boxes.items():
            digest = xxhash.xxh3_128()
            for box in boxes:
                digest.update(box.view().contiguous().cpu().view(torch.uint8).numpy().tobytes())
            found[name] = digest.hexdigest()
        return found

    # --- the thread that prepares --------------------------------------------------------------

    def _astraflow_make_ready(self, folder: Path) -> None:
        try:
            patch = read_patch(folder)
            boxes = self._astraflow_boxes_of(patch)
            writes: list[Write] = []
            for name, values, places in patch.tensors():
                self._astraflow_add(writes, boxes[name], values, places)
            self._astraflow_writes = writes
        except DataError as error:
            self._astraflow_wrong = error
        except Exception as error:  # noqa: BLE001 - the thread's boundary: told by astraflow_prepared
            self._astraflow_wrong = DataError(f"{type(error).__name__}: {error}", where=str(folder), kind="prepare")

    def _astraflow_add(
        self, writes: list[Write], boxes: list[Box], values: torch.Tensor, places: torch.Tensor | None
    ) -> None:
        if places is None:
            ready = values.to(self.device)
            writes.extend((box, ready) for box in boxes)
            return
        for box in boxes:
            targets, chosen = box.targets(places)
            writes.append((box.memory, targets.to(self.device), values[chosen].to(self.device, box.memory.dtype)))

    def _astraflow_boxes_of(self, patch: Patch) -> dict[str, list[Box]]:
        """Where each tensor of the patch lies; found once, since a policy's tensors stay the same."""
        known = getattr(self, "_astraflow_boxes", None)
        if known is not None and self._astraflow_shapes == patch.shapes:
            return known  # type: ignore[no-any-return]
        model = self.model_runner.get_model()
        memories = dict(model.named_parameters()) | dict(model.named_buffers())
        boxes = find_boxes(model.load_weights, memories, patch.shapes, patch.ties)
        _check(model, boxes, patch.policy)
        self._astraflow_shapes = dict(patch.shapes)
        self._astraflow_boxes: dict[str, list[Box]] = boxes
        return boxes


def _scatter(memory: torch.Tensor, places: torch.Tensor, values: torch.Tensor) -> None:
    """Write ``values`` [C] at the flat ``places`` [C]; on CPUs by numpy, which uses one thread.

    An update is hundreds of small writes. torch's threads would wait for each other at the end of every one, and on few
    cores the one that is waited for may get none, as vLLM's other processes spin until this one answers: seconds were
    seen. vLLM's CPU worker lets nobody change how many threads torch has.
    """
    if not memory.is_cpu:
        memory[places] = values
        return
    words = _WORDS[memory.element_size()]  # numpy knows no bf16
    memory.view(words).numpy()[places.numpy()] = values.view(words).numpy()


def _check(model: Any, boxes: dict[str, list[Box]], policy: str) -> None:
    """Every tensor has a place and every parameter a tensor. Raises ``DataError``."""
    unknown = [name for name, found in boxes.items() if not found]
    padded = {
        f"{prefix}.{name}"
        for prefix, module in model.named_modules()
        if hasattr(module, "org_vocab_size")
        for name, _ in module.named_parameters(recurse=False)
    }
    missing = unfilled(dict(model.named_parameters()), boxes, padded)
    for text, names in (("unknown", unknown), ("missing", missing)):
        if names:
            raise DataError(
                f"{len(names)} tensors are {text}: {', '.join(names[:3])}",
                where=policy,
                remedy="The weights belong to another model than the run's config.json",
                kind="shape",
            )


def _plain_linear(layer: torch.nn.Module, remove_weight: bool) -> None:
    layer.cpu_linear = torch.nn.functional.linear  # type: ignore[assignment]


# This module is imported before the model is built. Decoding is about as fast, see docs/vllm.md.
layer_utils.dispatch_cpu_unquantized_gemm = _plain_linear
