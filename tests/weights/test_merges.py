"""Merged deltas: made beside the versions, found by readers far behind, needed by nobody."""

from __future__ import annotations

import threading
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from astraflow.weights.catch_up import plan_catch_up
from astraflow.weights.codec import Kind
from astraflow.weights.container import read_blob
from astraflow.weights.manifests import AHEAD, Manifests
from astraflow.weights.merged import Merges, decode_merge, encode_merge, seal_merge
from astraflow.weights.merger import MergeQueue, Merger
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


class Counting(MemoryStore):
    """Notes which keys are read and listed."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []
        self.listed: list[tuple[str, str | None]] = []

    def get(self, key: str) -> bytes:
        self.read.append(key)
        return super().get(key)

    def list(self, prefix: str, *, after: str | None = None, limit: int | None = None) -> Any:
        self.listed.append((prefix, after))
        return super().list(prefix, after=after, limit=limit)


def test_a_look_for_something_new_is_one_request() -> None:
    store = Counting()
    chain(store, 3, merge_every=())
    reader = Subscriber(store, KEYS, "solver")
    assert reader.newest() == 2
    store.read.clear()
    assert reader.newest() == 2
    assert store.read == [KEYS.manifest("solver", 3)]
    out = Publisher(store, KEYS, "solver", anchor_every=9)
    out.head()
    store.read.clear()
    out.head()
    assert store.read == [KEYS.manifest("solver", 3)]


def test_who_has_nothing_reads_no_manifest_below_the_newest_anchor() -> None:
    store = Counting()
    versions = chain(store, 60, merge_every=(4,), anchor_every=20)
    reader = Subscriber(store, KEYS, "solver")
    store.read.clear()
    plan = reader.plan(40)
    assert plan.snapshot is not None
    assert (plan.snapshot.version, plan.deltas, store.read) == (40, (), [KEYS.manifest("solver", 40)])
    store.read.clear()
    assert torch.equal(reader.fetch(47).tensors["a"], versions[47])
    manifests = [key for key in store.read if key.endswith("manifest.json")]
    assert sorted(set(manifests)) == [KEYS.manifest("solver", version) for version in range(40, 48)]


def test_a_search_far_below_reads_many_manifests_at_once() -> None:
    store = Counting()
    versions = chain(store, 400, merge_every=())
    reader = Subscriber(store, KEYS, "solver")
    reader.fetch(3)
    waited: list[int] = []

    class Manifold(Manifests):
        def read_ahead(self, versions: Any) -> None:
            waited.append(len(list(versions)))
            super().read_ahead(versions)

    found = Manifold(reader.manifest)
    found.read_ahead(range(399 - AHEAD, 400))
    plan = plan_catch_up(found.read, 399, 3)
    assert len(waited) < 10
    assert plan.size_bytes <= min(singles_bytes(reader, 3, 399), reader.plan(399).size_bytes)
    assert torch.equal(reader.fetch(399).tensors["a"], versions[399])


def test_merges_are_grouped_once() -> None:
    store = MemoryStore()
    chain(store, 17)
    merges = Merges(store, KEYS, "solver")
    assert [(merge.base, merge.version) for merge in merges.all()] == merges.spans()
    assert merges._by_end is merges._by_end
    assert [merge.version for merge in merges.starting(0)] == [4, 16]
    assert (merges.ending(3), merges.starting(3)) == ([], [])
    store.put(KEYS.merge("solver", 0, 4), b"{}")
    assert (0, 4) not in [(merge.base, merge.version) for merge in Merges(store, KEYS, "solver").all()]


def test_whatever_a_merge_meets_the_next_one_is_made(caplog: pytest.LogCaptureFixture) -> None:
    class Tired(MemoryStore):
        def create(self, key: str, data: bytes) -> Any:
            if "/merged/00000004-" in key:
                raise OSError("no more threads")
            return super().create(key, data)

    store = Tired()
    chain(store, 9)  # settles
    assert "0 to 4 are not merged" in caplog.text
    assert Merges(store, KEYS, "solver").spans() == [(4, 8)]


def test_merges_that_wait_are_bounded(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr("astraflow.weights.merger.MOST_WAITING", 2)
    begin, made = threading.Event(), []

    class Slow(Merger):
        def make(self, base: int, version: int, layout: Any) -> None:
            begin.wait(30)
            made.append((base, version))

    waiting = MergeQueue(Slow(MemoryStore(), KEYS, "solver", every=(4,), writer="w"))
    spans = [(4 * at, 4 * at + 4) for at in range(9)]
    waiting.add(spans, _layout(_published_once()))
    begin.set()
    assert waiting.settle(30)
    # The worker takes its first when it will: what was added before that is what may wait beside it.
    assert made == [span for span in spans if span in made]
    assert 2 <= len(made) <= 3
    assert caplog.text.count("merges wait") == 9 - len(made)


def test_a_machine_without_threads_publishes_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_more(_: object) -> None:
        raise RuntimeError("can't start new thread")

    layout = _layout(_published_once())
    waiting = MergeQueue(Merger(MemoryStore(), KEYS, "solver", every=(4,), writer="w"))
    monkeypatch.setattr(threading.Thread, "start", no_more)
    waiting.add([(0, 4)], layout)
    assert waiting.settle(1)
    assert "nothing is merged" in caplog.text


def _published_once() -> MemoryStore:
    store = MemoryStore()
    chain(store, 1)
    return store


def test_versions_by_classes_are_merged_too() -> None:
    store, rng = MemoryStore(), np.random.default_rng(0)
    words = rng.normal(0, 0.04, 60_000).astype(np.float32)
    out = Publisher(
        store, KEYS, "solver", anchor_every=1000, merge_every=(4, 16), coding="classes", block_elements=32_768
    )
    versions = []
    for step in range(34):
        versions.append(torch.from_numpy(words.copy()).bfloat16())
        out.publish({"a": versions[-1]}, step=step, incarnation=0, batch=step - 1)
        assert out.settle(60)
        words += rng.normal(0, 2e-5, words.size).astype(np.float32)
    kinds = {record.kind for record in _records(store, KEYS.version("solver", 20))}
    assert Kind.CLASSES in kinds
    spans = Merges(store, KEYS, "solver").spans()
    assert spans == sorted(
        [*((at, at + 4) for at in range(0, 32, 4)), (0, 16), (16, 32)], key=lambda span: (span[1], span[0])
    )
    assert {record.kind for record in _records(store, KEYS.merged("solver"))} == {Kind.SPARSE}
    reader = Subscriber(store, KEYS, "solver")
    for version in (0, 33, 16, 4, 32):  # forward and, where merges lead, back
        assert torch.equal(reader.fetch(version).tensors["a"], versions[version])
    assert len(out._merger._forms) <= 8
    # A new life knows the forms of its own versions only: the first span that it knows whole is merged again.
    again = Publisher(
        store, KEYS, "solver", anchor_every=1000, merge_every=(4,), coding="classes", block_elements=32_768
    )
    head = again.head()
    assert head is not None
    assert again.hold({"a": versions[-1]}, head)
    for step in range(34, 43):
        again.publish({"a": torch.from_numpy(words).bfloat16()}, step=step, incarnation=1, batch=step - 1)
        assert again.settle(60)
        words += rng.normal(0, 2e-5, words.size).astype(np.float32)
    assert {span for span in Merges(store, KEYS, "solver").spans() if span[1] > 32} == {(36, 40)}


def _records(store: MemoryStore, folder: str) -> list[Any]:
    blobs = [info.key for info in store.list(folder) if info.key.endswith(".safetensors")]
    return [record for key in blobs for record in read_blob(store.get(key), where=key)[0].blocks]
