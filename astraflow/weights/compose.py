"""Changes of one block put after each other, or turned round, mostly without the weights.

Steps are differences modulo 2^bits in the order of values, so two of them at one word add, and a step's
inverse is its negative. A merged delta is therefore made from deltas alone, and going back costs no
object in the store.

What needs the words before the change (``base``), and says so by ``DataError`` of kind ``base``: anything with a
``classes`` block, which is counted along them, and the inverse of a ``dense`` one, which holds only the words after.

Invariant: ``compose(a, b)`` turns the base of ``a`` into the result of ``b``, and ``invert(a)`` the result of
``a`` into its base, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from typing import Any

import numpy as np

from astraflow.weights.codec import (
    SAME,
    Change,
    DenseChange,
    EncodedBlock,
    Kind,
    SparseChange,
    base_needed,
    decode_block,
    encode_dense,
    encode_sparse,
)
from astraflow.weights.kernels import Words, unzigzag, zigzag


def compose(
    first: EncodedBlock,
    second: EncodedBlock,
    *,
    size: int,
    word: np.dtype[Any],
    base: Words | None = None,
    where: str = "compose",
) -> EncodedBlock:
    """``first``, then ``second``, as one change of a block of ``size`` words of type ``word``; see ``compose_all``."""
    return compose_all((first, second), size=size, word=word, base=base, where=where)


def compose_all(
    blocks: Sequence[EncodedBlock],
    *,
    size: int,
    word: np.dtype[Any],
    base: Words | None = None,
    where: str = "compose",
) -> EncodedBlock:
    """All ``blocks`` after each other as one change; each is unpacked once and the result packed once.

    ``base`` [size], the words before the first, is looked at only if one of them is ``classes``; the result never is.
    Raises ``DataError`` naming ``where``: kind ``codec`` when a stream is damaged, ``base`` when the words are missing.
    """
    last_dense = max((at for at, block in enumerate(blocks) if block.kind is Kind.DENSE), default=0)
    needed = [
        block for block in blocks[last_dense:] if block.kind is not Kind.SAME
    ]  # what a dense one overwrites is void
    if len(needed) < 2 and Kind.CLASSES not in {block.kind for block in needed}:
        return needed[0] if needed else SAME
    if any(block.kind is Kind.CLASSES for block in needed):
        changes = _decoded_along(needed, base, size, word, where)
    else:
        changes = [_decoded(block, size, word, where) for block in needed]
    merged = reduce(partial(_after, word), changes)
    if isinstance(merged, DenseChange):
        return encode_dense(merged.words(word))
    return encode_sparse(merged.positions, merged.steps)


def invert(
    block: EncodedBlock, *, size: int, word: np.dtype[Any], base: Words | None = None, where: str = "invert"
) -> EncodedBlock:
    """The change from the block's result back to its base.

    A ``dense`` or ``classes`` block needs ``base`` [size], the words before it: ``DataError`` of kind ``base`` without.
    """
    if block.kind is Kind.SAME:
        return block
    if block.kind is Kind.DENSE:
        return encode_dense(base_needed(base, where))
    change = _decoded(block, size, word, where, base)
    assert isinstance(change, SparseChange), "a block that is not dense decodes to steps"
    return encode_sparse(change.positions, _negated(change.steps))


def _decoded(block: EncodedBlock, size: int, word: np.dtype[Any], where: str, base: Words | None = None) -> Change:
    return decode_block(block.kind, block.changed, block.streams, size=size, word=word, where=where, base=base)


def _decoded_along(
    blocks: Sequence[EncodedBlock], base: Words | None, size: int, word: np.dtype[Any], where: str
) -> list[Change]:
    """Decode while a copy of ``base`` follows, for what is counted along the words of its own moment."""
    first_dense = blocks[0].kind is Kind.DENSE
    words = np.empty(size, word) if first_dense else base_needed(base, where).copy()
    changes = []
    for block in blocks:
        changes.append(_decoded(block, size, word, where, words))
        changes[-1].write(words)
    return changes


def _after(word: np.dtype[Any], first: Change, second: Change) -> Change:
    """``first``, then ``second``, of words of type ``word``."""
    if isinstance(second, DenseChange):
        return second
    if isinstance(first, DenseChange):
        words = first.words(word)
        second.write(words)
        return DenseChange.of(words)
    return _added(first, second)


def _added(first: SparseChange, second: SparseChange) -> SparseChange:
    """The union of two sets of steps; at a word that both change they add, and may cancel."""
    positions = np.concatenate((first.positions, second.positions))
    differences = np.concatenate((unzigzag(first.steps), unzigzag(second.steps)))
    order = np.argsort(positions, kind="stable")  # two rising runs: the stable sort merges them
    positions, differences = positions[order], differences[order]
    again = np.flatnonzero(positions[1:] == positions[:-1])  # each position occurs at most twice
    differences[again] += differences[again + 1]
    kept = np.ones(positions.size, np.bool_)
    kept[again + 1] = False
    kept &= differences != 0
    return SparseChange(positions[kept], zigzag(differences[kept]))


def _negated(steps: Words) -> Words:
    return zigzag(0 - unzigzag(steps))
