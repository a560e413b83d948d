"""The array work of the codec: find what changed, map words to a total order, apply steps, split bytes.

Pure functions of flat arrays of unsigned words (8, 16 or 32 bits), in numpy, in slices that stay in the
processor's cache. They are the whole hot path: for large blocks the same is done by ``compiled``, where numba is
installed.

Invariant: every function is exact for every bit pattern (NaN payloads, ±0, infinities), since it never
looks at a word as a number.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Words: TypeAlias = npt.NDArray[Any]  # [N] u8, u16 or u32, little-endian
Gaps: TypeAlias = npt.NDArray[np.uint32]  # [C] unchanged words since the change before
Positions: TypeAlias = npt.NDArray[np.int64]  # [C] rising indices of changed words

COMPILED_FROM = 2**20  # words: below it numpy takes less than loading the compiled functions
_SLICE = 2**16  # words that numpy works on at a time


def compiled_for(size: int) -> ModuleType | None:
    """The module ``compiled``, for ``size`` words; None if they are too few or numba is not there."""
    return _load() if size >= COMPILED_FROM else None


@cache
def _load() -> ModuleType | None:
    try:
        from astraflow.weights import compiled  # noqa: PLC0415 - half a second, for large models only
    except ImportError:
        return None
    return compiled


def to_order(words: Words) -> Words:
    """Map sign-magnitude words so that neighbours in value are neighbours as unsigned integers."""
    top = words.dtype.itemsize * 8 - 1
    negative = words >> top  # 0 or 1
    ordered: Words = words ^ ((0 - negative) | (1 << top))
    return ordered


def from_order(ordered: Words) -> Words:
    """The inverse of ``to_order``."""
    top = ordered.dtype.itemsize * 8 - 1
    positive = ordered >> top
    words: Words = ordered ^ ((positive - 1) | (1 << top))
    return words


def zigzag(difference: Words) -> Words:
    """Fold a wrapped signed difference so that small steps of either sign are small numbers."""
    top = difference.dtype.itemsize * 8 - 1
    return (difference << 1) ^ (0 - (difference >> top))


def unzigzag(folded: Words) -> Words:
    """The inverse of ``zigzag``."""
    return (folded >> 1) ^ (0 - (folded & 1))


def find_changes(base: Words, new: Words) -> tuple[Gaps, Words]:
    """The changes from ``base`` to ``new`` [N] as gaps [C] and zigzag steps [C] of their total order."""
    if fast := compiled_for(base.size):
        gaps, steps = np.empty(base.size, np.uint32), np.empty(base.size, base.dtype)  # no memory until written to
        count = fast.find_changes(base, new, gaps, steps)
        return gaps[:count].copy(), steps[:count].copy()
    positions = changed_positions(base, new)
    return gaps_of(positions), steps_between(base[positions], new[positions])


def changed_positions(base: Words, new: Words) -> Positions:
    """Where ``base`` and ``new`` [N] differ."""
    starts = range(0, base.size, _SLICE)
    found = [np.flatnonzero(base[at : at + _SLICE] != new[at : at + _SLICE]) + at for at in starts]
    return np.concatenate(found) if found else np.empty(0, np.int64)


def steps_between(old: Words, new: Words) -> Words:
    """The zigzag step of each word [C]."""
    return zigzag(to_order(new) - to_order(old))


def gaps_of(positions: Positions) -> Gaps:
    """What lies between rising ``positions`` [C]: the inverse of ``positions_of``."""
    return (np.diff(positions, prepend=-1) - 1).astype(np.uint32)


def positions_of(gaps: Gaps, size: int = 0) -> Positions:
    """Indices of the changed words of a block of ``size``."""
    positions = np.empty(gaps.size, np.int64)
    if fast := compiled_for(size):
        fast.positions_of(gaps, positions)
        return positions
    np.add(gaps, 1, out=positions, dtype=np.int64)  # in 32 bits the largest gap would wrap to a place inside
    np.cumsum(positions, out=positions)
    positions -= 1
    return positions


def apply_steps(words: Words, positions: Positions, steps: Words) -> None:
    """Step the words at ``positions`` in place; addition wraps, so the result is exact."""
    if fast := compiled_for(words.size):
        fast.apply_steps(words, positions, steps)
        return
    words[positions] = from_order(to_order(words[positions]) + unzigzag(steps))


def first_with(words: Words, mask: int) -> int:
    """The index of the first of ``words`` [N] that has all bits of ``mask`` set, or N."""
    if fast := compiled_for(words.size):
        return int(fast.first_with(words, np.uint64(mask)))
    for at in range(0, words.size, _SLICE):
        found = (words[at : at + _SLICE] & mask) == mask
        if found.any():
            return at + int(found.argmax())
    return words.size


def plane_slices(parts: Iterable[Words], byte: int) -> Iterator[bytes]:
    """One byte of each word of ``parts``, the least significant being number 0, a slice at a time."""
    for words in parts:
        by_byte = words.view(np.uint8).reshape(words.size, words.dtype.itemsize)
        for at in range(0, words.size, _SLICE):
            yield by_byte[at : at + _SLICE, byte].tobytes()


def join_planes(planes: Iterable[npt.NDArray[np.uint8]], words: Words) -> None:
    """Fill ``words`` [N] from its byte planes."""
    by_byte = words.view(np.uint8).reshape(words.size, words.dtype.itemsize)
    for byte, plane in enumerate(planes):
        by_byte[:, byte] = plane
