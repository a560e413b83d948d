"""Tensor tables: order, ties, blocks, pieces; and what a publisher reads through them."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from astraflow.weights.layout import DTYPES, Layout, TensorSpec, layout_of, words_of
from astraflow.weights.replica import Replica
from astraflow.weights.source import Source
from storage.errors import DataError

SHAPES = st.dictionaries(
    st.text("abc.", min_size=1, max_size=4),
    st.tuples(st.sampled_from([dtype.torch for dtype in DTYPES.values()]), st.lists(st.integers(0, 5), max_size=3)),
    max_size=6,
)


@given(SHAPES, st.integers(1, 40))
def test_blocks_and_pieces_cover_every_word_once(shapes: dict[str, tuple[torch.dtype, list[int]]], cut: int) -> None:
    weights = {name: torch.zeros(shape).to(dtype) for name, (dtype, shape) in shapes.items()}
    layout = layout_of(weights, cut)
    covered: dict[str, list[tuple[int, int]]] = {name: [] for name in weights}
    for index, block in enumerate(layout.blocks):
        assert block.index == index
        assert 1 <= block.size <= cut
        at = 0
        for piece in layout.pieces(block):
            assert piece.start == at < piece.stop
            covered[piece.name].append((piece.offset, piece.offset + piece.stop - piece.start))
            at = piece.stop
        assert at == block.size
    for name, spans in covered.items():
        edges = [0, *(stop for _, stop in spans)]
        assert [start for start, _ in spans] == edges[:-1]
        assert edges[-1] == weights[name].numel()
    assert layout.full_bytes == sum(tensor.numel() * tensor.element_size() for tensor in weights.values())


@given(SHAPES, st.integers(1, 40), st.integers(0, 2**32))
def test_a_replica_gives_back_the_tensors(
    shapes: dict[str, tuple[torch.dtype, list[int]]], cut: int, seed: int
) -> None:
    torch.manual_seed(seed)
    weights = {name: torch.randn(shape).to(dtype) for name, (dtype, shape) in shapes.items()}
    source = Source(weights, cut)
    replica = Replica(source.layout)
    for block in source.layout.blocks:
        replica.words(block)[:] = source.words(block)
        replica.rehash(block)
    assert replica.root() == source.root(source.digests())
    tensors = replica.tensors()
    assert tensors.keys() == weights.keys()
    for name, tensor in tensors.items():
        assert (tensor.dtype, tensor.shape) == (weights[name].dtype, weights[name].shape)
        assert np.array_equal(words_of(tensor), words_of(weights[name]))


def test_tied_tensors_are_stored_once() -> None:
    embedding = torch.randn(4, 4)
    layout = layout_of({"lm_head": embedding, "embed": embedding, "turned": embedding.T, "copy": embedding.clone()})
    assert layout.aliases == {"lm_head": "embed"}
    assert [spec.name for spec in layout.tensors] == ["copy", "embed", "turned"]
    assert layout.names == {"copy", "embed", "lm_head", "turned"}


def test_empty_tensors_are_not_tied() -> None:
    assert layout_of({"a": torch.empty(0), "b": torch.empty(0)}).aliases == {}


def test_the_words_of_a_transposed_tensor_are_row_major() -> None:
    tensor = torch.arange(6.0).reshape(2, 3).T
    assert words_of(tensor).view(np.float32).tolist() == [0, 3, 1, 4, 2, 5]


def test_an_unknown_dtype_is_refused_by_name() -> None:
    for tensor in (torch.zeros(3, dtype=torch.int64), torch.zeros(3, device="meta")):
        with pytest.raises(DataError, match="counter") as caught:
            layout_of({"counter": tensor})
        assert caught.value.kind == "dtype"


def test_the_digest_names_names_shapes_dtypes_and_ties() -> None:
    tensor = torch.zeros(2, 3)
    others = [
        layout_of({"a": tensor}, 7),
        layout_of({"b": tensor}),
        layout_of({"a": tensor.T}),
        layout_of({"a": tensor.half()}),
        layout_of({"a": tensor, "b": tensor}),
        layout_of({"a": tensor, "b": tensor.clone()}),
    ]
    assert len({layout.digest for layout in [layout_of({"a": tensor}), *others]}) == 7


A, B = TensorSpec("a", "F32", (2,)), TensorSpec("b", "F32", (2,))


@pytest.mark.parametrize(
    ("tensors", "aliases", "cut"),
    [
        ((B, A), {}, 1),
        ((A, A), {}, 1),
        ((A, B), {"b": "a"}, 1),
        ((A,), {"c": "b"}, 1),
        ((A,), {}, 0),
        ((TensorSpec("a", "I64", (2,)),), {}, 1),
        ((TensorSpec("a", "F32", (-2,)),), {}, 1),
    ],
)
def test_a_foreign_layout_out_of_order_is_refused(
    tensors: tuple[TensorSpec, ...], aliases: dict[str, str], cut: int
) -> None:
    with pytest.raises(ValueError, match=r"order|alias|block_elements|known"):
        Layout(tensors, aliases, cut)
    data = msgspec.json.encode({"tensors": tensors, "aliases": aliases, "block_elements": cut})
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(data, type=Layout)


@pytest.mark.parametrize("name", list(DTYPES))
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_non_finite_values_are_found_in_every_dtype(name: str, value: float) -> None:
    tensor = torch.ones(9).to(DTYPES[name].torch)
    tensor[4] = value
    if name == "F8_E4M3":  # it has no infinity: the cast gives NaN
        tensor.view(torch.uint8)[4] = 0xFF
    with pytest.raises(DataError, match="bad") as caught:
        Source({"bad": tensor, "good": torch.ones(5).to(tensor.dtype)}, 7).digests()
    assert caught.value.kind == "non_finite"


@pytest.mark.parametrize("name", list(DTYPES))
def test_the_largest_values_are_finite(name: str) -> None:
    dtype = DTYPES[name].torch
    limits = torch.finfo(dtype)
    tensor = torch.tensor([limits.max, limits.min, limits.tiny, 0.0, -0.0]).to(dtype)
    assert len(Source({"a": tensor}).digests()) == 1
