"""What every participant has: no fact stands twice in an outbox, no decision is read and lost, beats go on."""

from __future__ import annotations

import itertools
import time

import pytest

from astraflow.pace import Pace, wait_until
from astraflow.participant import Beat, DecisionsReader, Outbox, beat_every_s, new_participant
from astraflow.records import DecisionRecord, FactRecord, Left, Resumed, Status, decode, encode
from storage.errors import DataError, DeadlineError, StoreError
from storage.keys import RunKeys
from storage.memory import MemoryStore
from storage.store import Created

KEYS = RunKeys("run")


class Moody(MemoryStore):
    """Refuses what a test tells it to, before or after the effect."""

    def __init__(self) -> None:
        super().__init__()
        self.lose_answers = 0
        self.refuse_creates = 0
        self.refuse_reads_from: str | None = None

    def create(self, key: str, data: bytes) -> Created:
        if self.refuse_creates:
            self.refuse_creates -= 1
            raise StoreError("away", kind="denied")
        created = super().create(key, data)
        if self.lose_answers:
            self.lose_answers -= 1
            raise StoreError("lost", kind="denied")
        return created

    def get(self, key: str) -> bytes:
        if self.refuse_reads_from is not None and key >= self.refuse_reads_from:
            raise StoreError("away", kind="unreachable")
        return super().get(key)


def said(store: MemoryStore) -> list[list[str]]:
    keys = [info.key for info in store.list(KEYS.outboxes)]
    records = [decode(store.get(key), FactRecord, where=key) for key in keys]
    assert len({record.id for record in records}) == len(records)
    return [[fact.reason for fact in record.facts if isinstance(fact, Left)] for record in records]


@pytest.mark.parametrize("moody", ["lose_answers", "refuse_creates"])
def test_a_repeated_append_lands_once(moody: str) -> None:
    store = Moody()
    outbox = Outbox(store, KEYS, "pool-a-1")
    assert outbox.append([Left(reason="0")]) == 0
    setattr(store, moody, 1)
    with pytest.raises(StoreError):
        outbox.append([Left(reason="1")])
    assert outbox.append([Left(reason="1")]) == 1
    assert outbox.append([Left(reason="2")]) == 2
    assert said(store) == [["0"], ["1"], ["2"]]


def test_other_facts_come_behind_the_undecided_ones() -> None:
    store = Moody()
    outbox = Outbox(store, KEYS, "pool-a-1")
    store.refuse_creates = 1
    with pytest.raises(StoreError):
        outbox.append([Left(reason="0")])
    assert outbox.append([Left(reason="1")]) == 1
    assert said(store) == [["0"], ["1"]]


def decisions(store: MemoryStore, count: int) -> None:
    for seq in range(count):
        record = DecisionRecord(
            id=str(seq), epoch=1, now=0, cursors={}, observations={}, decisions=[Resumed(policy=str(seq))]
        )
        store.create(KEYS.decision(seq), encode(record))


def test_a_reader_returns_what_it_has_passed_before_it_tells_of_a_fault() -> None:
    store = Moody()
    decisions(store, 5)
    reader = DecisionsReader(store, KEYS)
    store.refuse_reads_from = KEYS.decision(3)
    assert [seq for seq, _ in reader.poll()] == [0, 1, 2]
    with pytest.raises(StoreError):
        reader.poll()
    store.refuse_reads_from = None
    assert [seq for seq, _ in reader.poll(limit=1)] == [3]
    assert [seq for seq, _ in reader.poll()] == [4]
    assert reader.poll() == []


def test_a_reader_stops_before_a_damaged_record() -> None:
    store = MemoryStore()
    decisions(store, 2)
    store.put(KEYS.decision(2), b"{")
    reader = DecisionsReader(store, KEYS)
    assert len(reader.poll()) == 2
    for _ in range(2):
        with pytest.raises(DataError):
            reader.poll()


def test_a_reader_of_what_comes_now_starts_at_the_newest_snapshot() -> None:
    store = MemoryStore()
    assert DecisionsReader.from_tail(store, KEYS).cursor == 0
    for seq in (3, 7):
        store.put(KEYS.snapshot(seq), b"{}")
    assert DecisionsReader.from_tail(store, KEYS).cursor == 8


def test_beats_count_up_and_survive_faults() -> None:
    store = MemoryStore()
    status = Status(participant="pool-a-1", role="pool", state="starting")
    with Beat(store, KEYS, status, every_s=0.01) as beat:
        beat.set(state="playing", waiting="for nothing", groups=3)
        beat.set(tokens=1)
        deadline = time.monotonic() + 10
        while beat.status.beat < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
    last = decode(store.get(KEYS.status("pool-a-1")), Status, where="")
    assert last.beat == beat.status.beat >= 4
    assert (last.state, last.waiting, last.figures) == ("playing", "for nothing", {"groups": 3, "tokens": 1})

    class Away(MemoryStore):
        def put(self, key: str, data: bytes) -> None:
            raise StoreError("away", kind="unreachable")

    lost = Beat(Away(), KEYS, status, every_s=100)
    lost.write()
    assert lost.failures == 1


def test_names_are_new_for_every_life() -> None:
    names = {new_participant("pool", "a") for _ in range(20)}
    assert len(names) == 20 and all(name.startswith("pool-a-") for name in names)
    assert new_participant("operator").count("-") == 1


def test_beats_are_rarer_where_they_cost() -> None:
    assert [beat_every_s(url, 60) for url in ("file:///x", "memory://x", "s3://x")] == [2, 2, 15]
    assert beat_every_s("s3://x", 8) == 2


def test_a_far_store_is_asked_less_and_less_until_something_comes() -> None:
    far, near = Pace("s3://bucket"), Pace("file:///x")
    waits = [far.next_s() for _ in range(30)]
    assert waits[0] == 0.05 and waits[-1] == 1.0 and waits == sorted(waits)
    late = [wait / max(0.25, sum(waits[:i])) for i, wait in enumerate(waits)]
    assert max(late) <= 0.2 + 1e-9, "nothing is found later than a fifth of the silence before it"
    assert sum(sum(waits[:i]) < 10 for i in range(30)) == 27, "questions in ten seconds"
    far.reset()
    assert far.next_s() == 0.05
    assert {near.next_s() for _ in range(20)} == {0.01}


def test_a_near_store_is_asked_less_only_after_a_long_silence() -> None:
    """No question comes later than 2 % of the silence before it, or 10 ms, or ever more than 0.1 s."""
    near, silent_s = Pace("memory://x"), 0.0
    for _ in range(400):
        wait_s = near.next_s()
        assert wait_s <= max(0.01, 0.02 * silent_s + 1e-9)
        silent_s += wait_s
    assert wait_s == 0.1
    near.reset()
    assert near.next_s() == 0.01


def test_a_wait_ends_with_its_cause_or_its_deadline() -> None:
    times = itertools.count()
    slept: list[float] = []
    answers = iter([False, False, True])
    clock, far = lambda: float(next(times)), Pace("s3://x")
    wait_until(lambda: next(answers), pace=far, timeout_s=9, what="x", clock=clock, sleep=slept.append)
    assert slept == [0.05, 0.05]
    with pytest.raises(DeadlineError, match="waited 2 s for the moon"):
        wait_until(lambda: False, pace=far, timeout_s=2, what="the moon", clock=clock, sleep=slept.append)
