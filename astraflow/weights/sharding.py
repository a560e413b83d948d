"""Which shard of a trainer owns which words: blocks are cut there, so that each rank encodes its own.

FSDP gives each rank some rows of every parameter. With blocks cut at those rows, a rank finds, hashes and packs its
blocks alone, and no rank ever holds the model. Small tensors, for which that would only make small
blocks, belong to shard 0 whole.

Invariant: owners are a function of the shapes and of ``Sharding``, in the way of ``torch.chunk`` along the first
dimension, which is that of FSDP2.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

import msgspec

FROM_ELEMENTS = 2**16  # a smaller tensor is not cut


class Sharding(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Tensors of at least ``from_elements`` are cut by rows into ``shards``. Raises ``ValueError`` below 1."""

    shards: int
    from_elements: int = FROM_ELEMENTS

    def __post_init__(self) -> None:
        if self.shards < 1 or self.from_elements < 1:
            raise ValueError(f"{self.shards} shards of tensors from {self.from_elements} elements")


@dataclass(frozen=True, slots=True)
class Span:
    """Words [start, stop) of a tensor or run, which belong to ``shard``."""

    shard: int
    start: int
    stop: int


def rows_of(shape: tuple[int, ...], shards: int, shard: int) -> tuple[int, int]:
    """First and last + 1 of the rows that a rank has of a tensor: those that ``torch.chunk`` gives it."""
    each = -(-shape[0] // shards)
    return min(shape[0], shard * each), min(shape[0], (shard + 1) * each)


def spans_of(shape: tuple[int, ...], size: int, sharding: Sharding) -> list[Span]:
    """Who owns which words of a tensor of ``size`` elements, in order."""
    if not shape or size < sharding.from_elements:
        return [Span(0, 0, size)]
    width = size // shape[0]
    rows = (rows_of(shape, sharding.shards, shard) for shard in range(sharding.shards))
    return [Span(shard, first * width, last * width) for shard, (first, last) in enumerate(rows) if first < last]


def joined(spans: Iterable[Span]) -> Iterator[Span]:
    """Spans that follow each other, with those of one shard put together."""
    for shard, found in groupby(spans, key=lambda span: span.shard):
        together = list(found)
        yield Span(shard, together[0].start, together[-1].stop)
