"""The compiled array work gives what numpy gives, for every word size and bit pattern."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from astraflow.weights import classes, kernels
from astraflow.weights.codec import encode_block

compiled = pytest.importorskip("astraflow.weights.compiled")
WORDS = [np.dtype(np.uint8), np.dtype(np.uint16), np.dtype(np.uint32)]
SIZES = [0, 1, 15, 16, 31, 33, 64, 65, 1000]


def pairs(word: np.dtype[Any]) -> list[tuple[Any, Any]]:
    rng = np.random.default_rng(5)
    found = []
    for size in SIZES:
        for density in (0, 3, 50, 100):
            base = rng.integers(0, 2 ** (8 * word.itemsize), size, dtype=word)
            fresh = rng.integers(0, 2 ** (8 * word.itemsize), size, dtype=word)
            found.append((base, np.where(rng.integers(0, 100, size) < density, fresh, base)))
    every = np.arange(2**16).astype(word)
    found.append((every, np.roll(every, 1)))  # each old word meets another
    found.append((every, every[::-1].copy()))
    return found


@pytest.mark.parametrize("word", WORDS)
def test_changes_are_found_and_applied_as_by_numpy(word: np.dtype[Any]) -> None:
    for base, new in pairs(word):
        gaps, steps = kernels.find_changes(base, new)
        own_gaps, own_steps = np.empty(base.size, np.uint32), np.empty(base.size, word)
        count = compiled.find_changes(base, new, own_gaps, own_steps)
        assert np.array_equal(own_gaps[:count], gaps)
        assert np.array_equal(own_steps[:count], steps)
        positions = np.empty(gaps.size, np.int64)
        compiled.positions_of(gaps, positions)
        assert np.array_equal(positions, kernels.positions_of(gaps))
        words = base.copy()
        compiled.apply_steps(words, positions, steps)
        assert np.array_equal(words, new)


@pytest.mark.parametrize("word", WORDS)
def test_classes_are_split_and_found_as_by_numpy(word: np.dtype[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for base, new in pairs(word):
        for least in (1, 40):
            monkeypatch.setattr(kernels, "COMPILED_FROM", 2**20)
            plain = classes.split_changes(base, new, least)
            monkeypatch.setattr(kernels, "COMPILED_FROM", 0)
            split = classes.split_changes(base, new, least)
            if plain is None or split is None:
                assert plain is split is None
                continue
            for field in ("starts", "counts", "gaps", "steps"):
                assert np.array_equal(getattr(split, field), getattr(plain, field))
            positions, steps = classes.places_of(split, base)
            assert np.array_equal(positions, np.flatnonzero(base != new))
            assert np.array_equal(steps, kernels.steps_between(base[positions], new[positions]))


@pytest.mark.parametrize("word", WORDS)
def test_the_first_word_with_a_mask_is_found_as_by_numpy(word: np.dtype[Any]) -> None:
    mask = 0x7F << (8 * word.itemsize - 8)
    words = np.zeros(10_000, word)
    for at in (10_000, 9_999, 5_000, 4_096, 4_095, 7, 0):  # each before the one before
        if at < words.size:
            words[at] = mask | 1
        assert compiled.first_with(words, np.uint64(mask)) == kernels.first_with(words, mask) == at


def test_large_blocks_are_compiled_and_small_ones_are_not() -> None:
    assert kernels.compiled_for(kernels.COMPILED_FROM) is compiled
    assert kernels.compiled_for(kernels.COMPILED_FROM - 1) is None
    base = np.arange(kernels.COMPILED_FROM).astype(np.uint16)
    new = base.copy()
    new[::101] += 1
    assert encode_block(base, new).changed == np.count_nonzero(base != new)


def test_numba_is_imported_only_for_large_blocks() -> None:
    program = (
        "import sys, numpy as np; import astraflow.weights.publisher; from astraflow.weights.codec import encode_block;"
        "base = np.zeros(5000, np.uint16); encode_block(base, base + np.uint16(1)); print('numba' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout == "False\n"
    )
