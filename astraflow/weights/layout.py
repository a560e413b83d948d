"""Which tensors a version has and where their words lie: the table that all its blocks refer to.

Tensors stand in name order; those of one dtype follow each other in one flat run of words, which is cut
into blocks. So small tensors share a block, a large one spans several, and a block is always a
slice of one flat array. Tied tensors are stored once; an alias names the one they share.

Invariant: a layout is a pure function of names, shapes, dtypes and ties; its digest is part of each
version's, so that a change of any of them can never pass as a change of values.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import blake3
import msgspec
import numpy as np
import torch

from astraflow.weights.kernels import Words
from astraflow.weights.sharding import Sharding, Span, joined, spans_of
from storage.errors import DataError

BLOCK_ELEMENTS = 2**24  # 32 MiB of bf16: large enough to pack well, small enough to hold a few at once


@dataclass(frozen=True, slots=True)
class DType:
    """A word format: its safetensors name, torch dtype, numpy word, and the bits that are all set if non-finite."""

    name: str
    torch: torch.dtype
    word: np.dtype[np.uint8] | np.dtype[np.uint16] | np.dtype[np.uint32]
    non_finite: int


DTYPES = {
    dtype.name: dtype
    for dtype in (
        DType("BF16", torch.bfloat16, np.dtype("<u2"), 0x7F80),
        DType("F16", torch.float16, np.dtype("<u2"), 0x7C00),
        DType("F32", torch.float32, np.dtype("<u4"), 0x7F80_0000),
        DType("F8_E4M3", torch.float8_e4m3fn, np.dtype("u1"), 0x7F),
        DType("F8_E5M2", torch.float8_e5m2, np.dtype("u1"), 0x7C),
    )
}
_NAME_OF = {dtype.torch: dtype.name for dtype in DTYPES.values()}


class TensorSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One stored tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Block:
    """Words [start, stop) of the flat run of one dtype, all of them a shard's."""

    index: int
    dtype: DType
    start: int
    stop: int
    shard: int = 0

    @property
    def size(self) -> int:
        """Number of words."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Piece:
    """The part of a tensor that lies in a block: [start, stop) of the block, from element ``offset`` of the tensor."""

    name: str
    start: int
    stop: int
    offset: int


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """The tensor table of a version. Raises ``ValueError`` when it is not in order (so does its decoder)."""

    tensors: tuple[TensorSpec, ...]
    aliases: dict[str, str]  # tied name -> the stored name
    block_elements: int = BLOCK_ELEMENTS
    sharding: Sharding | msgspec.UnsetType = msgspec.UNSET  # a trainer's in shards; left out of the table otherwise

    def __post_init__(self) -> None:
        names = [spec.name for spec in self.tensors]
        if any(first >= second for first, second in pairwise(names)):
            raise ValueError("tensor names are not in order, or one occurs twice")
        if not self.aliases.keys().isdisjoint(names) or not set(self.aliases.values()) <= set(names):
            raise ValueError("an alias is a stored name, or names none")
        if self.block_elements < 1:
            raise ValueError("block_elements must be at least 1")
        for spec in self.tensors:
            if spec.dtype not in DTYPES or any(length < 0 for length in spec.shape):
                raise ValueError(f"tensor {spec.name!r}: dtype {spec.dtype!r} or shape {spec.shape} is not known")

    @cached_property
    def digest(self) -> str:
        """blake3 of the table's canonical JSON, as hex."""
        return blake3.blake3(msgspec.json.encode(self, order="deterministic")).hexdigest()

    @cached_property
    def starts(self) -> dict[str, int]:
        """Each stored tensor's first word in the flat run of its dtype."""
        used = dict.fromkeys(DTYPES, 0)
        starts = {}
        for spec in self.tensors:
            starts[spec.name] = used[spec.dtype]
            used[spec.dtype] += spec.size
        return starts

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Words of each dtype that occurs, in the order of ``DTYPES``."""
        sizes = {name: sum(spec.size for spec in self.tensors if spec.dtype == name) for name in DTYPES}
        return {name: size for name, size in sizes.items() if size}

    @property
    def full_bytes(self) -> int:
        """Bytes of all words."""
        return sum(size * DTYPES[name].word.itemsize for name, size in self.sizes.items())

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """All blocks, numbered by dtype (in the order of ``DTYPES``) and then by start."""
        blocks: list[Block] = []
        for name in self.sizes:
            for span in self._spans(name):
                for start in range(span.start, span.stop, self.block_elements):
                    stop = min(span.stop, start + self.block_elements)
                    blocks.append(Block(len(blocks), DTYPES[name], start, stop, span.shard))
        return tuple(blocks)

    def _spans(self, dtype: str) -> list[Span]:
        """Who owns which words of one dtype's run: all of it one owner's, unless the trainer has shards."""
        if self.sharding is msgspec.UNSET:
            return [Span(0, 0, self.sizes[dtype])]
        spans = []
        for spec in self.tensors:
            if spec.dtype == dtype and spec.size:
                at = self.starts[spec.name]
                owned = spans_of(spec.shape, spec.size, self.sharding)
                spans += [Span(span.shard, at + span.start, at + span.stop) for span in owned]
        return list(joined(spans))

    def pieces(self, block: Block) -> list[Piece]:
        """The tensors in ``block``, in order, without gaps."""
        specs, starts = self._by_dtype[block.dtype.name]
        pieces = []
        at = bisect_right(starts, block.start) - 1
        while at < len(specs) and starts[at] < block.stop:
            first, last = max(block.start, starts[at]), min(block.stop, starts[at] + specs[at].size)
            pieces.append(Piece(specs[at].name, first - block.start, last - block.start, first - starts[at]))
            at += 1
        return pieces

    @cached_property
    def _by_dtype(self) -> dict[str, tuple[list[TensorSpec], list[int]]]:
        found: dict[str, tuple[list[TensorSpec], list[int]]] = {name: ([], []) for name in DTYPES}
        for spec in self.tensors:
            if spec.size:
                found[spec.dtype][0].append(spec)
                found[spec.dtype][1].append(self.starts[spec.name])
        return found

    @cached_property
    def sizes_by_name(self) -> dict[str, int]:
        """Elements of each stored tensor."""
        return {spec.name: spec.size for spec in self.tensors}

    @cached_property
    def names(self) -> frozenset[str]:
        """All names, aliases too."""
        return frozenset(spec.name for spec in self.tensors) | self.aliases.keys()


def layout_of(weights: Mapping[str, torch.Tensor], block_elements: int = BLOCK_ELEMENTS) -> Layout:
    """The layout of CPU tensors. Tensors that view the same storage in the same way are tied.

    Raises ``DataError`` (kind ``dtype``) for a tensor of another dtype or on another device.
    """
    specs: list[TensorSpec] = []
    aliases: dict[str, str] = {}
    seen: dict[tuple[object, ...], str] = {}
    for name in sorted(weights):
        tensor = weights[name]
        dtype = _NAME_OF.get(tensor.dtype)
        if dtype is None or tensor.device.type != "cpu":
            raise DataError(
                f"tensor is {tensor.dtype} on {tensor.device}",
                where=name,
                remedy=f"Publish CPU tensors of {', '.join(map(str, _NAME_OF))}",
                kind="dtype",
            )
        view = (tensor.data_ptr(), dtype, tuple(tensor.shape), tensor.stride())
        if tensor.numel() and seen.setdefault(view, name) != name:
            aliases[name] = seen[view]
        else:
            specs.append(TensorSpec(name, dtype, tuple(tensor.shape)))
    return Layout(tuple(specs), aliases, block_elements)


def words_of(tensor: torch.Tensor) -> Words:
    """The tensor's words [N] in row-major order; a view where the tensor is contiguous."""
    dtype = DTYPES[_NAME_OF[tensor.dtype]]
    integers = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32}[dtype.word.itemsize]
    words: Words = tensor.detach().contiguous().reshape(-1).view(integers).numpy()
    return words
