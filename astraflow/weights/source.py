"""A trainer's weights, seen as the blocks of their layout, and checked before anything is written."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch

from astraflow.weights.codec import digest_words
from astraflow.weights.kernels import Words, first_with
from astraflow.weights.layout import BLOCK_ELEMENTS, Block, layout_of, words_of
from astraflow.weights.manifest import root_digest
from astraflow.weights.parallel import in_order
from storage.errors import DataError


class Source:
    """CPU tensors as flat words, without a copy where a block lies within one contiguous tensor."""

    def __init__(self, weights: Mapping[str, torch.Tensor], block_elements: int = BLOCK_ELEMENTS) -> None:
        self.layout = layout_of(weights, block_elements)
        self.blocks = self.layout.blocks
        self._first: dict[str, int] = {}  # element of a tensor at which what is here begins, unless 0
        self._words = {spec.name: words_of(weights[spec.name]) for spec in self.layout.tensors}

    def words(self, block: Block) -> Words:
        """The block's words [block.size]; do not write to them."""
        parts = self.parts(block)
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def parts(self, block: Block) -> list[Words]:
        """The block's words in order, tensor by tensor, without a copy; do not write to them."""
        parts = []
        for piece in self.layout.pieces(block):
            at = piece.offset - self._first.get(piece.name, 0)
            parts.append(self._words[piece.name][at : at + piece.stop - piece.start])
        return parts

    def digests(self) -> list[str]:
        """Every block's digest. Raises ``DataError`` (kind ``non_finite``) naming the first tensor with NaN or ∞."""
        return list(in_order(self._digest, self.blocks))

    def _digest(self, block: Block) -> str:
        words = self.words(block)
        self._check_finite(block, words)
        return digest_words(words)

    def root(self, digests: list[str]) -> str:
        """The version digest that these weights have."""
        return root_digest(self.layout.digest, digests)

    def _check_finite(self, block: Block, words: Words) -> None:
        mask = block.dtype.non_finite
        first = first_with(words, mask)
        if first == words.size:
            return
        piece = next(piece for piece in self.layout.pieces(block) if piece.start <= first < piece.stop)
        bad = np.count_nonzero((words[piece.start : piece.stop] & mask) == mask)
        raise DataError(
            f"the tensor has {bad} non-finite values or more",
            where=piece.name,
            remedy="Nothing was published: go back to the last checkpoint, with a lower learning rate or clipping",
            kind="non_finite",
        )
