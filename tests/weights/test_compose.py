"""Changes compose and invert without the weights, and what cannot says so."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.weights.codec import SAME, EncodedBlock, Kind, decode_block, encode_block, encode_dense
from astraflow.weights.compose import compose, compose_all, invert
from astraflow.weights.kernels import from_order, to_order
from storage.errors import DataError

WORDS = [np.dtype(np.uint8), np.dtype(np.uint16), np.dtype(np.uint32)]


def applied(block: EncodedBlock, base: Any) -> Any:
    words = base.copy()
    if block.kind is not Kind.SAME:
        decode_block(block.kind, block.changed, block.streams, size=base.size, word=base.dtype, where="here").write(
            words
        )
    return words


@st.composite
def histories(draw: st.DrawFn) -> list[Any]:
    """Some versions of a block: each changes 0–100 % of the words, by little, by anything, or back again."""
    word = draw(st.sampled_from(WORDS))
    size = draw(st.integers(1, 200))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    versions = [rng.integers(0, 2 ** (8 * word.itemsize), size, dtype=word)]
    for density, how in draw(
        st.lists(st.tuples(st.sampled_from([0, 1, 10, 60, 100]), st.sampled_from("jsb")), min_size=1, max_size=6)
    ):
        old = versions[-1]
        fresh = {
            "j": rng.integers(0, 2 ** (8 * word.itemsize), size, dtype=word),
            "s": from_order(to_order(old) + rng.integers(-2, 3, size).astype(word)),
            "b": versions[0],
        }[how]
        versions.append(np.where(rng.integers(0, 100, size) < density, fresh, old))
    return versions


@settings(deadline=None)
@given(histories())
def test_composed_changes_lead_from_the_first_version_to_the_last(versions: list[Any]) -> None:
    size, word = versions[0].size, versions[0].dtype
    blocks = [encode_block(base, new) for base, new in pairwise(versions)]
    whole = compose_all(blocks, size=size, word=word)
    assert np.array_equal(applied(whole, versions[0]), versions[-1])
    one_by_one = blocks[0]
    for block in blocks[1:]:
        one_by_one = compose(one_by_one, block, size=size, word=word)
    assert np.array_equal(applied(one_by_one, versions[0]), versions[-1])
    if all(block.kind is not Kind.DENSE for block in blocks):
        assert whole == one_by_one
        assert whole.changed == np.count_nonzero(versions[0] != versions[-1])


@settings(deadline=None)
@given(histories())
def test_inverted_changes_lead_back(versions: list[Any]) -> None:
    size, word = versions[0].size, versions[0].dtype
    for base, new in pairwise(versions):
        block = encode_block(base, new)
        if block.kind is Kind.DENSE:
            with pytest.raises(DataError, match="here") as caught:
                invert(block, size=size, word=word, where="here")
            assert caught.value.kind == "base"
        back = invert(block, size=size, word=word, base=base)
        assert np.array_equal(applied(back, new), base)
        if block.kind is Kind.SPARSE:
            assert invert(back, size=size, word=word) == block
            assert compose(block, back, size=size, word=word) == SAME


def test_a_dense_block_voids_what_came_before_even_if_that_is_damaged() -> None:
    words = np.arange(50, dtype=np.uint16)
    damaged = EncodedBlock(Kind.SPARSE, 3, ())
    dense = encode_dense(words)
    assert compose(damaged, dense, size=50, word=words.dtype) == dense


def test_damage_is_named() -> None:
    words = np.arange(50, dtype=np.uint16)
    good = encode_block(words, words + np.uint16(1))
    with pytest.raises(DataError, match="there") as caught:
        compose(good, EncodedBlock(Kind.SPARSE, 3, ()), size=50, word=words.dtype, where="there")
    assert caught.value.kind == "codec"


def test_nothing_after_nothing_is_nothing() -> None:
    word = np.dtype(np.uint16)
    assert compose_all((), size=5, word=word) == SAME
    assert compose(SAME, SAME, size=5, word=word) == SAME
