"""The array work of the codec: find what changed, map words to a total order, apply steps, split bytes.

Pure functions of flat arrays of unsigned words (8, 16 or 32 bits), in numpy. They are the whole hot
path, so a compiled version may stand beside them and only has to give the same arrays.

Invariant: every function is exact for every bit pattern (NaN payloads, ±0, infinities), since it never
looks at a word as a number.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Words: TypeAlias = npt.NDArray[Any]  # [N] u8, u16 or u32, little-endian
Gaps: TypeAlias = npt.NDArray[np.uint32]  # [C] unchanged words since the change before
Positions: TypeAlias = npt.NDArray[np.int64]  # [C] rising indices of changed words


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
    positions = np.flatnonzero(base != new)
    steps = zigzag(to_order(new[positions]) - to_order(base[positions]))
    return gaps_of(positions), steps


def gaps_of(positions: Positions) -> Gaps:
    """What lies between rising ``positions`` [C]: the inverse of ``positions_of``."""
    return (np.diff(positions, prepend=-1) - 1).astype(np.uint32)


def positions_of(gaps: Gaps) -> Positions:
    """Indices of the changed words."""
    positions = np.cumsum(gaps, dtype=np.int64)
    positions += np.arange(gaps.size, dtype=np.int64)
    return positions


def apply_steps(words: Words, positions: Positions, steps: Words) -> None:
    """Step the words at ``positions`` in place; addition wraps, so the result is exact."""
    words[positions] = from_order(to_order(words[positions]) + unzigzag(steps))


def split_planes(words: Words) -> list[npt.NDArray[np.uint8]]:
    """One contiguous array a byte of the word, least significant first: [N] each."""
    by_byte = words.view(np.uint8).reshape(words.size, words.dtype.itemsize)
    return [np.ascontiguousarray(by_byte[:, byte]) for byte in range(words.dtype.itemsize)]


def join_planes(planes: list[npt.NDArray[np.uint8]], words: Words) -> None:
    """Fill ``words`` [N] from its byte planes."""
    by_byte = words.view(np.uint8).reshape(words.size, words.dtype.itemsize)
    for byte, plane in enumerate(planes):
        by_byte[:, byte] = plane
