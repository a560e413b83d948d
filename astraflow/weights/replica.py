"""One copy of a policy's weights in memory, as flat words with a digest a block.

The publisher keeps one as the base of its next delta; a subscriber keeps one to apply deltas to.
In RAM, because a change of 1 % of the words touches nearly every page.

Invariant: ``digests[i]`` is that of block i's words as last hashed, never one taken on trust.
"""

from __future__ import annotations

import numpy as np
import torch

from astraflow.weights.codec import digest_words
from astraflow.weights.kernels import Words
from astraflow.weights.layout import DTYPES, Block, Layout
from astraflow.weights.manifest import root_digest


class Replica:
    """Weights of one layout. New ones hold whatever the memory held: fill all blocks, then ``rehash``."""

    def __init__(self, layout: Layout, runs: dict[str, Words] | None = None) -> None:
        """``runs`` are the words of each dtype in ``layout.sizes``, where memory of a caller's own is to be used."""
        self.layout = layout
        self._runs = runs or {name: np.empty(size, DTYPES[name].word) for name, size in layout.sizes.items()}
        self.digests: list[str] = [""] * len(layout.blocks)

    def words(self, block: Block) -> Words:
        """The block's words [block.size], in place."""
        return self._runs[block.dtype.name][block.start : block.stop]

    def rehash(self, block: Block) -> str:
        """Hash the block's words as they are now, keep that digest and return it."""
        self.digests[block.index] = digest_words(self.words(block))
        return self.digests[block.index]

    def root(self) -> str:
        """The digest of the whole, from the blocks' digests."""
        return root_digest(self.layout.digest, self.digests)

    def tensors(self) -> dict[str, torch.Tensor]:
        """All tensors by name, as views of these words; tied names share one."""
        found: dict[str, torch.Tensor] = {}
        for spec in self.layout.tensors:
            dtype = DTYPES[spec.dtype]
            start = self.layout.starts[spec.name]
            run = self._runs.get(spec.dtype, np.empty(0, dtype.word))
            flat = torch.from_numpy(run[start : start + spec.size]).view(dtype.torch)
            found[spec.name] = flat.reshape(spec.shape)
        return found | {alias: found[name] for alias, name in self.layout.aliases.items()}
