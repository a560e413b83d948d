"""A packed object says what the record said, in a fraction of the memory."""

from __future__ import annotations

import dataclasses
import sys

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow import records as r
from astraflow.query.kept import KeptObject, packed
from tests.dataflow.drive import make_parts


@given(st.lists(st.integers(-(2**66), 2**66) | st.integers(-200, 200)))
def test_packed_numbers_are_the_same(numbers: list[int]) -> None:
    assert list(packed(numbers)) == numbers


@pytest.mark.parametrize("edge", [2**7, 2**15, 2**31, 2**63])
def test_the_edges_of_each_kind(edge: int) -> None:
    for numbers in ([edge - 1, -edge], [edge], [-edge - 1]):
        assert list(packed(numbers)) == numbers


def _decoded(groups: int) -> r.PartsObject:
    """As it comes from a store: each number an object of its own."""
    lengths = [300 + 7 * row for row in range(8 * groups)]
    said = make_parts("pool-a", range(groups), version=500, rewards=[row / 8 for row in range(8)])
    said = msgspec.structs.replace(said, prompt_tokens=lengths, response_tokens=lengths)
    return msgspec.json.decode(msgspec.json.encode(said), type=r.PartsObject)


def test_a_kept_object_says_what_its_record_says() -> None:
    said = _decoded(6)
    kept = KeptObject.of(said)
    for field in dataclasses.fields(kept):
        expected, value = getattr(said, field.name), getattr(kept, field.name)
        assert (list(value) if isinstance(expected, list) else value) == expected
    assert KeptObject.of(_decoded(6)).roles is kept.roles


def test_a_kept_trajectory_takes_some_bytes_and_no_objects() -> None:
    kept = KeptObject.of(_decoded(128))
    columns = {id(column): column for column in (getattr(kept, field.name) for field in dataclasses.fields(kept))}
    size = sum(sys.getsizeof(column) for column in columns.values() if column is not kept.roles)
    assert size < 24 * len(kept.episodes)
