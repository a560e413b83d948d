"""A trainer in shards publishes what one in one piece does, with each rank seeing its own rows only."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.weights.container import read_blob
from astraflow.weights.layout import Layout, layout_of
from astraflow.weights.manifest import Manifest
from astraflow.weights.publisher import Publisher
from astraflow.weights.sharding import Sharding, rows_of, spans_of
from astraflow.weights.shards import ShardEncoder, ShardPart, ShardPlan
from astraflow.weights.subscriber import Subscriber
from storage.errors import DataError
from storage.keys import RunKeys
from storage.memory import MemoryStore

KEYS = RunKeys("run")
FROM = 50  # elements: smaller tensors are rank 0's


def weights(seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).bfloat16()

    embed = draw(13, 8)
    return {
        "embed": embed,
        "head": embed,
        "layer.norm": draw(20),
        "layer.up": draw(10, 9),
        "layer.wide": draw(2, 40),
        "scalar": torch.tensor(3.0),
        "none": torch.empty(0, 4).bfloat16(),
    }


def sharded(shards: int, block_elements: int = 16) -> Layout:
    return msgspec.structs.replace(layout_of(weights(), block_elements), sharding=Sharding(shards, FROM))


def rows(tensors: dict[str, torch.Tensor], shards: int, shard: int) -> dict[str, torch.Tensor]:
    """What FSDP leaves on a rank, and the small tensors for rank 0."""
    found = {}
    for name, tensor in tensors.items():
        if tensor.dim() and tensor.numel() >= FROM:
            chunks = tensor.chunk(shards)
            if shard < len(chunks):
                found[name] = chunks[shard].contiguous()
        elif shard == 0:
            found[name] = tensor
    return found


class Trainer:
    """All ranks of one trainer, one after the other."""

    def __init__(self, store: MemoryStore, shards: int, coding: Any = "default") -> None:
        self.shards = shards
        self.layout = sharded(shards)
        self.publisher = Publisher(store, KEYS, "solver", anchor_every=3)
        self.ranks = [
            ShardEncoder(store, KEYS, "solver", self.layout, rank, coding=coding, blob_bytes=200)
            for rank in range(shards)
        ]
        self.step = 0

    def publish(self, tensors: dict[str, torch.Tensor]) -> Manifest:
        plan = self.publisher.plan_parts(
            self.layout, held=self.ranks[0].held, step=self.step, incarnation=1, batch=self.step - 1
        )
        plan = msgspec.json.decode(msgspec.json.encode(plan), type=ShardPlan)
        parts = [rank.encode(rows(tensors, self.shards, index), plan) for index, rank in enumerate(self.ranks)]
        parts = [msgspec.json.decode(msgspec.json.encode(part), type=ShardPart) for part in reversed(parts)]
        manifest = self.publisher.publish_parts(self.layout, plan, parts, skipped={"0": [1]})
        for rank in self.ranks:
            rank.keep(manifest.digest)
        self.step += 1
        return manifest


def assert_read(store: MemoryStore, reader: Subscriber, version: int, expected: dict[str, torch.Tensor]) -> None:
    update = reader.fetch(version)
    assert update.tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(update.tensors[name], tensor)


def changed(tensors: dict[str, torch.Tensor], step: int) -> dict[str, torch.Tensor]:
    new = {name: tensor.clone() for name, tensor in tensors.items()}
    new["layer.up"].view(torch.int16)[step % 10, 3] += 1
    new["embed"].view(torch.int16)[:, step % 8] += 1
    return new | {"head": new["embed"]}


@pytest.mark.parametrize("shards", [1, 2, 3, 8])
def test_versions_of_shards_are_read_like_any_other(shards: int) -> None:
    store = MemoryStore()
    trainer, reader = Trainer(store, shards), Subscriber(store, KEYS, "solver")
    current = weights()
    for version in range(5):
        manifest = trainer.publish(current)
        assert manifest.version == version
        assert manifest.kind == ("anchor" if version in (0, 3) else "delta")
        assert manifest.base == version - 1
        assert 14 <= manifest.changed <= sum(trainer.layout.sizes.values())
        assert_read(store, reader, version, current)
        assert_read(store, Subscriber(store, KEYS, "solver"), version, current)
        current = changed(current, version)


def test_no_rank_writes_anothers_words() -> None:
    store = MemoryStore()
    trainer = Trainer(store, 3)
    manifest = trainer.publish(weights())
    for blob in manifest.snapshot:
        table, _ = read_blob(store.get(KEYS.version("solver", 0) + blob.name), where=blob.name)
        assert table.format == (2 if table.layout else 1)
        owners = {trainer.layout.blocks[record.block].shard for record in table.blocks}
        assert owners <= {int(blob.name.split("-s")[1][:4])}


def test_the_same_weights_again_are_no_bytes() -> None:
    store = MemoryStore()
    trainer = Trainer(store, 2)
    trainer.publish(weights())
    manifest = trainer.publish(weights())
    assert (manifest.base, manifest.delta, manifest.changed) == (0, (), 0)


def test_another_number_of_shards_starts_with_an_anchor() -> None:
    store = MemoryStore()
    Trainer(store, 2).publish(weights())
    other = Trainer(store, 3)
    manifest = other.publish(weights())
    assert (manifest.kind, manifest.base) == ("anchor", -1)
    assert_read(store, Subscriber(store, KEYS, "solver"), 1, weights())


def test_what_is_not_finite_or_not_the_ranks_rows_is_refused_before_anything_is_written() -> None:
    store = MemoryStore()
    trainer = Trainer(store, 2)
    plan = trainer.publisher.plan_parts(trainer.layout, held="", step=0, incarnation=1, batch=-1)
    bad = weights()
    bad["layer.up"][9, 0] = torch.nan
    with pytest.raises(DataError, match=r"layer\.up") as caught:
        trainer.ranks[1].encode(rows(bad, 2, 1), plan)
    assert caught.value.kind == "non_finite"
    with pytest.raises(DataError, match="embed") as caught:
        trainer.ranks[1].encode(rows(weights(), 2, 0), plan)
    assert caught.value.kind == "shard"
    assert not list(store.list(""))


def test_parts_that_do_not_make_one_version_are_refused() -> None:
    store = MemoryStore()
    trainer = Trainer(store, 2)
    trainer.publish(weights())
    new = changed(weights(), 1)
    plan = trainer.publisher.plan_parts(trainer.layout, held=trainer.ranks[0].held, step=1, incarnation=1, batch=0)
    assert plan.base
    parts = [rank.encode(rows(new, 2, index), plan) for index, rank in enumerate(trainer.ranks)]
    other = msgspec.structs.replace(parts[1], bases=dict.fromkeys(parts[1].bases, "0" * 32))
    for wrong in (parts[:1], [parts[0], parts[0]], [parts[0], other], [*parts, parts[1]]):
        with pytest.raises(DataError, match="manifest") as caught:
            trainer.publisher.publish_parts(trainer.layout, plan, wrong)
        assert caught.value.kind == "shard"
    assert trainer.publisher.publish_parts(trainer.layout, plan, parts).version == 1


def test_a_rank_that_keeps_another_version_makes_no_delta() -> None:
    store = MemoryStore()
    trainer = Trainer(store, 2)
    trainer.publish(weights())
    plan = trainer.publisher.plan_parts(trainer.layout, held=trainer.ranks[0].held, step=1, incarnation=1, batch=0)
    fresh = ShardEncoder(store, KEYS, "solver", trainer.layout, 1)
    with pytest.raises(DataError) as caught:
        fresh.encode(rows(weights(), 2, 1), plan)
    assert caught.value.kind == "base"


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 5), st.integers(1, 12))
def test_rows_are_those_of_torch_chunk(length: int, width: int, shards: int) -> None:
    tensor = torch.arange(length * width).reshape(length, width)
    chunks = tensor.chunk(shards)
    for shard in range(shards):
        first, last = rows_of((length, width), shards, shard)
        expected = chunks[shard] if shard < len(chunks) else tensor[:0]
        assert torch.equal(tensor[first:last], expected)
    spans = spans_of((length, width), length * width, Sharding(shards, 1))
    covered = np.concatenate([np.arange(span.start, span.stop) for span in spans])
    assert np.array_equal(covered, np.arange(length * width))


@pytest.mark.parametrize("wrong", [{"shards": 0}, {"shards": 1, "from_elements": 0}])
def test_sharding_without_a_shard_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="shards"):
        Sharding(**wrong)
