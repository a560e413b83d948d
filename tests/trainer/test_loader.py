"""While one batch is trained the next ones are read, as many as are wanted and no more; what failed is met again."""

from __future__ import annotations

import threading
import time

import pytest

from astraflow.config import Region
from astraflow.pace import Pace
from astraflow.participant import DecisionsReader
from astraflow.records import Batched
from astraflow.trainer import loader as loader_module
from astraflow.trainer.feed import BatchFeed
from astraflow.trainer.loader import Loader, read_batch
from astraflow.trainer.loop import run_trainer
from astraflow.trainer.reader import LoadedBatch
from storage.errors import StoreError
from storage.memory import MemoryStore


class Feed:
    """Batches become known when the test says so, to who polls."""

    def __init__(self, known=0):
        self.known = self.polled = known
        self.polls = 0

    def poll(self):
        self.polls += 1
        self.polled = self.known

    def get(self, n):
        return batch(n) if n < self.polled else None


class Reader:
    """Notes which batches were read by which thread; those in ``failing`` do not answer."""

    def __init__(self):
        self.read = []
        self.failing = set()
        self.silent = False
        self.given_up = False
        self._using = threading.Lock()

    def load(self, decision):
        assert self._using.acquire(blocking=False), "two threads at once"
        try:
            self.read.append((decision.n, threading.current_thread().name))
            if decision.n in self.failing:
                raise StoreError("no answer", kind="unreachable")
            return LoadedBatch(decision.n, [], {})
        finally:
            self._using.release()

    def give_up(self):
        given_up, self.given_up = self.given_up, True
        return self.silent and not given_up


def batch(n):
    empty = {name: [] for name in Batched.__struct_fields__ if name not in ("policy", "n")}
    return Batched(policy="solver", n=n, **empty)


def loader_of(reader, feed, most):
    return Loader(reader, feed, Pace("memory://"), most=most)


def until(done, timeout_s=30.0):
    deadline = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_a_batch_that_becomes_known_while_one_is_trained_is_read_meanwhile():
    reader, feed = Reader(), Feed(known=1)
    with loader_of(reader, feed, most=2) as loader:
        assert loader.load(batch(0)).n == 0
        with loader.ahead():
            until(lambda: feed.polls > 2)
            assert reader.read == [(0, "MainThread")]
            feed.known = 2
            until(lambda: loader.held == (1,))
            feed.known = 9
            until(lambda: loader.held == (1, 2))
            polls = feed.polls
            time.sleep(0.05)
            assert feed.polls == polls and loader.held == (1, 2), "enough is held: nobody asks for more"
        assert [loader.load(batch(n)).n for n in (1, 2)] == [1, 2]
        assert reader.read == [(0, "MainThread"), (1, "ahead"), (2, "ahead")]
        with loader.ahead():
            until(lambda: loader.held == (3, 4))


def test_only_while_the_loop_trains_is_the_feed_asked_beside_it():
    reader, feed = Reader(), Feed(known=5)
    with loader_of(reader, feed, most=1) as loader:
        loader.load(batch(0))
        time.sleep(0.03)
        assert feed.polls == 0 and loader.held == ()


def test_where_no_batch_can_be_ahead_nothing_is_read_ahead():
    reader, feed = Reader(), Feed(known=5)
    with loader_of(reader, feed, most=0) as loader:
        loader.load(batch(0))
        with loader.ahead():
            time.sleep(0.03)
        assert feed.polls == 0 and loader.held == () and len(reader.read) == 1


def test_a_life_that_begins_in_the_middle_reads_what_follows():
    reader, feed = Reader(), Feed(known=9)
    with loader_of(reader, feed, most=1) as loader:
        loader.load(batch(6))
        with loader.ahead():
            until(lambda: loader.held == (7,))


def test_what_failed_ahead_is_met_by_who_needs_it(monkeypatch):
    monkeypatch.setattr(loader_module, "_AGAIN_S", 0.001)
    reader, feed = Reader(), Feed(known=3)
    with loader_of(reader, feed, most=2) as loader:
        loader.load(batch(0))
        reader.failing = {1}
        with loader.ahead():
            until(lambda: len(reader.read) > 3)
            assert loader.held == ()
        with pytest.raises(StoreError):
            loader.load(batch(1))
        reader.failing = set()
        assert loader.load(batch(1)).n == 1
        assert {n for n, _ in reader.read} == {0, 1}, "nothing behind the gap was read"
        reader.failing = {2}
        with loader.ahead():
            until(lambda: reader.read[-1][0] == 2)
            reader.failing = set()
            until(lambda: loader.held == (2,))


def test_a_bug_in_reading_ahead_is_raised():
    reader, feed = Reader(), Feed(known=3)

    def broken(decision):
        raise ZeroDivisionError

    with loader_of(reader, feed, most=2) as loader:
        loader.load(batch(0))
        reader.load = broken
        with loader.ahead():
            until(lambda: not loader._thread.is_alive())
        reader.load = Reader().load
        with pytest.raises(ZeroDivisionError):
            loader.load(batch(1))


def test_who_trains_does_not_wait_for_a_poll_that_is_under_way(make_run):
    run = make_run(url="memory://loader-feed")
    run.decide(run.batched(0))
    feed = BatchFeed(run.store, run.keys, "solver", "trainer-1", cursor=0, first=0)
    feed.poll()
    run.decide(run.batched(1))
    asked, answer, get = threading.Event(), threading.Event(), run.store.get

    class Slow:
        url = run.store.url

        def get(self, key):
            asked.set()
            assert answer.wait(30)
            return get(key)

    feed._reader = DecisionsReader(Slow(), run.keys, feed._reader.cursor)
    polling = threading.Thread(target=feed.poll)
    polling.start()
    assert asked.wait(30)
    assert feed.get(0) is not None and feed.get(1) is None
    assert feed.paused_at(0) == feed.paused == () and feed.done(0) == 0
    answer.set()
    polling.join()
    assert feed.get(1) is not None


class Impatient:
    """A life that waits for nothing."""

    policy = "solver"

    def persist(self, call, what, *, patience_s):
        assert patience_s > 120, "a region that is cut off for two minutes loses nothing"
        return call()


def test_a_region_that_stays_cut_off_is_given_up_once():
    reader = Reader()
    reader.failing, reader.silent = {0}, True

    def load():
        if reader.given_up:
            return LoadedBatch(0, [], {3: "unreachable store"})
        return reader.load(batch(0))

    assert read_batch(Impatient(), reader, load, 0).skipped == {3: "unreachable store"}


def test_the_runs_own_store_is_not_given_up():
    reader = Reader()
    reader.failing = {0}
    with pytest.raises(StoreError):
        read_batch(Impatient(), reader, lambda: reader.load(batch(0)), 0)


def published(run):
    return [(fact.version, fact.digest) for fact in run.facts() if type(fact).__name__ == "Published"]


def move(run, decision, url):
    """The decision as if its objects had been written to the store at ``url``."""
    far = MemoryStore.at(url)
    for path in decision.paths:
        far.put(path, run.store.get(path))
        run.store.delete(path)
    fields = {name: getattr(decision, name) for name in decision.__struct_fields__}
    return Batched(**(fields | {"stores": [url] * len(decision.paths)}))


def test_the_weights_do_not_depend_on_where_the_rows_lie_or_when_they_were_read(make_run):
    here, there = make_run("here", steps=4), make_run("there", steps=4)
    for n in range(4):
        here.decide(here.batched(n))
        there.decide(move(there, there.batched(n), "memory://loader-region"))
    for run in (here, there):
        run_trainer(run.store, run.config, "solver")
    assert published(here) == published(there) and len(published(here)) == 5


def test_a_region_that_is_cut_off_for_good_does_not_stop_the_run(make_run, monkeypatch):
    monkeypatch.setattr(loader_module, "REGION_PATIENCE_S", 0.3)
    run = make_run(steps=3)
    far = MemoryStore.at("memory://loader-cut-off")
    for n in range(3):
        run.decide(move(run, run.batched(n), far.url) if n == 1 else run.batched(n))
    asked = []

    def silent(key):
        asked.append(key)
        raise StoreError("no answer", where=far.url, kind="unreachable")

    monkeypatch.setattr(far, "get", silent)
    run_trainer(run.store, run.config, "solver")
    consumed = {fact.batch: fact for fact in run.facts() if type(fact).__name__ == "Consumed"}
    assert [len(consumed[n].skipped) for n in range(3)] == [0, 3, 0]
    assert all(reason.startswith("unreachable store 'memory://loader-cut-off'") for reason in consumed[1].reasons)
    assert len(asked) > 4, "it was waited for"


@pytest.mark.parametrize("kind", ["denied", "unreachable"])
def test_a_first_life_that_a_region_refuses_makes_nothing_and_one_that_is_away_is_hoped_for(
    make_run, monkeypatch, kind
):
    run = make_run(steps=1)
    far = MemoryStore.at(f"memory://loader-{kind}")
    run.config = run.config.model_copy(update={"regions": {"west": Region(store=far.url)}})
    run.decide(run.batched(0))

    def fail(prefix, **_):
        raise StoreError("no", where=f"{far.url}/{prefix}", remedy="Ask for read access", kind=kind)

    with monkeypatch.context() as fault:
        fault.setattr(far, "list", fail)
        if kind == "denied":
            with pytest.raises(StoreError) as caught:
                run_trainer(run.store, run.config, "solver")
            assert caught.value.where == f"regions.west.store: {far.url}/{run.keys.trajectories}"
            assert (caught.value.kind, caught.value.remedy) == (kind, "Ask for read access")
            assert published(run) == []
        else:
            run_trainer(run.store, run.config, "solver")
            assert len(published(run)) == 2
    run_trainer(run.store, run.config, "solver")
    monkeypatch.setattr(far, "list", fail)
    run_trainer(run.store, run.config, "solver")  # a later life only loses what lies there
