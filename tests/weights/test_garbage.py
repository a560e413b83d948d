"""Collection of garbage: what stays can be had, whatever happens meanwhile; nothing else stays."""

from __future__ import annotations

import pytest
import torch

from astraflow.weights.garbage import collect, find_garbage
from astraflow.weights.inspection import history
from astraflow.weights.sparsity import measure
from astraflow.weights.subscriber import Subscriber
from storage.errors import ConfigError, DataError
from storage.keys import RunKeys
from storage.memory import MemoryStore
from tests.weights.chains import KEYS, chain


def blobs(store: MemoryStore) -> set[str]:
    return {info.key for info in store.list(KEYS.weights("solver")) if info.key.endswith(".safetensors")}


def test_without_a_choice_only_leftovers_go() -> None:
    store = MemoryStore()
    chain(store, 18)
    before = blobs(store)
    leftovers = {
        KEYS.version("solver", 3) + "0-dead-1-delta-0000.safetensors",
        KEYS.merged("solver") + "left.safetensors",
    }
    damaged = KEYS.merge("solver", 12, 16)
    for key in leftovers:
        store.put(key, b"12345")
    store.put(damaged, b"not a record")
    garbage = find_garbage(store, KEYS, "solver")
    assert leftovers < set(garbage.keys)
    assert garbage.keys[0] == damaged
    assert len(garbage.keys) == 4  # and the damaged record's blob
    collect(store, garbage)
    assert len(before - blobs(store)) == 1
    assert find_garbage(store, KEYS, "solver").keys == ()


@pytest.mark.parametrize("keep", [[], [0], [7], [3, 9, 30], [16]])
def test_what_stays_can_be_had_and_nothing_else_is_there(keep: list[int]) -> None:
    store = MemoryStore()
    versions = chain(store, 34, anchor_every=8)
    garbage = find_garbage(store, KEYS, "solver", keep=keep)
    assert garbage.kept_versions == tuple(sorted({*keep, 33}))
    total = sum(info.size_bytes for info in store.list(KEYS.weights("solver")))
    assert garbage.size_bytes + garbage.kept_bytes == total
    collect(store, garbage)
    used: set[str] = set()
    for version in garbage.kept_versions:
        reader = Subscriber(Noting(store, used), KEYS, "solver")
        assert torch.equal(reader.fetch(version).tensors["a"], versions[version])
    reader = Subscriber(Noting(store, used), KEYS, "solver")
    for version in garbage.kept_versions:
        assert torch.equal(reader.fetch(version).tensors["a"], versions[version])
    assert blobs(store) <= used
    assert Subscriber(store, KEYS, "solver").newest() == 33


class Noting:
    """A client that notes what was read."""

    def __init__(self, inner: MemoryStore, read: set[str]) -> None:
        self._inner, self._read = inner, read
        self.list, self.url, self.create, self.put = inner.list, inner.url, inner.create, inner.put
        self.get_range, self.delete = inner.get_range, inner.delete

    def get(self, key: str) -> bytes:
        self._read.add(key)
        return self._inner.get(key)


def test_a_given_up_version_says_so_and_can_not_be_kept_any_more() -> None:
    store = MemoryStore()
    chain(store, 10, merge_every=())
    collect(store, find_garbage(store, KEYS, "solver", keep=[]))
    assert find_garbage(store, KEYS, "solver", keep=[9]).keys == ()
    store.delete(next(iter(sorted(blobs(store)))))
    with pytest.raises(DataError):
        find_garbage(store, KEYS, "solver", keep=[9])


def test_a_version_that_is_not_there_is_refused() -> None:
    store = MemoryStore()
    chain(store, 3)
    for version in (-1, 3):
        with pytest.raises(ConfigError, match=f"has no version {version}"):
            find_garbage(store, KEYS, "solver", keep=[version])


def test_a_way_whose_objects_are_not_there_is_no_reason_to_delete_another() -> None:
    store = MemoryStore()
    versions = chain(store, 17, anchor_every=8)
    newest = sorted(key for key in blobs(store) if "-snapshot-" in key)[-1]
    store.delete(newest)
    collect(store, find_garbage(store, KEYS, "solver", keep=[16]))
    assert torch.equal(Subscriber(store, KEYS, "solver").fetch(16).tensors["a"], versions[16])


def test_nothing_published_is_no_garbage() -> None:
    assert find_garbage(MemoryStore(), RunKeys("run"), "solver").keys == ()


def test_a_damaged_manifest_blinds_nobody() -> None:
    store = MemoryStore()
    chain(store, 9, anchor_every=4)
    key = KEYS.manifest("solver", 6)
    store.put(key, store.get(key)[:-1] + b"!")
    rows = history(store, KEYS, "solver")
    (damaged,) = [row for row in rows if row.kind == "damaged"]
    assert (damaged.version, damaged.bytes_per_changed) == (6, None)
    assert [row.version for row in rows if row.kind != "merge"] == list(range(9))
    assert {(row.base, row.version) for row in rows if row.kind == "merge"} == {(0, 4), (4, 8)}
    store.put(KEYS.version("solver", 3) + "leftover.safetensors", b"x")
    garbage = find_garbage(store, KEYS, "solver")
    assert garbage.keys == (KEYS.version("solver", 3) + "leftover.safetensors",)
    measured = {change.version for change in measure(store, KEYS, "solver")}
    assert measured == set(range(1, 9)) - {6, 7}
