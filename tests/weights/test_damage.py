"""Damage anywhere is found before it reaches an engine; what can be recovered is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.weights.codec import EncodedBlock, Kind, encode_block
from astraflow.weights.container import BlobTable, BlockRecord, digest_blob, read_blob, record_of, write_blob
from astraflow.weights.manifest import Blob, Manifest, decode_manifest, encode_manifest, seal
from astraflow.weights.publisher import Publisher
from astraflow.weights.subscriber import Subscriber
from storage.errors import DataError, StoreError
from storage.keys import RunKeys
from storage.memory import MemoryStore

KEYS = RunKeys("run")


def filled(anchor_every: int = 100, versions: int = 4) -> tuple[MemoryStore, list[torch.Tensor]]:
    """A store with some versions of one tensor in three blocks; its values by version."""
    store, tensor, values = MemoryStore(), torch.linspace(-1, 1, 250).bfloat16(), []
    out = Publisher(store, KEYS, "solver", anchor_every=anchor_every, block_elements=100)
    for step in range(versions):
        out.publish({"a": tensor}, step=step, incarnation=0, batch=step - 1)
        values.append(tensor.clone())
        tensor[step::7] *= 1.01
    return store, values


def blob_key(store: MemoryStore, version: int, part: str) -> str:
    (key,) = [info.key for info in store.list(KEYS.version("solver", version)) if f"-{part}-" in info.key]
    return key


def manifest_of(store: MemoryStore, version: int) -> Manifest:
    key = KEYS.manifest("solver", version)
    return decode_manifest(store.get(key), where=key, policy="solver", version=version)


def held_words(reader: Subscriber) -> Any:
    """A view of the subscriber's own buffer, while it holds a version."""
    return reader.fetch(reader.version).tensors["a"].view(torch.uint16).numpy()


STORE, VALUES = filled()


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_flipped_byte_anywhere_is_found(drawn: st.DataObject) -> None:
    keys = [info.key for info in STORE.list("")]
    key = drawn.draw(st.sampled_from(keys))
    intact = STORE.get(key)
    data = bytearray(intact)
    data[drawn.draw(st.integers(0, len(data) - 1))] ^= drawn.draw(st.integers(1, 255))
    STORE.put(key, bytes(data))
    try:
        reader = Subscriber(STORE, KEYS, "solver")
        with pytest.raises(DataError) as caught:
            reader.fetch(3)
        assert caught.value.where == key
        assert caught.value.kind in ("digest", "undecodable")
    finally:
        STORE.put(key, intact)
    assert torch.equal(reader.fetch(3).tensors["a"], VALUES[3])


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: data + b"\0", lambda data: b""])
def test_a_cut_or_longer_blob_is_found(damage: Any) -> None:
    store, _ = filled()
    key = blob_key(store, 2, "delta")
    store.put(key, damage(store.get(key)))
    with pytest.raises(DataError, match=key):
        Subscriber(store, KEYS, "solver").fetch(2)


def rewrite(store: MemoryStore, version: int, part: str, change: Any) -> None:
    """Replace a version's blob by one that a wrong writer made, with a manifest that fits its bytes."""
    manifest, key = manifest_of(store, version), blob_key(store, version, part)
    table, stored = read_blob(store.get(key), where=key)
    records = list(table.blocks)
    blocks = [EncodedBlock(each.record.kind, each.record.changed, each.streams) for each in stored]
    table, blocks = change(table, records, blocks)
    data = write_blob(table, blocks)
    blob = Blob(name=key.rsplit("/", 1)[1], size_bytes=len(data), hash=digest_blob(data))
    store.put(key, data)
    fields = {part: (blob,)}
    store.put(KEYS.manifest("solver", version), encode_manifest(seal(_with(manifest, fields))))


def _with(thing: Any, fields: dict[str, Any]) -> Any:
    import msgspec

    return msgspec.structs.replace(thing, **fields)


def wrong_result(table: BlobTable, records: list[BlockRecord], blocks: list[EncodedBlock]) -> Any:
    records[1] = _with(records[1], {"result": "0" * 32})
    return _with(table, {"blocks": tuple(records)}), blocks


def wrong_base(table: BlobTable, records: list[BlockRecord], blocks: list[EncodedBlock]) -> Any:
    records[2] = _with(records[2], {"base": "0" * 32})
    return _with(table, {"blocks": tuple(records)}), blocks


def wrong_number(table: BlobTable, records: list[BlockRecord], blocks: list[EncodedBlock]) -> Any:
    records[2] = _with(records[2], {"block": 3})
    return _with(table, {"blocks": tuple(records)}), blocks


def block_left_out(table: BlobTable, records: list[BlockRecord], blocks: list[EncodedBlock]) -> Any:
    return _with(table, {"blocks": tuple(records[:2])}), blocks[:2]


def wrong_stream(table: BlobTable, records: list[BlockRecord], blocks: list[EncodedBlock]) -> Any:
    base = np.zeros(100, np.uint16)
    blocks[1] = encode_block(base, base + np.uint16(1))
    records[1] = record_of(1, EncodedBlock(Kind.SPARSE, 5, blocks[1].streams), base=records[1].base, result="")
    return _with(table, {"blocks": tuple(records)}), blocks


def no_layout(table: BlobTable, records: list[BlockRecord], blocks: list[EncodedBlock]) -> Any:
    return _with(table, {"layout": None}), blocks


@pytest.mark.parametrize(
    ("change", "kind", "untouched"),
    [
        (wrong_base, "base", True),
        (wrong_number, "base", True),
        (wrong_result, "digest", False),
        (wrong_stream, "codec", False),
        (block_left_out, "digest", False),
    ],
)
def test_a_wrong_delta_never_becomes_the_held_version(change: Any, kind: str, untouched: bool) -> None:
    store, values = filled()
    reader = Subscriber(store, KEYS, "solver")
    buffer = reader.fetch(1).tensors["a"].view(torch.uint16)
    store.delete(KEYS.manifest("solver", 0))  # no way back
    rewrite(store, 2, "delta", change)
    with pytest.raises(DataError) as caught:
        reader.fetch(2)
    assert getattr(caught.value.__cause__, "kind", "") == caught.value.kind == kind
    assert torch.equal(buffer, values[1].view(torch.uint16)) == untouched
    assert reader.version == (1 if untouched else -1)


@pytest.mark.parametrize(
    ("change", "kind"),
    [(wrong_result, "digest"), (wrong_number, "container"), (block_left_out, "digest"), (no_layout, "digest")],
)
def test_a_wrong_snapshot_never_becomes_the_held_version(change: Any, kind: str) -> None:
    store, _ = filled()
    rewrite(store, 0, "snapshot", change)
    reader = Subscriber(store, KEYS, "solver")
    with pytest.raises(DataError) as caught:
        reader.fetch(1)
    assert caught.value.kind == kind
    assert reader.version == -1


def test_a_copy_that_somebody_wrote_to_is_given_up_for_a_snapshot() -> None:
    store, values = filled()
    reader = Subscriber(store, KEYS, "solver")
    reader.fetch(2)
    held_words(reader)[17] ^= 1
    update = reader.fetch(3)
    assert torch.equal(update.tensors["a"], values[3])
    assert update.payload_bytes > manifest_of(store, 0).snapshot_bytes
    held_words(reader)[18] ^= 1
    assert torch.equal(reader.fetch(3).tensors["a"], values[3])


def test_a_damaged_delta_is_passed_over_when_there_is_a_snapshot_behind_it() -> None:
    store, values = filled(anchor_every=2)
    reader = Subscriber(store, KEYS, "solver")
    reader.fetch(0)
    store.put(blob_key(store, 1, "delta"), b"damaged")
    assert torch.equal(reader.fetch(3).tensors["a"], values[3])
    assert torch.equal(reader.fetch(1).tensors["a"], values[1])  # back over versions 3 and 2
    cold = Subscriber(store, KEYS, "solver")
    with pytest.raises(DataError, match="no intact way leads to version 1"):
        cold.fetch(1)
    assert cold.newest() == 3
    assert torch.equal(cold.fetch(1).tensors["a"], values[1])  # knowing of a snapshot above, it goes back from there


@pytest.mark.parametrize("part", ["blob", "manifest"])
def test_a_damaged_newest_snapshot_is_passed_over_through_an_older_one(part: str) -> None:
    store, values = filled(anchor_every=2, versions=6)
    broken = blob_key(store, 4, "snapshot") if part == "blob" else KEYS.manifest("solver", 2)
    store.put(broken, b"damaged")
    update = Subscriber(store, KEYS, "solver").fetch(5 if part == "blob" else 4)
    assert torch.equal(update.tensors["a"], values[update.version])
    if part == "blob":  # what was of no use is not counted: it never came whole
        want = manifest_of(store, 2).snapshot_bytes + sum(manifest_of(store, v).size_bytes for v in (3, 4, 5))
        assert update.payload_bytes == want


def test_what_is_gone_is_passed_over_like_what_is_damaged() -> None:
    store, values = filled(anchor_every=2)
    reader = Subscriber(store, KEYS, "solver")
    reader.fetch(0)
    store.delete(blob_key(store, 1, "delta"))
    assert torch.equal(reader.fetch(3).tensors["a"], values[3])


def test_a_delta_of_another_lineage_is_refused_before_a_byte_is_written() -> None:
    store, values = filled()
    reader = Subscriber(store, KEYS, "solver")
    buffer = reader.fetch(2).tensors["a"].view(torch.uint16)
    wrong = seal(_with(manifest_of(store, 3), {"base_digest": "0" * 64}))
    store.put(KEYS.manifest("solver", 3), encode_manifest(wrong))
    store.delete(blob_key(store, 0, "snapshot"))
    with pytest.raises(DataError) as caught:
        reader.fetch(3)
    assert caught.value.kind == "base"
    assert torch.equal(buffer, values[2].view(torch.uint16))


def test_manifests_that_lead_elsewhere_are_refused() -> None:
    store, _ = filled()
    reader = Subscriber(store, KEYS, "solver")
    reader.fetch(3)
    looped = _with(manifest_of(store, 2), {"digest": "0" * 64})
    store.put(KEYS.manifest("solver", 2), encode_manifest(seal(looped)))
    with pytest.raises(DataError) as caught:
        reader.fetch(2)
    assert caught.value.kind == "digest"


class Broken(MemoryStore):
    """A store whose reads of blobs fail after some number of them."""

    left = 10**9

    def get(self, key: str) -> bytes:
        if key.endswith(".safetensors"):
            self.left -= 1
            if self.left < 0:
                raise StoreError("unreachable", where=key, kind="unreachable")
        return super().get(key)


def test_a_store_that_goes_away_between_deltas_leaves_whole_versions() -> None:
    store, tensor, values = Broken(), torch.linspace(-1, 1, 250).bfloat16(), []
    out = Publisher(store, KEYS, "solver", anchor_every=100, block_elements=100, blob_bytes=40)
    for step in range(4):
        assert len(out.publish({"a": tensor}, step=step, incarnation=0, batch=step - 1).snapshot) == (0 if step else 3)
        values.append(tensor.clone())
        tensor[step::7] *= 1.01
    reader = Subscriber(store, KEYS, "solver")
    reader.fetch(0)
    for left in range(9):
        store.left = left
        with pytest.raises(StoreError):
            reader.fetch(3)
        assert reader.version == left // 3  # a version is applied when its blobs have all come
        store.left = 10**9
        assert torch.equal(reader.fetch(reader.version).tensors["a"], values[left // 3])
        reader = Subscriber(store, KEYS, "solver")
        reader.fetch(0)


def test_what_a_failed_fetch_changed_is_not_forgotten() -> None:
    store = Broken()
    tensors = {name: torch.ones(100).bfloat16() for name in ("a", "b", "c", "d")}
    out = Publisher(store, KEYS, "solver", anchor_every=100, block_elements=100)
    for step, name in enumerate("dabc"):
        tensors[name][step] = 2
        out.publish(tensors, step=step, incarnation=0, batch=step - 1)
    reader = Subscriber(store, KEYS, "solver")
    reader.fetch(0)
    store.left = 1
    with pytest.raises(StoreError):
        reader.fetch(3)
    assert reader.version == 1
    store.left = 10**9
    assert reader.fetch(3).changed == {"a", "b", "c"}  # what was returned before is version 0
    assert reader.fetch(3).changed == frozenset()


def test_a_snapshot_that_breaks_off_leaves_nothing_held() -> None:
    store, tensor = Broken(), torch.linspace(-1, 1, 250).bfloat16()
    Publisher(store, KEYS, "solver", anchor_every=9, block_elements=100, blob_bytes=40).publish(
        {"a": tensor}, step=0, incarnation=0, batch=-1
    )
    reader = Subscriber(store, KEYS, "solver")
    store.left = 2
    with pytest.raises(StoreError):
        reader.fetch(0)
    assert reader.version == -1
    store.left = 3
    assert torch.equal(reader.fetch(0).tensors["a"], tensor)
