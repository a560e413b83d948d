"""Where a checkpoint's tensors lie in a running model, found out by watching the model's own loader.

An inference engine fuses, pads and shards what a checkpoint keeps apart: q, k and v are one matrix, and a parallel
rank holds a slice of it. Instead of repeating each architecture's rules, the model's ``load_weights`` is run on tensors
without memory, and each copy that it would make is noted and not made. So whatever the loader can place, a sparse
update can reach: fused, sharded and tied weights, and experts of one tensor.

Invariant: a ``Box`` names elements that ``load_weights`` would write, and only with values of the same elements of the
checkpoint; a loader that computes with what it reads is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from storage.errors import DataError

Loader = Callable[[Iterable[tuple[str, torch.Tensor]]], Any]
"""A model's ``load_weights``."""


@dataclass(frozen=True, slots=True)
class Box:
    """A box of one checkpoint tensor and the memory of a parameter that holds it; strides in elements."""

    memory: torch.Tensor  # all of the parameter's storage, flat
    shape: tuple[int, ...]
    offset: int
    strides: tuple[int, ...]
    source_offset: int
    source_strides: tuple[int, ...]

    @property
    def size(self) -> int:
        """Its elements."""
        return prod(self.shape)

    def fill(self, source: torch.Tensor) -> None:
        """Copy the box out of the whole checkpoint tensor (contiguous), cast to the parameter's type."""
        self.view().copy_(source.reshape(-1).as_strided(self.shape, self.source_strides, self.source_offset))

    def view(self) -> torch.Tensor:
        """The box as it lies in the parameter."""
        return self.memory.as_strided(self.shape, self.strides, self.offset)

    def targets(self, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | slice]:
        """Flat ``places`` [C] of the checkpoint tensor, rising -> places in ``memory``, and which of C they are."""
        if self.strides == self.source_strides == _contiguous(self.shape):
            edges = torch.tensor([self.source_offset, self.source_offset + self.size], dtype=places.dtype)
            first, last = torch.searchsorted(places, edges).tolist()
            return places[first:last] + (self.offset - self.source_offset), slice(first, last)
        rest = places - self.source_offset
        target = torch.full_like(places, self.offset)
        inside = rest >= 0
        steps = zip(self.source_strides, self.shape, self.strides, strict=True)
        for source_stride, size, stride in sorted(steps, reverse=True):
            if size > 1:
                at = rest // source_stride
                inside &= at < size
                rest = rest - at * source_stride
                target += at * stride
        inside &= rest == 0
        return target[inside], inside


def find_boxes(
    load_weights: Loader,
    memories: Mapping[str, torch.Tensor],
    shapes: Mapping[str, Sequence[int]],
    ties: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, list[Box]]:
    """The boxes of each checkpoint tensor in ``memories`` (a model's parameters and buffers by name).

    ``ties`` are its other names: loaders want them together, and may leave all but one out. Raises ``DataError``, kind
    ``shape`` if the loader refuses a tensor, ``unsupported`` if it does anything but copy it.
    """
    flats = {_storage(tensor): _flat(tensor) for tensor in memories.values()}
    found: dict[str, list[Box]] = {}
    for name, shape in shapes.items():
        called = [name, *(ties or {}).get(name, ())]
        sources = [torch.empty(tuple(shape), dtype=_any_dtype(memories), device="meta") for _ in called]
        watch = _Watch()
        try:
            with torch.no_grad(), watch:
                load_weights(zip(called, sources, strict=True))
        except (ValueError, KeyError, AssertionError, RuntimeError, NotImplementedError) as error:
            raise DataError(
                f"the model's loader refuses the tensor of shape {tuple(shape)}: {type(error).__name__}: {error}",
                where=name,
                remedy="The weights belong to another model than the run's config.json",
                kind="shape",
            ) from error
        found[name] = list(_boxes_of(name, sources, watch.copies, flats))
    return found


def unfilled(memories: Mapping[str, torch.Tensor], boxes: Mapping[str, list[Box]], padded: set[str]) -> list[str]:
    """The parameters that no box fills, or not wholly unless they are ``padded``."""
    filled: dict[int, int] = {}
    for box in (box for each in boxes.values() for box in each):
        filled[_storage(box.memory)] = filled.get(_storage(box.memory), 0) + box.size
    return [
        name
        for name, tensor in memories.items()
        if filled.get(_storage(tensor), 0) < (1 if name in padded else tensor.numel())
    ]


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes copies out of tensors without memory instead of making them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.copies: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten.copy_.default and args[1].is_meta and not args[0].is_meta:
            self.copies.append((args[0], args[1]))
            return args[0]
        return func(*args, **(kwargs or {}))


def _boxes_of(
    name: str,
    sources: list[torch.Tensor],
    copies: list[tuple[torch.Tensor, torch.Tensor]],
    flats: Mapping[int, torch.Tensor],
) -> Iterator[Box]:
    known = set(map(_storage, sources))
    for target, part in copies:
        memory = flats.get(_storage(target))
        if memory is None or _storage(part) not in known or target.shape != part.shape:
            raise DataError(
                "the model's loader does not copy this tensor, it computes with it",
                where=name,
                remedy="This architecture can't be updated in place: use the engine 'transformers'",
                kind="unsupported",
            )
        yield Box(
            memory,
            tuple(target.shape),
            int(target.storage_offset()),
            tuple(target.stride()),
            int(part.storage_offset()),
            tuple(part.stride()),
        )


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """All of a tensor's storage as one dimension."""
    plain = tensor.detach()
    return plain.as_strided((plain.untyped_storage().nbytes() // plain.element_size(),), (1,), 0)


def _storage(tensor: torch.Tensor) -> int:
    identity: int = tensor.untyped_storage()._cdata
    return identity  # what has no memory has no address, but it has an identity


def _contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))


def _any_dtype(memories: Mapping[str, torch.Tensor]) -> torch.dtype:
    return next(tensor.dtype for tensor in memories.values() if tensor.is_floating_point())
