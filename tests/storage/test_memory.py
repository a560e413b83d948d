"""The memory store's faults do what they say; its registry finds stores by URL."""

from __future__ import annotations

import gc

import pytest

from storage import open_store
from storage.errors import StoreError
from storage.memory import FaultPlan, MemoryStore
from storage.store import Created


def test_error_before_writes_nothing() -> None:
    store = MemoryStore()
    bad = store.client(FaultPlan(error_before=1.0))
    for call in (
        lambda: bad.put("x", b"1"),
        lambda: bad.create("x", b"1"),
        lambda: bad.get("x"),
        lambda: bad.list("x"),
    ):
        with pytest.raises(StoreError) as caught:
            list(call() or ())
        assert caught.value.kind == "unreachable"
    assert list(store.list("")) == []


def test_lost_answer_writes_and_raises() -> None:
    store = MemoryStore()
    bad = store.client(FaultPlan(lost_answer=1.0))
    with pytest.raises(StoreError):
        bad.create("x", b"1")
    assert store.get("x") == bad.get("x") == b"1"
    with pytest.raises(StoreError):
        bad.delete("x")
    assert list(store.list("")) == []


def test_a_duplicate_create_gives_a_false_existed() -> None:
    bad = MemoryStore(faults=FaultPlan(duplicate=1.0))
    assert bad.create("x", b"1") is Created.EXISTED
    assert bad.get("x") == b"1"
    bad.put("x", b"2")
    assert bad.get("x") == b"2"


def test_a_late_create_arrives_before_the_next_request_and_replaces_nothing() -> None:
    store = MemoryStore()
    bad = store.client(FaultPlan(late=1.0))
    with pytest.raises(StoreError):
        bad.create("x", b"1")
    with pytest.raises(StoreError):
        bad.create("x", b"2")
    assert store.get("x") == b"1"


def test_delay_sleeps_and_does() -> None:
    slept: list[float] = []
    store = MemoryStore(faults=FaultPlan(delay=1.0, delay_s=3.0, sleep=slept.append))
    store.put("x", b"1")
    assert store.get("x") == b"1"
    assert slept == [3.0, 3.0]


def test_the_same_seed_gives_the_same_faults() -> None:
    def faults(seed: int) -> list[str]:
        plan = FaultPlan(seed, error_before=0.2, lost_answer=0.2, duplicate=0.2, late=0.2, delay=0.1)
        return [plan.draw("create") for _ in range(200)]

    assert faults(1) == faults(1) != faults(2)
    assert set(faults(1)) == {"", "error_before", "lost_answer", "duplicate", "late", "delay"}


def test_open_store_finds_a_store_by_its_url() -> None:
    made = MemoryStore("memory://made-here")
    made.put("x", b"1")
    assert open_store("memory://made-here") is made
    open_store("memory://kept").put("x", b"2")
    gc.collect()
    assert open_store("memory://kept").get("x") == b"2"
    assert MemoryStore().url != MemoryStore().url


def test_a_new_instance_is_empty() -> None:
    MemoryStore("memory://again").put("x", b"1")
    assert list(MemoryStore("memory://again").list("")) == []


def test_a_listing_survives_writes_between_its_steps() -> None:
    store = MemoryStore()
    for name in "abcd":
        store.put(name, b"")
    seen = []
    for info in store.list(""):
        seen.append(info.key)
        store.delete("c")
        store.put("e", b"")
    assert seen == ["a", "b", "d", "e"]
