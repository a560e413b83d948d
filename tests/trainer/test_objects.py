"""Objects of a batch are read side by side from far stores, each once, whatever happens to some of them."""

from __future__ import annotations

import threading

import pytest

from astraflow.trainer import objects
from astraflow.trainer.columns import Columns
from astraflow.trainer.objects import Away, ObjectName, ObjectReader
from storage.errors import ConfigError, StoreError
from storage.memory import MemoryStore


class Far:
    """A store a round trip away: its reads return only when ``together`` of them are under way."""

    def __init__(self, store, together=1, url="s3://far/x"):
        self.store, self.url = store, url
        self.gate = threading.Barrier(together)
        self.keys = []
        self.fault = ""

    def get(self, key):
        self.keys.append(key)
        self.gate.wait(timeout=30)
        if self.fault:
            raise StoreError("no", kind=self.fault)
        return self.store.get(key)


def objects_of(run, count, store=""):
    """The names of so many objects in the run's store, each with the rows of one group."""
    names = []
    for n in range(count):
        batch = run.batched(n, parts=1, members=2)
        names.append(ObjectName(store, batch.paths[0], batch.hashes[0]))
    return names


@pytest.mark.parametrize("store", ["", "s3://far/x"])
def test_objects_of_a_far_store_are_read_side_by_side(make_run, store):
    run = make_run()
    names = objects_of(run, 5, store)
    far = Far(run.store, together=5)
    root = far if store == "" else MemoryStore()
    found = ObjectReader(root, opened=lambda _: far).read([*names, names[0]])
    assert all(isinstance(found[name], Columns) for name in names)
    assert sorted(far.keys) == sorted(name.path for name in names)


def test_two_far_stores_are_read_at_the_same_time(make_run):
    run = make_run()
    stores = {url: Far(run.store, url=url) for url in ("s3://a/x", "s3://b/x")}
    gate = threading.Barrier(4)
    for far in stores.values():
        far.gate = gate
    names = [*objects_of(run, 2, "s3://a/x"), *objects_of(run, 2, "s3://b/x")]
    assert len(ObjectReader(run.store, opened=stores.__getitem__).read(names)) == 4


def test_objects_of_a_near_store_are_read_in_turn(make_run):
    run = make_run()
    names = objects_of(run, 4)
    near = Far(run.store, url=run.store.url)
    threads = []
    near.gate.wait = lambda timeout: threads.append(threading.current_thread())
    ObjectReader(near).read(names)
    assert near.keys == [name.path for name in names]
    assert set(threads) == {threading.current_thread()}


def test_what_was_read_is_not_read_again_after_a_fault(make_run):
    run = make_run()
    here, there = objects_of(run, 2), objects_of(run, 2, "s3://far/x")
    root, far = Far(run.store, url=run.store.url), Far(run.store)
    far.fault = "unreachable"
    reader = ObjectReader(root, opened=lambda _: far)
    with pytest.raises(StoreError):
        reader.read([*here, *there])
    far.fault = ""
    assert len(reader.read([*there, *here])) == 4
    assert len(root.keys) == 2 and len(far.keys) == 4


@pytest.mark.parametrize("kind", ["denied", "no_bucket"])
def test_a_regions_store_that_refuses_is_asked_again_for_the_next_batch(make_run, kind):
    run = make_run()
    (name,) = objects_of(run, 1, "s3://far/x")
    far = Far(run.store)
    far.fault = kind
    reader = ObjectReader(MemoryStore(), opened=lambda _: far)
    assert reader.read([name])[name] == Away(f"{kind} store 's3://far/x': {name.path}")
    far.fault = ""
    assert isinstance(reader.read([name])[name], Columns)


def test_the_runs_own_store_is_never_given_up(make_run):
    run = make_run()
    (name,) = objects_of(run, 1)
    root = Far(run.store)
    for root.fault in ("unreachable", "denied"):
        reader = ObjectReader(root)
        for _ in range(2):
            with pytest.raises(StoreError):
                reader.read([name])
            assert not reader.give_up()


def test_a_store_that_no_url_names_costs_the_object_only(make_run):
    run = make_run()
    (name,) = objects_of(run, 1, "nonsense://x")

    def opened(_):
        raise ConfigError("no such scheme", kind="store_url")

    assert ObjectReader(run.store, opened=opened).read([name])[name].why.startswith("store_url store 'nonsense://x'")


def test_the_last_objects_are_kept_and_a_damaged_one_is_remembered(make_run, monkeypatch):
    monkeypatch.setattr(objects, "OBJECTS_KEPT", 2)
    run = make_run()
    first, second, damaged = objects_of(run, 3)
    run.store.put(damaged.path, b"dust")
    root = Far(run.store, url=run.store.url)
    reader = ObjectReader(root)
    found = reader.read([first, second, damaged])
    assert len(found) == 3 and found[damaged] == f"digest: {damaged.path}"
    assert reader.read([second, damaged]) == {name: found[name] for name in (second, damaged)}
    assert len(root.keys) == 3
    reader.read([first])  # the one that was used longest ago had to go
    assert root.keys[3:] == [first.path]
