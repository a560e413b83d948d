"""Numbered logs: gapless, unchanging, and every append under exactly one number, however bad the network."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import StoreError
from storage.local import LocalStore
from storage.log import NumberedLog, Patience
from storage.memory import FaultPlan, MemoryStore
from storage.store import Created

KEY = "log/{:010d}.json".format


class Clock:
    """Time that passes only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds

    def patience(self, total_s: float = 60.0) -> Patience:
        return Patience(total_s, sleep=self.sleep, clock=lambda: self.now)


class Counting(MemoryStore):
    """Counts requests."""

    gets = creates = 0

    def get(self, key: str) -> bytes:
        self.gets += 1
        return super().get(key)

    def create(self, key: str, data: bytes) -> Created:
        self.creates += 1
        return super().create(key, data)

    def list(self, *_: object, **__: object) -> None:  # type: ignore[override]
        raise AssertionError("a log is never listed")


class Turns:
    """Lets threads take their requests one at a time, in an order that a test chooses: interleaving by design."""

    def __init__(self, order: list[int], writers: int) -> None:
        self._order = list(order)
        self._waiting: set[int] = set()
        self._alive = set(range(writers))
        self._turn: int | None = None
        self._changed = threading.Condition()

    def take(self, writer: int) -> None:
        with self._changed:
            if self._turn == writer:  # the request before is over
                self._turn = None
            self._waiting.add(writer)
            self._pass()
            assert self._changed.wait_for(lambda: self._turn == writer, timeout=30)

    def leave(self, writer: int) -> None:
        with self._changed:
            self._alive.discard(writer)
            if self._turn == writer:
                self._turn = None
            self._pass()

    def _pass(self) -> None:
        """Give the turn on once every living writer waits for one."""
        if self._turn is None and self._alive and self._waiting >= self._alive:
            candidates = sorted(self._waiting)
            self._turn = candidates[(self._order.pop(0) if self._order else 0) % len(candidates)]
            self._waiting.discard(self._turn)
        self._changed.notify_all()


class Turned:
    """A store whose every request waits for its writer's turn."""

    def __init__(self, store: MemoryStore, turns: Turns, writer: int) -> None:
        self._store, self._turns, self._writer = store, turns, writer

    def __getattr__(self, name: str) -> Callable[..., object]:
        def request(*arguments: object) -> object:
            self._turns.take(self._writer)
            return getattr(self._store, name)(*arguments)

        return request


def contents(store: MemoryStore) -> list[bytes]:
    """The log read plainly; fails if its numbers have a gap."""
    found = list(store.list("log/"))
    assert [info.key for info in found] == [KEY(seq) for seq in range(len(found))]
    return [store.get(info.key) for info in found]


chance = st.sampled_from([0.0, 0.1, 0.3])


@settings(max_examples=120, deadline=None)
@given(
    records=st.lists(st.integers(0, 2), min_size=1, max_size=12),
    order=st.lists(st.integers(0, 2), max_size=80),
    seed=st.integers(0, 2**32),
    chances=st.tuples(chance, chance, st.sampled_from([0.0, 0.2]), st.sampled_from([0.0, 0.2])),
    total_s=st.sampled_from([0.1, 1.0, 60.0]),
)
def test_interleaved_writers_on_a_bad_network(
    records: list[int], order: list[int], seed: int, chances: tuple[float, ...], total_s: float
) -> None:
    before, lost, duplicate, late = chances
    store, turns = MemoryStore(), Turns(order, 3)
    landed: dict[bytes, int] = {}
    undecided: set[bytes] = set()

    def write(writer: int) -> None:
        plan = FaultPlan(seed + writer, error_before=before, lost_answer=lost, duplicate=duplicate, late=late)
        log = NumberedLog(Turned(store.client(plan), turns, writer), KEY, patience=Clock().patience(total_s))  # type: ignore[arg-type]
        start = 0
        try:
            for count, _ in enumerate(record for record in records if record == writer):
                data = f"{writer}-{count}".encode()
                try:
                    landed[data] = log.append(data, start=start)
                    start = landed[data] + 1
                except StoreError as error:
                    assert error.kind == "unreachable"
                    undecided.add(data)
        finally:
            turns.leave(writer)

    with ThreadPoolExecutor(3) as threads:
        for done in [threads.submit(write, writer) for writer in range(3)]:
            done.result()
    store.put("elsewhere", b"")  # late requests arrive before the next one
    log_now = contents(store)
    assert len(set(log_now)) == len(log_now), "an append landed twice"
    for data, seq in landed.items():
        assert log_now[seq] == data
    assert set(landed) <= set(log_now) <= set(landed) | undecided
    for writer in range(3):
        mine = [data for data in log_now if data in landed and data.startswith(b"%d-" % writer)]
        assert mine == sorted(mine, key=lambda data: int(data.split(b"-")[1])), "a writer's records are out of order"
    assert NumberedLog(store, KEY).tail() == len(log_now)


@given(length=st.integers(0, 70), hint=st.integers(0, 100))
@settings(max_examples=60, deadline=None)
def test_tail_from_any_hint(length: int, hint: int) -> None:
    store = MemoryStore()
    for seq in range(length):
        store.put(KEY(seq), b"x")
    assert NumberedLog(store, KEY).tail(hint) == length


def test_tail_gallops() -> None:
    store = Counting()
    for seq in range(10_000):
        store.put(KEY(seq), b"x")
    log = NumberedLog(store, KEY)
    assert log.tail() == 10_000
    assert store.gets <= 2 * 15
    store.gets = 0
    assert log.tail(9_998) == 10_000
    assert store.gets <= 5


def test_append_at_the_tail_is_one_request() -> None:
    store = Counting()
    log = NumberedLog(store, KEY)
    for seq in range(20):
        assert log.append(b"%d" % seq, start=seq) == seq
    assert (store.creates, store.gets) == (20, 0)


def test_append_from_far_behind() -> None:
    store = MemoryStore()
    for seq in range(300):
        store.put(KEY(seq), b"%d" % seq)
    log = NumberedLog(store, KEY)
    assert log.append(b"new") == 300
    assert log.append(b"newer", start=17) == 301
    assert log.read(300) == b"new"
    assert log.read(302) is None


def test_create_says_whose_the_number_is() -> None:
    log = NumberedLog(MemoryStore(), KEY)
    assert log.create(0, b"mine") is None
    assert log.create(0, b"mine") is None
    assert log.create(0, b"theirs") == b"mine"
    assert log.key(7) == "log/0000000007.json"


def test_threads_on_a_real_disk(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)

    def write(writer: int) -> list[int]:
        log, start, seqs = NumberedLog(LocalStore(tmp_path), KEY), 0, []
        for count in range(25):
            seqs.append(log.append(f"{writer}-{count}".encode(), start=start))
            start = seqs[-1] + 1
        return seqs

    with ThreadPoolExecutor(4) as threads:
        seqs = [seq for mine in threads.map(write, range(4)) for seq in mine]
    assert sorted(seqs) == list(range(100))
    assert len({store.get(KEY(seq)) for seq in range(100)}) == 100


def test_an_unreachable_store_is_asked_for_a_minute_with_backoff() -> None:
    clock = Clock()
    log = NumberedLog(MemoryStore(faults=FaultPlan(error_before=1.0)), KEY, patience=clock.patience())
    with pytest.raises(StoreError) as caught:
        log.append(b"x")
    assert caught.value.kind == "unreachable"
    assert 50 < clock.now <= 60
    assert clock.slept[:4] == [0.05, 0.1, 0.2, 0.4]
    assert max(clock.slept) == 5.0


def test_reads_are_not_retried_and_errors_other_than_unreachable_pass() -> None:
    class Denied(MemoryStore):
        def create(self, key: str, data: bytes) -> Created:
            raise StoreError("no", kind="denied")

    clock = Clock()
    with pytest.raises(StoreError, match="no"):
        NumberedLog(Denied(), KEY, patience=clock.patience()).append(b"x")
    with pytest.raises(StoreError):
        NumberedLog(MemoryStore(faults=FaultPlan(error_before=1.0)), KEY, patience=clock.patience()).read(0)
    assert clock.slept == []


def test_a_store_that_contradicts_itself_is_asked_again_until_time_is_up() -> None:
    class Forgetful(MemoryStore):
        def create(self, key: str, data: bytes) -> Created:
            return Created.EXISTED

    clock = Clock()
    with pytest.raises(StoreError) as caught:
        NumberedLog(Forgetful(), KEY, patience=clock.patience(10)).append(b"x")
    assert caught.value.kind == "unreachable"
    assert 5 < clock.now <= 10


def test_an_existing_object_that_settles_late_is_found() -> None:
    class Late(MemoryStore):
        reads = 0

        def get(self, key: str) -> bytes:
            self.reads += 1
            return super().get(key if self.reads > 1 else "elsewhere")

    store = Late()
    store.put(KEY(0), b"other")
    clock = Clock()
    assert NumberedLog(store, KEY, patience=clock.patience()).create(0, b"mine") == b"other"
    assert clock.slept == [0.05]


class Far(MemoryStore):
    """Looks like a store that is a round trip away, and counts its reads."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []
        self.away_from = ""

    @property
    def url(self) -> str:
        return "s3://bucket/x"

    def get(self, key: str) -> bytes:
        self.reads.append(key)
        if self.away_from and key >= self.away_from:
            raise StoreError("away", kind="unreachable")
        return super().get(key)


@pytest.mark.parametrize("make", [MemoryStore, Far])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 100])
def test_reading_on_gives_all_that_is_there(make: type[MemoryStore], count: int) -> None:
    store = make()
    for seq in range(count):
        store.put(KEY(seq), b"%d" % seq)
    log = NumberedLog(store, KEY)
    assert list(log.read_from(0)) == [(seq, b"%d" % seq) for seq in range(count)]
    assert [seq for seq, _ in log.read_from(count - 1)] == ([count - 1] if count else [])


def test_reading_on_far_away_asks_many_at_once_and_one_at_the_tail() -> None:
    store = Far()
    for seq in range(200):
        store.put(KEY(seq), b"x")
    log = NumberedLog(store, KEY)
    assert len(list(log.read_from(0))) == 200
    assert len(store.reads) < 200 + 64
    store.reads.clear()
    assert list(log.read_from(200)) == []
    assert store.reads == [KEY(200)]
    store.put(KEY(200), b"x")
    store.reads.clear()
    assert len(list(log.read_from(200))) == 1
    assert len(store.reads) == 2


def test_a_fault_comes_behind_what_could_be_read() -> None:
    store = Far()
    for seq in range(60):
        store.put(KEY(seq), b"x")
    store.away_from = KEY(37)
    seen: list[int] = []
    with pytest.raises(StoreError):
        seen.extend(seq for seq, _ in NumberedLog(store, KEY).read_from(0))
    reading = NumberedLog(store, KEY).read_from(0)
    assert [next(reading)[0] for _ in range(37)] == list(range(37))
    with pytest.raises(StoreError):
        next(reading)
