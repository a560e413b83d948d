"""Changes split by the magnitude of the word before: the coding for slow links.

The share of words that change in a step doubles with each lower binade of |w|, because the unit in the last place
halves: from one in thousands among large weights to most of the tiny ones. A reader holds the base, so the
gaps can be counted within a class of words of like magnitude. That takes a third off, and costs a pass over the
base on both sides.

A word's *key* is its top 8 bits after the sign (all 7 of an 8-bit word): for bf16 and fp32 the binade. A class
is a range of keys that holds at least ``CHANGES`` changes, so that what a class costs in the container stays small.

Invariant: which class a word is in depends on the base alone, never on what it changes to.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from astraflow.weights.kernels import (
    Gaps,
    Positions,
    Words,
    changed_positions,
    compiled_for,
    gaps_of,
    positions_of,
    steps_between,
)

CHANGES = 2048  # fewer in a class, and its two streams cost more than it saves


@dataclass(frozen=True, slots=True)
class ClassedChanges:
    """Changes in class order: class k has the keys from ``starts[k]`` up to the next, and ``counts[k]`` changes.

    ``gaps`` [C] count the unchanged words of the same class since its change before, ``steps`` [C] are zigzag.
    """

    starts: npt.NDArray[np.uint8]
    counts: npt.NDArray[np.uint32]
    gaps: Gaps
    steps: Words

    def streams(self) -> list[tuple[Gaps, Words]]:
        """Gaps and steps of each class."""
        ends = np.cumsum(self.counts)[:-1]
        return list(zip(np.split(self.gaps, ends), np.split(self.steps, ends), strict=True))


def keys_of(words: Words) -> npt.NDArray[np.uint8]:
    """Each word's key [N]."""
    bits = 8 * words.dtype.itemsize
    keys: npt.NDArray[np.uint8] = ((words & ((1 << (bits - 1)) - 1)) >> _shift(words.dtype)).astype(np.uint8)
    return keys


def split_changes(base: Words, new: Words, least: int = CHANGES) -> ClassedChanges | None:
    """The changes from ``base`` to ``new`` [N] by class, ``least`` or more each; None if there would be one class."""
    fast = compiled_for(base.size)
    by_key = np.zeros(256, np.int64)
    if fast:
        fast.count_by_key(base, new, np.uint64(_shift(base.dtype)), by_key)
    else:
        positions = changed_positions(base, new)
        by_key += np.bincount(keys_of(base[positions]), minlength=256)
    starts = _class_starts(by_key, least)
    if starts.size < 2:
        return None
    counts = np.add.reduceat(by_key, starts).astype(np.uint32)
    if fast:
        gaps, steps = np.empty(counts.sum(), np.uint32), np.empty(counts.sum(), base.dtype)
        fast.split_changes(base, new, _ranges(starts, counts, base.dtype), gaps, steps)
        return ClassedChanges(starts, counts, gaps, steps)
    in_class = _classes_of(base, starts)
    ranks = [np.flatnonzero((base != new)[in_class == index]) for index in range(starts.size)]
    order = np.argsort(in_class[positions], kind="stable")
    steps = steps_between(base[positions], new[positions])[order]
    return ClassedChanges(starts, counts, np.concatenate([gaps_of(rank) for rank in ranks]), steps)


def places_of(changes: ClassedChanges, base: Words) -> tuple[Positions, Words]:
    """Rising positions [C] in ``base`` [N], and their steps. Raises ``ValueError`` if they do not fit it."""
    if changes.starts[0] or (np.diff(changes.starts.astype(np.int64)) <= 0).any() or not changes.counts.all():
        raise ValueError("the classes are not in order")
    positions = np.full(changes.gaps.size, base.size, np.int64)
    if fast := compiled_for(base.size):
        fast.places_of(base, _ranges(changes.starts, changes.counts, base.dtype), changes.gaps, positions)
    else:
        in_class, at = _classes_of(base, changes.starts), 0
        for index, (gaps, _) in enumerate(changes.streams()):
            members, ranks = np.flatnonzero(in_class == index), positions_of(gaps)
            inside = ranks[: np.searchsorted(ranks, members.size)]
            positions[at : at + inside.size] = members[inside]
            at += gaps.size
    if positions.max() >= base.size:
        raise ValueError("a class of the base has too few words")
    order = np.argsort(positions, kind="stable")  # rising runs, one a class: merged
    return positions[order], changes.steps[order]


def _shift(word: np.dtype[Any]) -> int:
    return max(8 * word.itemsize - 9, 0)


def _class_starts(by_key: npt.NDArray[np.int64], least: int) -> npt.NDArray[np.uint8]:
    """First keys of classes, from the smallest magnitude up: each is closed once it has ``least`` changes."""
    starts, held = [0], 0
    for key, changes in enumerate(by_key.tolist()):
        if held >= least:
            starts.append(key)
            held = 0
        held += changes
    if held < least and len(starts) > 1:
        starts.pop()
    return np.array(starts, np.uint8)


def _classes_of(words: Words, starts: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    table = (np.searchsorted(starts, np.arange(256), side="right") - 1).astype(np.uint8)
    classes: npt.NDArray[np.uint8] = table[keys_of(words)]
    return classes


def _ranges(starts: npt.NDArray[np.uint8], counts: npt.NDArray[np.uint32], word: np.dtype[Any]) -> tuple[Any, Any, Any]:
    """For each class its least magnitude, how many it has, and where it begins in the flat arrays [K + 1]."""
    lows = starts.astype(np.uint64) << np.uint64(_shift(word))
    widths = np.diff(lows, append=np.uint64(1 << (8 * word.itemsize - 1)))
    return lows, widths, np.concatenate(([np.uint64(0)], np.cumsum(counts, dtype=np.uint64)))
