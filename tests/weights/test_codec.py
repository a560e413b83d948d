"""The codec is exact for every bit pattern, and refuses streams that do not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from astraflow.weights.codec import (
    Codec,
    EncodedBlock,
    Kind,
    decode_block,
    digest_words,
    encode_block,
    encode_dense,
)
from astraflow.weights.kernels import (
    find_changes,
    from_order,
    join_planes,
    plane_slices,
    positions_of,
    to_order,
    unzigzag,
    zigzag,
)
from storage.errors import DataError

WORDS = [np.dtype(np.uint8), np.dtype(np.uint16), np.dtype(np.uint32)]
# ±0, smallest, ±1, ±inf, quiet and signalling NaNs with payloads: as bf16, and as the high half of fp32
SPECIAL = [0x0000, 0x8000, 0x0001, 0x8001, 0x3F80, 0xBF80, 0x7F80, 0xFF80, 0x7FC0, 0xFFC1, 0x7F81, 0xFFFF]


def decoded(encoded: EncodedBlock, base: Any) -> Any:
    words = base.copy()
    if encoded.kind is not Kind.SAME:
        decode_block(
            encoded.kind, encoded.changed, encoded.streams, size=base.size, word=base.dtype, where="here"
        ).write(words)
    return words


@st.composite
def word_pairs(draw: st.DrawFn) -> tuple[Any, Any]:
    """A base and a new block of one word size with 0–100 % of the words changed, by little or by anything."""
    word = draw(st.sampled_from(WORDS))
    size = draw(st.integers(1, 300))
    base = draw(hnp.arrays(word, size))
    density = draw(st.sampled_from([0, 1, 5, 30, 100]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    mask = rng.integers(0, 100, size) < density
    if draw(st.booleans()):
        fresh = from_order(to_order(base) + rng.integers(-2, 3, size).astype(word))
    else:
        fresh = rng.integers(0, 2 ** (8 * word.itemsize), size, dtype=word)
    return base, np.where(mask, fresh, base)


@settings(deadline=None)
@given(word_pairs())
def test_a_block_round_trips_at_any_density(pair: tuple[Any, Any]) -> None:
    base, new = pair
    encoded = encode_block(base, new)
    assert np.array_equal(decoded(encoded, base), new)
    assert (encoded.kind is Kind.SAME) == np.array_equal(base, new)
    if encoded.kind is Kind.SPARSE:
        assert encoded.changed == np.count_nonzero(base != new)


@settings(deadline=None)
@given(hnp.arrays(st.sampled_from(WORDS), st.integers(1, 300)))
def test_dense_needs_no_base(new: Any) -> None:
    assert np.array_equal(decoded(encode_dense(new), np.zeros_like(new)), new)
    assert encode_dense(new[:9], new[9:9], new[9:]) == encode_dense(new)


def test_a_plane_that_does_not_pack_is_found_out_early() -> None:
    rng = np.random.default_rng(0)
    new = rng.normal(0, 0.04, 2**22).astype(np.float32).view(np.uint32)  # two planes of noise, one of exponents
    encoded = encode_dense(new)
    assert [codec for codec, _ in encoded.streams] == [Codec.RAW, Codec.RAW, Codec.RAW, Codec.ZSTD]
    assert np.array_equal(decoded(encoded, np.zeros_like(new)), new)
    late = np.zeros(2**22, np.uint8)
    late[: 2**21 + 2**20] = rng.integers(0, 256, 2**21 + 2**20)
    assert [codec for codec, _ in encode_dense(late).streams] == [Codec.RAW]  # not worth the wait for its end


@settings(deadline=None)
@given(hnp.arrays(st.sampled_from(WORDS), st.integers(0, 50)))
def test_order_zigzag_and_planes_are_inverted(words: Any) -> None:
    assert np.array_equal(from_order(to_order(words)), words)
    assert np.array_equal(unzigzag(zigzag(words)), words)
    back = np.empty_like(words)
    planes = (b"".join(plane_slices([words[:7], words[7:]], byte)) for byte in range(words.itemsize))
    join_planes((np.frombuffer(plane, np.uint8) for plane in planes), back)
    assert np.array_equal(back, words)


def test_the_order_is_that_of_the_numbers() -> None:
    values = np.array([-np.inf, -2.5, -1e-40, -0.0, 0.0, 1e-40, 1.0, 3.0, np.inf], np.float32)
    ordered = to_order(values.view(np.uint32))
    assert (np.diff(ordered.astype(np.int64)) > 0).all()


def test_one_ulp_either_way_is_a_step_of_one_or_two() -> None:
    base = np.array([0x3F80, 0xBF80, 0x0000, 0x7F7F], np.uint16)
    up = from_order(to_order(base) + np.uint16(1))
    down = from_order(to_order(base) - np.uint16(1))
    assert find_changes(base, up)[1].tolist() == [2, 2, 2, 2]
    assert find_changes(base, down)[1].tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("old", SPECIAL)
@pytest.mark.parametrize("word", [np.uint16, np.uint32])
def test_special_values_change_into_each_other_exactly(old: int, word: type[Any]) -> None:
    shift = 8 * np.dtype(word).itemsize - 16
    new = np.array(SPECIAL, word) << shift
    base = np.full_like(new, old << shift)
    assert np.array_equal(decoded(encode_block(base, new), base), new)


def test_gaps_count_what_stayed() -> None:
    base = np.zeros(10, np.uint16)
    new = base.copy()
    new[[0, 3, 9]] = 1
    gaps, steps = find_changes(base, new)
    assert gaps.tolist() == [0, 2, 5]
    assert gaps.dtype == np.uint32
    assert positions_of(gaps).tolist() == [0, 3, 9]
    assert steps.tolist() == [2, 2, 2]


def test_random_new_words_are_dense_and_small_steps_are_sparse() -> None:
    rng = np.random.default_rng(1)
    base = rng.normal(0, 0.04, 20_000).astype(np.float32)
    new = rng.normal(0, 0.04, 20_000).astype(np.float32)
    base_words, new_words = ((a.view(np.uint32) >> 16).astype(np.uint16) for a in (base, new))
    assert encode_block(base_words, new_words).kind is Kind.DENSE
    stepped = from_order(to_order(base_words) + rng.integers(0, 2, 20_000).astype(np.uint16))
    assert encode_block(base_words, stepped).kind is Kind.SPARSE


def test_noise_stays_sparse_when_planes_are_no_smaller() -> None:
    rng = np.random.default_rng(2)
    base, new = rng.integers(0, 2**16, (2, 5_000), dtype=np.uint16)
    new[:1500] = base[:1500]
    encoded = encode_block(base, new)
    assert encoded.kind is Kind.SPARSE
    assert np.array_equal(decoded(encoded, base), new)


def test_planes_that_do_not_shrink_are_raw() -> None:
    noise = np.random.default_rng(3).integers(0, 2**16, 4096, dtype=np.uint16)
    words = (noise & 0xFF) | 0x3F00
    assert [codec for codec, _ in encode_dense(words).streams] == [Codec.RAW, Codec.ZSTD]


def test_touches_names_the_range_that_changes() -> None:
    base = np.zeros(10, np.uint16)
    new = base.copy()
    new[4] = 1
    for encoded in (encode_block(base, new), encode_dense(new)):
        change = decode_block(encoded.kind, encoded.changed, encoded.streams, size=10, word=base.dtype, where="here")
        assert [change.touches(base, *span) for span in ((0, 4), (4, 5), (5, 10))] == [False, True, False]


def test_digest_is_of_little_endian_bytes() -> None:
    assert digest_words(np.array([0x0201], np.uint16)) == digest_words(np.array([1, 2], np.uint8))


def sparse(word: type[Any] = np.uint16) -> tuple[EncodedBlock, np.dtype[Any]]:
    base = np.arange(100, dtype=word)
    new = base.copy()
    new[::7] += 1
    return encode_block(base, new), base.dtype


@pytest.mark.parametrize("cut", [0, 1, 5, 20])
def test_a_cut_stream_is_refused(cut: int) -> None:
    encoded, word = sparse()
    for at in range(2):
        streams = list(encoded.streams)
        streams[at] = (streams[at][0], streams[at][1][:cut])
        with pytest.raises(DataError, match="here") as caught:
            decode_block(Kind.SPARSE, encoded.changed, streams, size=100, word=word, where="here")
        assert caught.value.kind == "codec"


@pytest.mark.parametrize(
    ("changed", "size"),
    [(0, 100), (101, 100), (14, 100), (16, 100), (15, 98)],
    ids=["none", "more than words", "fewer than stored", "more than stored", "outside the block"],
)
def test_counts_that_do_not_fit_are_refused(changed: int, size: int) -> None:
    encoded, word = sparse()
    with pytest.raises(DataError):
        decode_block(Kind.SPARSE, changed, encoded.streams, size=size, word=word, where="here")


def test_wrong_stream_counts_are_refused() -> None:
    encoded, word = sparse()
    dense = encode_dense(np.arange(100, dtype=np.uint16))
    for kind, changed, streams in (
        (Kind.SPARSE, 15, encoded.streams[:1]),
        (Kind.DENSE, 100, dense.streams[:1]),
        (Kind.DENSE, 99, dense.streams),
        (Kind.SAME, 0, ()),
    ):
        with pytest.raises(DataError):
            decode_block(kind, changed, streams, size=100, word=word, where="here")


def test_raw_and_zstd_streams_of_another_length_are_refused() -> None:
    words = np.arange(100, dtype=np.uint16)
    low, high = (b"".join(plane_slices([words], byte)) for byte in range(2))
    packed = encode_dense(np.zeros(99, np.uint16)).streams[0][1]
    for bad in ((Codec.RAW, low[:-1]), (Codec.ZSTD, packed), (Codec.ZSTD, b"not zstd")):
        with pytest.raises(DataError):
            decode_block(Kind.DENSE, 100, (bad, (Codec.RAW, high)), size=100, word=words.dtype, where="here")


def test_a_byte_step_wider_than_a_byte_is_refused() -> None:
    encoded, word = sparse(np.uint8)
    wide = sparse(np.uint16)[0]
    base = np.arange(100, dtype=np.uint16)
    far = encode_block(base, base + np.uint16(0x4000) * (np.arange(100) % 7 == 0).astype(np.uint16))
    assert decode_block(Kind.SPARSE, 15, wide.streams, size=100, word=word, where="here")
    with pytest.raises(DataError, match="wider"):
        decode_block(Kind.SPARSE, 15, (encoded.streams[0], far.streams[1]), size=100, word=word, where="here")


@pytest.mark.parametrize("size", [300, 2**20])  # by numpy and compiled
def test_the_largest_gap_is_no_place_inside_the_block(size: int) -> None:
    gaps = np.array([5, 0xFFFF_FFFF], np.uint32)
    assert positions_of(gaps, size).tolist() == [5, 2**32 + 5]
    steps = np.array([2, 2], np.uint16)
    streams = tuple((Codec.RAW, each.tobytes()) for each in (gaps, steps))
    words = np.arange(size).astype(np.uint16)
    with pytest.raises(DataError) as caught:
        decode_block(Kind.SPARSE, 2, streams, size=size, word=words.dtype, where="here")
    assert caught.value.kind == "codec"
    lone = (Codec.RAW, gaps[1:].tobytes()), (Codec.RAW, steps[1:].tobytes())
    with pytest.raises(DataError):
        decode_block(Kind.SPARSE, 1, lone, size=size, word=words.dtype, where="here")
