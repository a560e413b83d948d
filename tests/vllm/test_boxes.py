"""Sparse updates through boxes give exactly what the model's own loader would have made of the whole tensors."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.raas.vllm_boxes import find_boxes, unfilled
from storage.errors import DataError

HIDDEN, HEAD, HEADS, KV_HEADS, INNER, VOCABULARY, PADDED = 8, 2, 4, 2, 6, 11, 16


class Shard(torch.nn.Module):
    """One rank's half of a layer, as an inference engine lays it out: fused, sliced and padded."""

    def __init__(self, rank: int, ranks: int) -> None:
        super().__init__()
        self.rank, self.ranks = rank, ranks
        self.named: set[str] = set()
        self.qkv = torch.nn.Parameter(torch.zeros((HEADS + 2 * KV_HEADS) * HEAD // ranks, HIDDEN), requires_grad=False)
        self.gate_up = torch.nn.Parameter(torch.zeros(2 * INNER // ranks, HIDDEN), requires_grad=False)
        self.down = torch.nn.Parameter(torch.zeros(HIDDEN, INNER // ranks), requires_grad=False)
        self.embed = torch.nn.Parameter(torch.zeros(PADDED // ranks, HIDDEN), requires_grad=False)
        self.norm = torch.nn.Parameter(torch.zeros(HIDDEN), requires_grad=False)
        self.turned = torch.nn.Parameter(torch.zeros(HIDDEN, INNER), requires_grad=False)

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        given = list(weights)
        self.named = {name for name, _ in given}
        for name, tensor in given:
            getattr(self, f"_load_{name}", self._load_other)(name, tensor)

    def _rows(self, target: torch.Tensor, offset: int, tensor: torch.Tensor) -> None:
        size = tensor.shape[0] // self.ranks
        target.data.narrow(0, offset, size).copy_(tensor.narrow(0, self.rank * size, size))

    def _load_other(self, name: str, tensor: torch.Tensor) -> None:
        q, kv = HEADS * HEAD // self.ranks, KV_HEADS * HEAD // self.ranks
        offsets = {"q": 0, "k": q, "v": q + kv}
        if name in offsets:
            self._rows(self.qkv, offsets[name], tensor)
        elif name in ("gate", "up"):
            self._rows(self.gate_up, 0 if name == "gate" else INNER // self.ranks, tensor)
        elif name == "down":
            size = tensor.shape[1] // self.ranks
            self.down.data.copy_(tensor.narrow(1, self.rank * size, size))
        elif name == "turned":
            self.turned.data.copy_(tensor.t())
        elif name == "norm":
            assert tensor.shape == self.norm.shape
            self.norm.data.copy_(tensor)
        elif name == "scaled":
            self.norm.data.copy_(tensor * 2)
        elif name == "lm_head":  # tied: left out, but it must not come alone
            if "embed" not in self.named:
                raise ValueError("the tied weight is uninitialized")
        else:
            raise ValueError(f"there is no module {name}")

    def _load_embed(self, _: str, tensor: torch.Tensor) -> None:
        start = self.rank * PADDED // self.ranks
        rows = min(PADDED // self.ranks, VOCABULARY - start)
        self.embed[:rows].data.copy_(tensor.narrow(0, start, rows))
        self.embed[rows:].data.fill_(0)


SHAPES = {
    "q": (HEADS * HEAD, HIDDEN),
    "k": (KV_HEADS * HEAD, HIDDEN),
    "v": (KV_HEADS * HEAD, HIDDEN),
    "gate": (INNER, HIDDEN),
    "up": (INNER, HIDDEN),
    "down": (HIDDEN, INNER),
    "embed": (VOCABULARY, HIDDEN),
    "norm": (HIDDEN,),
    "turned": (INNER, HIDDEN),
}
TIES = {"embed": ["lm_head"]}


@given(ranks=st.sampled_from([1, 2]), seed=st.integers(0, 2**16), share=st.floats(0, 1))
@settings(max_examples=60, deadline=None)
def test_a_sparse_update_equals_a_whole_load(ranks: int, seed: int, share: float) -> None:
    torch.manual_seed(seed)
    old = {name: torch.randn(shape) for name, shape in SHAPES.items()}
    new = {name: torch.where(torch.rand_like(t) < share, torch.randn_like(t), t) for name, t in old.items()}
    for rank in range(ranks):
        model, fresh = Shard(rank, ranks), Shard(rank, ranks)
        boxes = find_boxes(model.load_weights, dict(model.named_parameters()), SHAPES, TIES)
        assert not any(parameter.any() for parameter in model.parameters()), "finding writes nothing"
        for name, tensor in old.items():
            for box in boxes[name]:
                box.fill(tensor)
        for name, tensor in new.items():
            places = torch.nonzero((tensor != old[name]).reshape(-1)).reshape(-1)
            values = tensor.reshape(-1)[places]
            for box in boxes[name]:
                targets, chosen = box.targets(places)
                box.memory[targets] = values[chosen]
        fresh.load_weights(new.items())
        for mine, theirs in zip(model.parameters(), fresh.parameters(), strict=True):
            assert torch.equal(mine, theirs)
        assert unfilled(dict(model.named_parameters()), boxes, {"embed"}) == []


def test_tied_names_come_together_and_a_parameter_without_a_tensor_is_seen() -> None:
    model = Shard(0, 1)
    memories = dict(model.named_parameters())
    shapes = {name: SHAPES[name] for name in ("q", "k", "norm")} | {"lm_head": SHAPES["embed"]}
    boxes = find_boxes(model.load_weights, memories, shapes, {"lm_head": ["embed"]})
    assert [box.size for box in boxes["lm_head"]] == [VOCABULARY * HIDDEN]
    assert unfilled(memories, boxes, {"embed"}) == ["qkv", "gate_up", "down", "turned"]


@pytest.mark.parametrize(
    ("name", "shape", "kind"),
    [("norm", (HIDDEN + 1,), "shape"), ("other", (2, 2), "shape"), ("scaled", (HIDDEN,), "unsupported")],
)
def test_what_the_loader_does_not_simply_copy_is_refused(name: str, shape: tuple[int, ...], kind: str) -> None:
    model = Shard(0, 1)
    with pytest.raises(DataError) as caught:
        find_boxes(model.load_weights, dict(model.named_parameters()), {name: shape})
    assert (caught.value.kind, caught.value.where) == (kind, name)
