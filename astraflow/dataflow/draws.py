"""Random draws that depend on nothing but their key: (seed, purpose, counter).

The same key gives the same number on every platform and in every Python version, so a recovered or
replayed manager draws what the first one drew, and a snapshot needs a counter, not a generator's state.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
STRETCH = 1024
"""Neighbouring indices of a permutation that are worked out together."""


def draw(seed: int, purpose: str, *counter: int) -> int:
    """A uniform 64-bit integer for this key."""
    key = f"{seed}/{purpose}/{'/'.join(map(str, counter))}".encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")


def uniform(seed: int, purpose: str, *counter: int) -> float:
    """A uniform float in [0, 1) for this key (53 bits, exact on every platform)."""
    return (draw(seed, purpose, *counter) >> 11) / (1 << 53)


def permuted(index: int, size: int, seed: int, purpose: str, *counter: int) -> int:
    """Where ``index`` goes in the key's permutation of ``range(size)``, in O(sqrt(size)) memory.

    A four-round Feistel network over the next power of four; results outside the range walk on. A round's function
    takes half of the bits, so its few values are drawn once and kept. This is asked for every lease, and mostly for one
    index after the other: a stretch of them is worked out at once.
    """
    if not 0 <= index < size:
        raise ValueError(f"index {index} is not in range({size})")
    return permuted_stretch(index // STRETCH, size, seed, purpose, *counter)[index % STRETCH]


@functools.lru_cache(maxsize=64)
def permuted_stretch(number: int, size: int, seed: int, purpose: str, *counter: int) -> list[int]:
    """Where the ``STRETCH`` indices from ``number * STRETCH`` on go. The list is shared: leave it as it is."""
    start = number * STRETCH
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    rounds = _rounds(half, seed, purpose, counter)
    values = _network(np.arange(start, min(start + STRETCH, size), dtype=np.int64), half, rounds)
    while (outside := values >= size).any():
        values[outside] = _network(values[outside], half, rounds)
    found: list[int] = values.tolist()
    return found


def _network(values: Array, half: int, rounds: tuple[_Round, ...]) -> Array:
    mask = (1 << half) - 1
    left, right = values >> half, values & mask
    for turn in rounds:
        left, right = right, left ^ np.array([turn[key] for key in right.tolist()], np.int64)
    return left << half | right


class _Round(dict[int, int]):
    """One round's function, drawn where it is asked."""

    def __init__(self, mask: int, seed: int, purpose: str, counter: tuple[int, ...]) -> None:
        super().__init__()
        self._mask, self._seed, self._purpose, self._counter = mask, seed, purpose, counter

    def __missing__(self, right: int) -> int:
        found = self[right] = draw(self._seed, self._purpose, *self._counter, right) & self._mask
        return found


@functools.lru_cache(maxsize=16)
def _rounds(half: int, seed: int, purpose: str, counter: tuple[int, ...]) -> tuple[_Round, ...]:
    return tuple(_Round((1 << half) - 1, seed, purpose, (*counter, turn)) for turn in range(4))
