"""Merged deltas: made beside the versions, found by readers far behind, needed by nobody."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from astraflow.weights.catch_up import plan_catch_up
from astraflow.weights.merged import Merges, decode_merge, encode_merge, seal_merge
from astraflow.weights.merger import Merger
from astraflow.weights.publisher import Publisher
from astraflow.weights.subscriber import Subscriber
from storage.errors import DataError, StoreError
from storage.memory import FaultPlan, MemoryStore
from tests.weights.chains import KEYS, SIZE, chain


def singles_bytes(reader: Subscriber, base: int, version: int) -> int:
    return sum(reader.manifest(each).size_bytes for each in range(base + 1, version + 1))


def test_merges_are_made_where_they_are_due() -> None:
    store = MemoryStore()
    chain(store, 34)
    short = [(base, base + 4) for base in range(0, 32, 4)]
    assert sorted(Merges(store, KEYS, "solver").spans()) == sorted([*short, (0, 16), (16, 32)])


@pytest.mark.parametrize("start", [0, 3, 16])
@pytest.mark.parametrize("end", [0, 5, 33])
def test_a_reader_far_behind_or_ahead_takes_them(start: int, end: int) -> None:
    store = MemoryStore()
    versions = chain(store, 34)
    reader = Subscriber(store, KEYS, "solver")
    reader.fetch(start)
    update = reader.fetch(end)
    assert torch.equal(update.tensors["a"], versions[end])
    low, high = sorted((start, end))
    assert update.payload_bytes <= singles_bytes(reader, low, high)
    if high - low > 20:
        assert update.payload_bytes < 0.6 * singles_bytes(reader, low, high)


def test_a_reader_one_behind_does_not_look_for_merges() -> None:
    store = MemoryStore()
    versions = chain(store, 9)

    class Blind(MemoryStore):
        def list(self, *_: Any, **__: Any) -> Any:
            raise AssertionError("listed")

    reader = Subscriber(store, KEYS, "solver")
    reader.fetch(7)
    reader._store = Blind.client(store)  # the same objects
    reader._store.__class__ = Blind
    assert torch.equal(reader.fetch(8).tensors["a"], versions[8])


@pytest.mark.parametrize("damage", ["record", "blob", "no blob", "wrong record"])
def test_a_merge_that_is_damaged_is_gone_around(damage: str) -> None:
    store = MemoryStore()
    versions = chain(store, 33)
    base, version = 0, 16
    key = KEYS.merge("solver", base, version)
    merge = decode_merge(store.get(key), where=key, policy="solver", base=base, version=version)
    blob = KEYS.merged("solver") + merge.blobs[0].name
    if damage == "record":
        store.put(key, b"{}")
    elif damage == "blob":
        store.put(blob, store.get(blob)[:-1] + b"x")
    elif damage == "no blob":
        store.delete(blob)
    else:  # it leads to other weights than it says
        other = decode_merge(store.get(KEYS.merge("solver", 16, 32)), where="", policy="solver", base=16, version=32)
        store.put(
            key,
            encode_merge(seal_merge(msgspec.structs.replace(merge, blobs=other.blobs, size_bytes=other.size_bytes))),
        )
    reader = Subscriber(store, KEYS, "solver")
    reader.fetch(0)
    update = reader.fetch(32)
    assert torch.equal(update.tensors["a"], versions[32])
    assert torch.equal(reader.fetch(0).tensors["a"], versions[0])


def test_any_pair_of_versions_is_led_to_and_never_by_more_than_the_singles_or_a_snapshot() -> None:
    store = MemoryStore()
    versions = chain(store, 40, anchor_every=13)
    for start in range(0, 40, 3):
        for end in range(0, 40, 7):
            reader = Subscriber(store, KEYS, "solver")
            reader.fetch(start)
            update = reader.fetch(end)
            assert torch.equal(update.tensors["a"], versions[end])
            assert update.payload_bytes <= singles_bytes(reader, *sorted((start, end)))
            assert update.payload_bytes <= plan_catch_up(reader.manifest, end, -1).size_bytes


def test_merges_that_do_not_pay_are_not_kept() -> None:
    store = MemoryStore()
    rng = np.random.default_rng(0)
    out = Publisher(store, KEYS, "solver", anchor_every=100, merge_every=(4,), block_elements=4096)
    for step in range(5):  # every word changes: what two deltas say, one can't say in less than the last of them
        words = rng.integers(0, 0x7F80, SIZE).astype(np.uint16) if step in (0, 1) else words  # noqa: F821
        out.publish({"a": torch.from_numpy(words).view(torch.bfloat16)}, step=step, incarnation=0, batch=step - 1)
    assert out.settle(60)
    assert Merges(store, KEYS, "solver").spans() == []
    assert not list(store.list(KEYS.merged("solver")))


def test_weights_that_come_back_make_a_merge_without_blobs() -> None:
    store, tensor = MemoryStore(), torch.ones(300).bfloat16()
    out = Publisher(store, KEYS, "solver", anchor_every=100, merge_every=(2,), block_elements=100)
    for step, value in enumerate((1.0, 2.0, 1.0)):
        tensor[7] = value
        out.publish({"a": tensor}, step=step, incarnation=0, batch=step - 1)
    assert out.settle(60)
    (merge,) = Merges(store, KEYS, "solver").ending(2)
    assert (merge.blobs, merge.size_bytes, merge.changed) == ((), 0, 0)
    reader = Subscriber(store, KEYS, "solver")
    reader.fetch(0)
    assert reader.fetch(2).payload_bytes == 0
    assert torch.equal(reader.fetch(2).tensors["a"], tensor)


def test_nothing_is_merged_over_an_anchor_without_a_delta() -> None:
    store, tensor = MemoryStore(), torch.ones(300).bfloat16()
    for incarnation in range(2):
        out = Publisher(store, KEYS, "solver", anchor_every=100, merge_every=(2, 4), block_elements=100)
        for step in range(3):  # the second life has other weights: an anchor
            tensor[incarnation] += 1
            out.publish({"a": tensor}, step=step + 3 * incarnation, incarnation=incarnation, batch=-1)
        assert out.settle(60)
    assert Subscriber(store, KEYS, "solver").manifest(3).base == -1
    assert Merges(store, KEYS, "solver").spans() == [(0, 2)]


def test_the_next_life_makes_the_merges_that_are_missing() -> None:
    store = MemoryStore()
    versions = chain(store, 17)
    for info in list(store.list(KEYS.merged("solver"))):
        store.delete(info.key)
    out = Publisher(store, KEYS, "solver", anchor_every=1000, merge_every=(4, 16), block_elements=4096)
    head = out.head()
    assert head is not None
    assert out.hold({"a": versions[-1]}, head)
    out.publish({"a": versions[-1]}, step=head.step, incarnation=1, batch=head.batch)
    assert out.settle(60)
    assert (0, 16) in Merges(store, KEYS, "solver").spans()


def test_a_store_that_errs_costs_the_merge_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    class Merciless(MemoryStore):
        def create(self, key: str, data: bytes) -> Any:
            if "/merged/" in key:
                raise StoreError("denied", where=key, kind="denied")
            return super().create(key, data)

    versions = chain(store := Merciless(), 9)
    assert "are not merged" in caplog.text
    assert torch.equal(Subscriber(store, KEYS, "solver").fetch(8).tensors["a"], versions[8])


def test_merges_over_a_lossy_line() -> None:
    store = MemoryStore()
    chain(store, 9, merge_every=())
    faults = FaultPlan(seed=5, lost_answer=0.2, duplicate=0.2)
    layout = _layout(store)
    merger = Merger(store.client(faults), KEYS, "solver", every=(4,), writer="w", blob_bytes=2**20)
    for base in (0, 4):
        assert merger.make(base, base + 4, layout) is not None
        assert merger.make(base, base + 4, layout) is None
    assert Merges(store, KEYS, "solver").spans() == [(0, 4), (4, 8)]


def _layout(store: MemoryStore) -> Any:
    from astraflow.weights.layout import layout_of

    return layout_of(Subscriber(store, KEYS, "solver").fetch(0).tensors, 4096)


def test_a_record_is_what_its_key_says() -> None:
    store = MemoryStore()
    chain(store, 5)
    key = KEYS.merge("solver", 0, 4)
    data = store.get(key)
    merge = decode_merge(data, where=key, policy="solver", base=0, version=4)
    assert encode_merge(merge) == data
    for base, version, changed in [(1, 4, data), (0, 5, data), (0, 4, data.replace(b'"changed":', b'"changed":1'))]:
        with pytest.raises(DataError) as caught:
            decode_merge(changed, where=key, policy="solver", base=base, version=version)
        assert caught.value.kind == "digest"
    with pytest.raises(DataError) as caught:
        decode_merge(data.replace(b'"format":1', b'"format":2'), where=key, policy="solver", base=0, version=4)
    assert caught.value.kind == "undecodable"
    with pytest.raises(ValueError, match="merge from 3"):
        msgspec.structs.replace(merge, base=3)
