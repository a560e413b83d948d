"""The driver: takeover and fencing, lost answers, recovery, snapshots, beats, outages, and a whole small run."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from astraflow import records as r
from astraflow.dataflow.manager import Manager, run_manager
from astraflow.dataflow.replay import fold_run, newest_snapshot
from storage.errors import ConfigError, DataError, Fenced, NotFound, StoreError
from storage.keys import RunKeys
from storage.log import Patience
from storage.memory import MemoryStore
from storage.store import Created, ObjectInfo
from tests.dataflow.drive import make_config, of
from tests.simulation.invariants import check_run

KEYS = RunKeys("run")
NO_PATIENCE = Patience(total_s=0.0, sleep=lambda _: None, clock=lambda: 0.0)


class Clock:
    """A clock that is set by hand; sleeping moves it."""

    def __init__(self) -> None:
        self.now = 100.0
        self.then: Callable[[], None] = lambda: None

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.then()


class Flaky(MemoryStore):
    """A store that fails the requests that ``fails`` says."""

    fails: Callable[[str, str], str | None] = staticmethod(lambda verb, key: None)

    def _check(self, verb: str, key: str) -> None:
        kind = self.fails(verb, key)
        if kind:
            raise StoreError("told to fail", where=key, kind=kind)

    def get(self, key: str) -> bytes:
        self._check("get", key)
        return super().get(key)

    def create(self, key: str, data: bytes) -> Created:
        self._check("create", key)
        made = super().create(key, data)
        self._check("created", key)
        return made

    def list(self, prefix: str, *, after: str | None = None, limit: int | None = None) -> Iterator[ObjectInfo]:
        self._check("list", prefix)
        return super().list(prefix, after=after, limit=limit)


class Writer:
    """A participant that writes by hand."""

    def __init__(self, store: MemoryStore, name: str) -> None:
        self.store, self.name, self.count, self.beats = store, name, 0, 0

    def say(self, *facts: r.AnyFact) -> None:
        record = r.FactRecord(id=r.new_id(), participant=self.name, facts=list(facts))
        self.store.create(KEYS.outbox(self.name, self.count), r.encode(record))
        self.count += 1
        self.beat()

    def beat(self) -> None:
        self.beats += 1
        status = r.Status(participant=self.name, role="pool", state="x", beat=self.beats)
        self.store.put(KEYS.status(self.name), r.encode(status))

    def join(self, *, capacity: int = 4) -> None:
        publish(self.store)
        joined = r.PoolJoined(pool="l", region="h", policies=["solver"], capacity=capacity, engine="x", data_hash="abc")
        self.say(joined, r.Applied(policy="solver", version=0, step=0, digest="d0"))


def publish(store: MemoryStore) -> None:
    manifest = b'{"version":0,"step":0,"incarnation":0,"batch":-1,"digest":"d0"}'
    store.put(KEYS.manifest("solver", 0), manifest)


def start(store: MemoryStore, clock: Clock, **flow: object) -> Manager:
    manager = Manager(
        store, make_config(**flow), holder="m", clock=clock, patience=NO_PATIENCE, commit=lambda name: None
    )
    manager.start()
    return manager


def records(store: MemoryStore) -> list[r.DecisionRecord]:
    return [r.decode(store.get(info.key), r.DecisionRecord, where=info.key) for info in store.list("run/decisions/")]


def join_trainer(store: MemoryStore) -> Writer:
    publish(store)
    trainer = Writer(store, "trainer-solver-1")
    published = r.Published(policy="solver", version=0, step=0, incarnation=0, digest="d0")
    trainer.say(r.TrainerJoined(policy="solver", incarnation=0), published)
    return trainer


def test_a_manager_begins_with_its_epoch_and_writes_only_what_is_new() -> None:
    store, clock = MemoryStore(), Clock()
    manager = start(store, clock)
    (claim,) = records(store)
    assert (claim.epoch, claim.now, of(claim.decisions, r.Epoch)[0].holder) == (1, 0.0, "m")
    assert not manager.tick() and len(records(store)) == 1
    join_trainer(store)
    Writer(store, "pool-a-1").join()
    clock.sleep(3)
    assert manager.tick()
    record = records(store)[1]
    assert record.cursors == {"pool-a-1": 1, "trainer-solver-1": 1} and record.now == 3.0
    assert record.observations == {"pool-a-1": 1, "trainer-solver-1": 1}
    assert of(record.decisions, r.Leased)[0].groups == [0, 1, 2, 3]
    assert not manager.tick()


def test_a_newer_manager_fences_the_older() -> None:
    store, clock = MemoryStore(), Clock()
    old = start(store, clock)
    new = start(store, clock)
    assert new.state.ledger.epoch == 2
    join_trainer(store)
    clock.sleep(5)
    with pytest.raises(Fenced, match="epoch 2 took over from epoch 1"):
        old.tick()
    assert new.tick()
    check_run(store, new.config)


def test_a_claim_that_collides_takes_the_other_in() -> None:
    store, clock = Flaky(), Clock()
    other: list[Manager] = []

    def interfere(verb: str, key: str) -> None:
        if verb == "create" and not other:
            other.append(None)  # type: ignore[arg-type]
            other[0] = start(store, clock)

    store.fails = interfere
    manager = start(store, clock)
    assert (other[0].state.ledger.epoch, manager.state.ledger.epoch) == (1, 2)


def test_two_records_of_one_epoch_are_an_error() -> None:
    store, clock = MemoryStore(), Clock()
    manager = start(store, clock)
    strange = r.DecisionRecord(id="y", epoch=1, now=0.0, cursors={}, observations={}, decisions=[])
    store.create(KEYS.decision(1), r.encode(strange))
    join_trainer(store)
    clock.sleep(5)
    with pytest.raises(DataError) as caught:
        manager.tick()
    assert caught.value.kind == "log"


@pytest.mark.parametrize("fault", ["create", "created"])
def test_a_lost_record_is_sent_again_unchanged(fault: str) -> None:
    store, clock = Flaky(), Clock()
    manager = start(store, clock)
    join_trainer(store)
    clock.sleep(5)
    lost = []

    def lose(verb: str, key: str) -> str | None:
        if "decisions" in key and (verb == fault or (lost and verb == "get" and len(lost) < 2)):
            lost.append(key)
            return "unreachable" if len(lost) < 3 else None
        return None

    store.fails = lose
    with pytest.raises(StoreError):
        manager.tick()
    join_trainer(store)
    assert manager.tick()
    store.fails = lambda verb, key: None
    manager.tick()
    assert len(records(store)) == 2
    check_run(store, manager.config)


def test_a_beat_that_was_seen_is_not_lost_when_a_read_fails() -> None:
    store, clock = Flaky(), Clock()
    manager = start(store, clock)
    trainer = join_trainer(store)
    clock.sleep(5)
    store.fails = lambda verb, key: "unreachable" if verb == "get" and "outbox" in key else None
    with pytest.raises(StoreError):
        manager.tick()
    store.fails = lambda verb, key: None
    assert manager.tick()
    assert manager.state.participants[trainer.name].role == "trainer"


def test_an_outage_makes_nobody_silent() -> None:
    store, clock = Flaky(), Clock()
    manager = start(store, clock, silence_s=10)
    join_trainer(store)
    Writer(store, "pool-a-1").join()
    clock.sleep(1)
    manager.tick()
    store.fails = lambda verb, key: "unreachable"
    for _ in range(50):
        clock.sleep(2)
        with pytest.raises(StoreError):
            manager.tick()
    store.fails = lambda verb, key: None
    manager.tick()
    assert not of(records(store)[-1].decisions, r.Expired)
    for _ in range(10):
        clock.sleep(2)
        manager.tick()
    assert of(records(store)[-1].decisions, r.Expired)[0].reason == "silent"


def test_recovery_folds_snapshots_and_what_follows() -> None:
    store, clock = MemoryStore(), Clock()
    manager = start(store, clock, snapshot_every=3)
    pool = Writer(store, "pool-a-1")
    pool.join()
    join_trainer(store)
    for _ in range(8):
        clock.sleep(2)
        pool.beat()
        manager.tick()
    assert [KEYS.snapshot_seq(info.key) for info in store.list(KEYS.snapshots)] == [5, 2]
    again = start(store, clock, snapshot_every=3)
    assert again.state.ledger.epoch == 2 and again.state.leases.next_group == 4
    whole = fold_run(store, KEYS, again.config, from_snapshot=False)
    assert whole.snapshot() == fold_run(store, KEYS, again.config).snapshot()


def test_an_unusable_snapshot_is_passed_over() -> None:
    store, clock = MemoryStore(), Clock()
    manager = start(store, clock)
    join_trainer(store)
    clock.sleep(2)
    manager.tick()
    store.put(KEYS.snapshot(1), manager.state.snapshot())
    store.put(KEYS.snapshot(7), b"{torn")
    store.put(KEYS.snapshot(8), manager.state.snapshot().replace(b'"format":1', b'"format":99'))
    assert newest_snapshot(store, KEYS, manager.config).ledger.seq == 1
    for info in store.list(KEYS.snapshots):
        store.put(info.key, b"null")
    assert newest_snapshot(store, KEYS, manager.config).ledger.seq == -1


def test_another_config_is_recorded() -> None:
    store, clock = MemoryStore(), Clock()
    start(store, clock)
    start(store, clock)
    start(store, clock, max_attempts=7)
    assert [len(record.decisions) for record in records(store)] == [1, 1, 2]
    assert isinstance(records(store)[2].decisions[1], r.Reconfigured)


def test_a_missing_outbox_record_is_named() -> None:
    store, clock = MemoryStore(), Clock()
    manager = start(store, clock)
    trainer = join_trainer(store)
    clock.sleep(2)
    manager.tick()
    store.delete(KEYS.outbox(trainer.name, 0))
    with pytest.raises(DataError, match="it is not there") as caught:
        start(store, clock)
    assert caught.value.where == KEYS.outbox(trainer.name, 0)


def test_garbage_in_an_outbox_is_rejected_and_passed() -> None:
    store, clock = MemoryStore(), Clock()
    manager = start(store, clock)
    store.put(KEYS.outbox("pool-a-1", 0), b"\xff\xfe{")
    pool = Writer(store, "pool-a-1")
    pool.count = 1
    pool.join()
    clock.sleep(2)
    manager.tick()
    (rejected,) = of(records(store)[-1].decisions, r.Rejected)
    assert "FactRecord" in rejected.reason
    assert manager.state.participants["pool-a-1"].role == "pool"


def test_nothing_is_written_after_stopped() -> None:
    store, clock = MemoryStore(), Clock()
    manager = start(store, clock)
    Writer(store, "operator-1").say(r.Wanted(what="stop"), r.Left())
    clock.sleep(2)
    assert manager.tick() and manager.stopped
    assert not manager.tick()
    late = start(store, clock)
    assert late.stopped and len(records(store)) == 2
    check_run(store, manager.config)


def test_a_run_without_problems_has_no_manager() -> None:
    with pytest.raises(ConfigError, match="no problems"):
        Manager(MemoryStore(), make_config(problem_count=0).model_copy(), holder="m")


# --- run_manager ---------------------------------------------------------------------------------


def test_a_managed_run_ends_with_stopped_and_says_how_it_is() -> None:
    store, clock = MemoryStore("memory://managed"), Clock()
    pool, turns = Writer(store, "pool-a-1"), []

    def play() -> None:
        turns.append(clock.now)
        if len(turns) == 2:
            pool.join()
        if len(turns) == 60:
            pool.say(r.Left())
            Writer(store, "operator-1").say(r.Wanted(what="stop"), r.Left())
        assert len(turns) < 10_000

    clock.then = play
    run_manager(store, make_config(), holder="m", clock=clock, sleep=clock.sleep)
    status = r.decode(store.get(KEYS.status("manager")), r.Status, where="")
    assert status.state == "stopped" and status.figures["groups"] == 0
    check_run(store, make_config())


def test_a_manager_that_is_told_to_end_leaves_the_run_to_another() -> None:
    store, clock, stop = MemoryStore(), Clock(), threading.Event()
    clock.then = stop.set
    run_manager(store, make_config(), holder="m", stop=stop, clock=clock, sleep=clock.sleep)
    assert r.decode(store.get(KEYS.status("manager")), r.Status, where="").state == "ended"
    assert not of([d for record in records(store) for d in record.decisions], r.Stopped)


def test_a_passing_outage_is_waited_out_and_an_endless_one_is_not() -> None:
    store, clock = Flaky(), Clock()
    store.fails = lambda verb, key: "unreachable" if verb in ("list", "get") and clock.now < 300 else None
    stop = threading.Event()
    clock.then = lambda: stop.set() if clock.now > 320 else None
    run_manager(store, make_config(), holder="m", stop=stop, clock=clock, sleep=clock.sleep)
    assert len(records(store)) == 1
    store.fails = lambda verb, key: "unreachable" if verb == "list" else None
    with pytest.raises(StoreError):
        run_manager(store, make_config(), holder="m", clock=clock, sleep=clock.sleep)
    assert clock.now > 320 + 900


def test_a_store_that_refuses_is_not_asked_again() -> None:
    store, clock = Flaky(), Clock()
    store.fails = lambda verb, key: "denied" if verb == "list" else None
    with pytest.raises(StoreError):
        run_manager(store, make_config(), holder="m", clock=clock, sleep=clock.sleep)
    assert clock.now == 100.0


def test_a_fenced_manager_says_so_and_raises() -> None:
    store, clock = MemoryStore(), Clock()
    others: list[Manager] = []

    def interfere() -> None:
        if not others:
            others.append(start(store, clock))
            join_trainer(store)
        assert clock.now < 1000

    clock.then = interfere
    with pytest.raises(Fenced):
        run_manager(store, make_config(), holder="m", clock=clock, sleep=clock.sleep)
    with pytest.raises(NotFound):
        store.get(KEYS.decision(2))
    assert r.decode(store.get(KEYS.status("manager")), r.Status, where="").state == "fenced"


def test_a_store_that_fails_in_the_middle_shows_in_the_status() -> None:
    store, clock = Flaky(), Clock()
    stop = threading.Event()
    store.fails = lambda verb, key: "unreachable" if verb == "list" and "status" in key and clock.now < 130 else None
    clock.then = lambda: stop.set() if clock.now > 140 else None
    run_manager(store, make_config(), holder="m", stop=stop, clock=clock, sleep=clock.sleep)
    assert clock.now > 140
