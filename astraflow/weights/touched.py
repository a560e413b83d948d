"""Which elements of which tensors changed since a reader last gave its weights away.

An engine that has the weights before needs to write only these, between two of its decode steps: of a 135M model 1 % of
the values, where copying each tensor that changed at all would be copying nearly everything.

Invariant: every element that may differ from the weights given away last is named, by its place or with its tensor.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch

from astraflow.weights.codec import Change, SparseChange
from astraflow.weights.kernels import Positions, Words
from astraflow.weights.layout import Block, Layout, Piece

MOST_SHARE = 1 / 32  # of a tensor's elements: places take 8 bytes each, so at most an eighth of what bf16 weights do


class Touched:
    """Notes what changes, over fetches that failed too, until it is taken."""

    def __init__(self) -> None:
        self._places: dict[str, list[Positions] | None] = {}  # None: anywhere in the tensor
        self._counts: dict[str, int] = {}

    def note_all(self, names: Iterable[str]) -> None:
        """These tensors have changed in any place."""
        self._places.update(dict.fromkeys(names))

    def note(self, change: Change, words: Words, block: Block, layout: Layout) -> None:
        """``change`` is about to be written to the ``words`` of ``block``."""
        for piece in layout.pieces(block):
            if self._places.get(piece.name, ()) is None:
                continue
            if isinstance(change, SparseChange):
                first, last = np.searchsorted(change.positions, (piece.start, piece.stop))
                if last > first:
                    self._add(change.positions[first:last], piece, layout.sizes_by_name[piece.name])
            elif change.touches(words, piece.start, piece.stop):
                self._places[piece.name] = None

    def _add(self, positions: Positions, piece: Piece, size: int) -> None:
        """``positions`` of the block lie in ``piece`` of a tensor of ``size`` elements."""
        found = self._places.setdefault(piece.name, [])
        if found is None:
            return
        self._counts[piece.name] = self._counts.get(piece.name, 0) + positions.size
        if self._counts[piece.name] > MOST_SHARE * size:
            self._places[piece.name] = None
        else:
            found.append(positions + (piece.offset - piece.start))

    def take(self, layout: Layout) -> tuple[frozenset[str], dict[str, torch.Tensor]]:
        """Names of all tensors that may differ, and of those that changed in few places: where [C], rising.

        Tied names are among them. Afterwards nothing is noted.
        """
        places: dict[str, torch.Tensor] = {}
        for name, found in self._places.items():
            if found is not None:
                together = found[0] if len(found) == 1 else np.unique(np.concatenate(found))
                places[name] = torch.from_numpy(together)
        aliases = {alias: name for alias, name in layout.aliases.items() if name in self._places}
        changed = frozenset(self._places) | aliases.keys()
        self._places, self._counts = {}, {}
        return changed, places | {alias: places[name] for alias, name in aliases.items() if name in places}
