"""Changes by class of the base: exact, smaller where small weights change more, and refused where they do not fit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.weights.classes import CHANGES, keys_of, places_of, split_changes
from astraflow.weights.codec import SAME, Codec, EncodedBlock, Kind, decode_block, encode_block, encode_dense
from astraflow.weights.compose import compose, compose_all, invert
from astraflow.weights.kernels import from_order, to_order
from storage.errors import DataError

WORDS = [np.dtype(np.uint8), np.dtype(np.uint16), np.dtype(np.uint32)]


def cast(masters: Any) -> Any:
    return (masters.view(np.uint32) >> 16).astype(np.uint16)


def trained(steps: int = 1, size: int = 400_000) -> list[Any]:
    """bf16 casts of fp32 weights that all move by the same small amount."""
    rng = np.random.default_rng(3)
    masters = rng.normal(0, 0.04, size).astype(np.float32)
    versions = [cast(masters)]
    for _ in range(steps):
        masters += rng.choice(np.array([-3e-6, 3e-6], np.float32), size)
        versions.append(cast(masters))
    return versions


def applied(block: EncodedBlock, base: Any) -> Any:
    words = base.copy()
    change = decode_block(
        block.kind, block.changed, block.streams, size=base.size, word=base.dtype, where="here", base=base
    )
    assert np.array_equal(words, base)
    change.write(words)
    return words


def refused(block: EncodedBlock, base: Any) -> str:
    with pytest.raises(DataError, match="here") as caught:
        applied(block, base)
    return caught.value.kind


@settings(deadline=None)
@given(st.sampled_from(WORDS), st.integers(1, 400), st.integers(0, 100), st.integers(1, 30), st.integers(0, 2**32))
def test_changes_are_found_again_from_the_base(
    word: np.dtype[Any], size: int, density: int, least: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    base, fresh = rng.integers(0, 2 ** (8 * word.itemsize), (2, size), dtype=word)
    new = np.where(rng.integers(0, 100, size) < density, fresh, base)
    split = split_changes(base, new, least)
    if split is None:
        return
    assert split.starts.size == split.counts.size > 1
    assert (split.counts >= least).all()
    positions, steps = places_of(split, base)
    assert np.array_equal(positions, np.flatnonzero(base != new))
    assert np.array_equal(to_order(base)[positions] + ((steps >> 1) ^ (0 - (steps & 1))), to_order(new)[positions])


def test_a_key_is_the_binade() -> None:
    values = np.array([0.0, -0.0, 1.0, -1.5, 2.0, np.inf, np.nan, 1e-40], np.float32)
    expected = [0, 0, 127, 127, 128, 255, 255, 0]
    assert keys_of(values.view(np.uint32)).tolist() == expected
    assert keys_of(cast(values)).tolist() == expected
    assert keys_of(np.array([0x00, 0x80, 0x7F, 0xFF, 0x81], np.uint8)).tolist() == [0, 0, 127, 127, 1]


@pytest.mark.parametrize("word", WORDS)
def test_a_block_by_classes_round_trips(word: np.dtype[Any]) -> None:
    rng = np.random.default_rng(1)
    base = rng.integers(0, 2 ** (8 * word.itemsize), 60_000, dtype=word)
    step = rng.integers(0, 10, base.size) == 0
    new = np.where(step, from_order(to_order(base) + word.type(1)), base)
    block = encode_block(base, new, "classes")
    assert block.kind is Kind.CLASSES
    assert block.changed == np.count_nonzero(base != new)
    assert np.array_equal(applied(block, base), new)


def test_classes_are_a_quarter_smaller_where_small_weights_change_more() -> None:
    base, new = trained()
    assert encode_block(base, new, "classes").size_bytes < 0.75 * encode_block(base, new).size_bytes


def test_few_changes_and_none_need_no_classes() -> None:
    base, new = trained()
    few = base.copy()
    few[: 2 * CHANGES] = new[: 2 * CHANGES]
    assert encode_block(base, few, "classes") == encode_block(base, few)
    assert encode_block(base, base, "classes") == SAME


def test_random_words_are_dense_by_classes_too() -> None:
    rng = np.random.default_rng(2)
    base, new = rng.integers(0, 2**16, (2, 50_000), dtype=np.uint16)
    assert encode_block(base, new, "classes") == encode_dense(new)


def test_without_a_base_there_is_no_reading() -> None:
    base, new = trained()
    block = encode_block(base, new, "classes")
    for work in (
        lambda: decode_block(block.kind, block.changed, block.streams, size=base.size, word=base.dtype, where="here"),
        lambda: compose(block, block, size=base.size, word=base.dtype, where="here"),
        lambda: invert(block, size=base.size, word=base.dtype, where="here"),
    ):
        with pytest.raises(DataError, match="here") as caught:
            work()
        assert caught.value.kind == "base"


def test_with_a_base_classes_compose_and_invert_to_plain_steps() -> None:
    first, second, third, fourth = trained(3)
    blocks = [
        encode_block(first, second, "classes"),
        encode_block(second, third),
        SAME,
        encode_block(third, fourth, "classes"),
    ]
    size, word = first.size, first.dtype
    assert compose_all(blocks, size=size, word=word, base=first) == encode_block(first, fourth)
    assert compose_all(blocks[:1], size=size, word=word, base=first) == encode_block(first, second)
    assert invert(blocks[0], size=size, word=word, base=first) == encode_block(second, first)
    after_dense = compose_all([blocks[0], encode_dense(third), blocks[3]], size=size, word=word)
    assert np.array_equal(applied(after_dense, first), fourth)


def test_streams_that_do_not_fit_are_refused() -> None:
    base, new = trained()
    block = encode_block(base, new, "classes")
    (_, starts), (_, counts), *pairs = block.streams

    def with_heads(starts: bytes, counts: bytes) -> EncodedBlock:
        return replace(block, streams=((Codec.RAW, starts), (Codec.RAW, counts), *pairs))

    assert refused(replace(block, streams=block.streams[:-1]), base) == "codec"
    assert refused(replace(block, streams=block.streams[:2]), base) == "codec"
    assert refused(replace(block, changed=block.changed + 1), base) == "codec"
    assert refused(replace(block, changed=base.size + 1), base) == "codec"
    assert refused(with_heads(starts[::-1], counts), base) == "codec"
    assert refused(with_heads(b"\1" + starts[1:], counts), base) == "codec"
    assert refused(with_heads(starts, counts[4:8] + counts[:4] + counts[8:]), base) == "codec"
    assert refused(with_heads(starts, counts[:-4] + bytes(4)), base) == "codec"
    assert refused(block, np.zeros_like(base)) == "codec"  # nearly all its classes are empty in this base
