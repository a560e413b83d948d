"""Random draws that depend on nothing but their key: (seed, purpose, counter).

The same key gives the same number on every platform and in every Python version, so a recovered or
replayed manager draws what the first one drew, and a snapshot needs a counter, not a generator's state.
"""

from __future__ import annotations

import functools
import hashlib


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
    takes half of the bits, so its few values are drawn once and kept: this is asked for every lease.
    """
    if not 0 <= index < size:
        raise ValueError(f"index {index} is not in range({size})")
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    rounds = _rounds(half, seed, purpose, counter)
    mask = (1 << half) - 1
    value = index
    while True:
        left, right = value >> half, value & mask
        for turn in rounds:
            left, right = right, left ^ turn[right]
        value = left << half | right
        if value < size:
            return value


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
