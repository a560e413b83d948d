"""The probe lets good stores pass and refuses each way of being a bad one, leaving nothing behind."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from storage.errors import NotFound, StoreError
from storage.memory import FaultPlan, MemoryStore
from storage.probe import check_store
from storage.store import Created, ObjectInfo


class IgnoresConditions(MemoryStore):
    def create(self, key: str, data: bytes) -> Created:
        self.put(key, data)
        return Created.CREATED


class OverwritesAndRefuses(MemoryStore):
    def create(self, key: str, data: bytes) -> Created:
        there = any(True for _ in self.list(key))
        self.put(key, data)
        return Created.EXISTED if there else Created.CREATED


class AlwaysExisted(MemoryStore):
    def create(self, key: str, data: bytes) -> Created:
        super().create(key, data)
        return Created.EXISTED


class WritesNothing(MemoryStore):
    first = True

    def create(self, key: str, data: bytes) -> Created:
        self.first, first = False, self.first
        return Created.CREATED if first else Created.EXISTED


class IgnoresRanges(MemoryStore):
    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self.get(key)


class ListsNothing(MemoryStore):
    def list(self, prefix: str, *, after: str | None = None, limit: int | None = None) -> Iterator[ObjectInfo]:
        return iter(())


class NeverOverwrites(MemoryStore):
    def put(self, key: str, data: bytes) -> None:
        super().create(key, data)


class KeepsDeleted(MemoryStore):
    def delete(self, key: str) -> None:
        pass


class ReadsDeleted(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[str, bytes] = {}

    def get(self, key: str) -> bytes:
        try:
            self.cache[key] = super().get(key)
        except NotFound:
            return self.cache[key]
        return self.cache[key]


class ChecksThenWrites(MemoryStore):
    """Not atomic: two may both find nothing and both write."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Barrier(2)

    def create(self, key: str, data: bytes) -> Created:
        if any(True for _ in self.list(key)):
            return Created.EXISTED
        try:
            self.gate.wait(0.2)
        except threading.BrokenBarrierError:
            self.gate.reset()
        self.put(key, data)
        return Created.CREATED


def never(_: float) -> None:
    raise AssertionError("slept")


@pytest.mark.parametrize(
    "make",
    [
        IgnoresConditions,
        OverwritesAndRefuses,
        AlwaysExisted,
        WritesNothing,
        IgnoresRanges,
        ListsNothing,
        NeverOverwrites,
        KeepsDeleted,
        ReadsDeleted,
    ],
)
def test_bad_stores_are_refused(make: type[MemoryStore]) -> None:
    store, slept = make(), []
    with pytest.raises(StoreError) as caught:
        check_store(store, sleep=slept.append)
    assert caught.value.kind == "unsafe"
    assert "lose data" in caught.value.what
    assert "conditional writes" in caught.value.remedy
    assert slept == [0.5, 1.0, 2.0], "it had several tries"
    if make is not KeepsDeleted:
        assert list(MemoryStore.list(store, "")) == []


def test_a_race_finds_what_one_writer_cannot() -> None:
    store = ChecksThenWrites()
    check_store(store, tries=1)
    with pytest.raises(StoreError) as caught:
        check_store(store, tries=1, racers=2)
    assert caught.value.kind == "unsafe"
    assert "2 of 2 writers" in caught.value.what


def test_a_good_store_passes_at_once() -> None:
    store = MemoryStore()
    check_store(store, racers=4, sleep=never)
    assert list(store.list("")) == []


def test_a_store_that_settles_late_passes() -> None:
    class Settling(MemoryStore):
        tries = 0

        def create(self, key: str, data: bytes) -> Created:
            self.tries += 1
            return super().create(key, data) if self.tries > 4 else IgnoresConditions.create(self, key, data)  # type: ignore[arg-type]

    slept: list[float] = []
    check_store(Settling(), sleep=slept.append)
    assert slept == [0.5, 1.0]


def test_unreachable_is_tried_again_and_then_told_as_it_is() -> None:
    slept: list[float] = []
    with pytest.raises(StoreError) as caught:
        check_store(MemoryStore(faults=FaultPlan(error_before=1.0)), sleep=slept.append)
    assert caught.value.kind == "unreachable"
    assert len(slept) == 3


@pytest.mark.parametrize("kind", ["denied", "no_bucket"])
def test_what_waiting_does_not_mend_is_told_at_once(kind: str) -> None:
    class Refusing(MemoryStore):
        def create(self, key: str, data: bytes) -> Created:
            raise StoreError("no", kind=kind)

    with pytest.raises(StoreError) as caught:
        check_store(Refusing(), sleep=never)
    assert caught.value.kind == kind


class RarelyRaces(ChecksThenWrites):
    """Atomic but for one of its races: a second look would find nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.raced = 0

    def create(self, key: str, data: bytes) -> Created:
        if self.raced > 2:
            return MemoryStore.create(self, key, data)
        self.raced += 1
        return super().create(key, data)


def test_a_lost_race_is_not_forgiven() -> None:
    store = RarelyRaces()
    store.raced = 10
    check_store(store, racers=2, sleep=never)
    store.raced = -1  # the probe's own two creates come first
    with pytest.raises(StoreError) as caught:
        check_store(store, racers=2, sleep=never)
    assert caught.value.kind == "unsafe"


class WritesByAndBy(MemoryStore):
    """Shows what is written so far, as files do."""

    def create(self, key: str, data: bytes) -> Created:
        created = super().create(key, data[: len(data) // 2])
        if created is Created.CREATED:
            if len(data) > 10_000:
                time.sleep(0.2)
            self.put(key, data)
        return created


def test_a_store_that_shows_halves_is_refused() -> None:
    check_store(WritesByAndBy(), racers=2, sleep=never)
    with pytest.raises(StoreError, match="shows a half") as caught:
        check_store(WritesByAndBy(), torn=True, sleep=never)
    assert caught.value.kind == "unsafe"
    good = MemoryStore()
    check_store(good, torn=True, sleep=never)
    assert list(good.list("")) == []


def test_a_race_that_cannot_be_reached_is_run_again() -> None:
    class AwayOnce(MemoryStore):
        calls = 0

        def create(self, key: str, data: bytes) -> Created:
            self.calls += 1
            if self.calls == 3:
                raise StoreError("away", kind="unreachable")
            return super().create(key, data)

    slept: list[float] = []
    check_store(AwayOnce(), racers=2, sleep=slept.append)
    assert slept == [0.5]
