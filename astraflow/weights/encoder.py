"""Blocks of a source as records and packed streams, a few at a time: the work between weights and blobs.

Invariant: blocks come in the order of the layout, and no more are in memory than ``parallel`` says.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol, TypeAlias

from astraflow.weights.codec import Coding, EncodedBlock, Kind, encode_block, encode_dense
from astraflow.weights.container import BlockRecord, record_of
from astraflow.weights.kernels import Words
from astraflow.weights.layout import Block
from astraflow.weights.parallel import in_order
from astraflow.weights.source import Source

Encoded: TypeAlias = Iterator[tuple[BlockRecord, EncodedBlock]]
Digests: TypeAlias = Mapping[int, str] | Sequence[str]  # by block number


class Base(Protocol):
    """What a delta starts from: words and digests of at least the source's blocks."""

    @property
    def digests(self) -> Digests: ...

    def words(self, block: Block) -> Words: ...


def changed_blocks(
    base: Base,
    source: Source,
    digests: Digests,
    records: list[BlockRecord],
    coding: Coding = "default",
    *,
    mergeable: dict[int, EncodedBlock] | None = None,
) -> Encoded:
    """The blocks of ``source`` that differ from ``base``; their records are noted in ``records``.

    ``mergeable`` gets, by number, a form without classes of each block that is stored with them.
    """

    def work(block: Block) -> tuple[BlockRecord, EncodedBlock]:
        before, after = base.words(block), source.words(block)
        encoded = encode_block(before, after, coding)
        if mergeable is not None and encoded.kind is Kind.CLASSES:
            mergeable[block.index] = encode_block(before, after)
        return record_of(block.index, encoded, base=base.digests[block.index], result=digests[block.index]), encoded

    differing = [block for block in source.blocks if base.digests[block.index] != digests[block.index]]
    for record, encoded in in_order(work, differing):
        records.append(record)
        yield record, encoded


def all_blocks(source: Source, digests: Digests) -> Encoded:
    """All blocks of ``source``, without a base."""

    def work(block: Block) -> tuple[BlockRecord, EncodedBlock]:
        encoded = encode_dense(*source.parts(block))
        return record_of(block.index, encoded, base="", result=digests[block.index]), encoded

    return in_order(work, source.blocks, waiting=0)  # results are as large as blocks
