"""While one batch is trained the next ones are read, as many as are wanted and no more; what failed is met again."""

from __future__ import annotations

import threading
import time

import pytest

from astraflow.config import Region
from astraflow.pace import Pace
from astraflow.participant import DecisionsReader
from astraflow.records import Batched, Paused, Resumed
from astraflow.trainer import loader as loader_module
from astraflow.trainer.feed import BatchFeed
from astraflow.trainer.loader import Loader, read_again, read_batch
from astraflow.trainer.loop import run_trainer
from astraflow.trainer.reader import LoadedBatch, Part
from storage.errors import DeadlineError, StoreError
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
        self.given_up = self.is_cut_off = False
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


def test_a_batch_that_is_ready_is_not_kept_back_by_the_reading_of_a_later_one():
    reader, feed, go_on = Reader(), Feed(known=3), threading.Event()

    def load(decision, plain=reader.load):
        if decision.n == 2:
            assert go_on.wait(30)
        return plain(decision)

    reader.load = load
    with loader_of(reader, feed, most=2) as loader:
        loader.load(batch(0))
        with loader.ahead():
            until(lambda: loader.held == (1,))
            assert loader.load(batch(1)).n == 1 and not go_on.is_set()
        threading.Timer(0.05, go_on.set).start()
        assert loader.load(batch(2)).n == 2
        assert [n for n, _ in reader.read] == [0, 1, 2], "the one that was being read was waited for, not read twice"


def test_a_trainer_that_ends_does_not_wait_long_for_a_store_that_hangs(monkeypatch):
    monkeypatch.setattr(loader_module, "_LEAVE_S", 0.1)
    reader, begun, go_on = Reader(), threading.Event(), threading.Event()

    def load(decision):
        begun.set()
        go_on.wait(30)
        return LoadedBatch(decision.n, [], {})

    reader.load = load
    began = time.monotonic()
    with loader_of(reader, Feed(known=1), most=1) as loader, loader.ahead():
        assert begun.wait(30)
    assert time.monotonic() - began < 20
    go_on.set()


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

    def __init__(self):
        self.waits = []

    def persist(self, call, what, *, patience_s):
        assert patience_s > 120, "a region that is cut off for two minutes loses nothing"
        return call()

    def wait_for(self, what):
        self.waits.append(what)


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


@pytest.mark.parametrize("end", ["comes back", "refuses", "stays away"])
def test_a_batch_of_which_nothing_is_left_is_waited_for(monkeypatch, end):
    """Its region refuses: skipped at once, a run's steps would be over before anybody has looked."""
    lost = LoadedBatch(0, [], {3: "denied store 's3://far/x'"}, (3,))
    loads = []

    def load():
        loads.append(time.monotonic())
        return LoadedBatch(0, [Part(3, [])], {}) if end == "comes back" and len(loads) == 3 else lost

    monkeypatch.setattr(loader_module, "REGION_PATIENCE_S", 121.0 if end == "comes back" else 0.2)
    monkeypatch.setattr(loader_module, "_AGAIN_S", 0.05)
    life = Impatient()
    life.persist = lambda call, what, patience_s: call()
    reader = Reader()
    reader.is_cut_off = end == "stays away"
    if end == "refuses":
        with pytest.raises(StoreError, match="nothing of the batch can be read: denied store"):
            read_batch(life, reader, load, 0)
    else:
        found = read_batch(life, reader, load, 0)
        assert found is lost if end == "stays away" else found.parts and len(loads) == 3
    assert life.waits[0] == "nothing of batch 0 can be read: denied store 's3://far/x'"
    if end != "comes back":
        assert loads[-1] - loads[0] >= 0.15


def test_parts_that_were_trained_on_are_never_left_out_when_they_are_trained_again():
    def load():
        return LoadedBatch(5, [Part(2, [])], {3: "denied store 's3://far/x'"}, (3,))

    with pytest.raises(StoreError, match="what was trained on cannot be read again") as caught:
        read_again(Impatient(), load, 5)
    assert caught.value.kind == "region_away"
    recorded = LoadedBatch(5, [Part(2, [])], {3: "recorded"})
    assert read_again(Impatient(), lambda: recorded, 5) is recorded


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


@pytest.mark.parametrize(("kind", "passed"), [("denied", 0), ("unreachable", 6)])
def test_a_region_that_is_never_read_ends_the_trainer_and_not_the_runs_steps(make_run, monkeypatch, kind, passed):
    monkeypatch.setattr(loader_module, "REGION_PATIENCE_S", 0.1)
    run = make_run(steps=20)
    far = MemoryStore.at(f"memory://loader-never-{kind}")
    for n in range(8):
        run.decide(run.batched(n) if n == 2 else move(run, run.batched(n), far.url))

    def refuse(key):
        raise StoreError("no", where=far.url, kind=kind)

    with monkeypatch.context() as refused:
        refused.setattr(far, "get", refuse)
        with pytest.raises(StoreError, match=f"can be read: {kind} store") as caught:
            run_trainer(run.store, run.config, "solver")
    assert caught.value.kind == "region_away"
    consumed = [fact for fact in run.facts() if type(fact).__name__ == "Consumed"]
    assert [fact.batch for fact in consumed] == [0, 1, 2, 3, 4, 5][:passed], "batch 2 is read, and three more may pass"
    assert [len(fact.skipped) for fact in consumed] == [3, 3, 0, 3, 3, 3][:passed]


@pytest.mark.parametrize("kind", ["denied", "unreachable"])
def test_a_life_that_cannot_read_what_an_earlier_one_trained_on_makes_no_other_weights(make_run, monkeypatch, kind):
    monkeypatch.setattr(loader_module, "REGION_PATIENCE_S", 0.1)
    run = make_run(steps=4, checkpoint_every=100)
    far = MemoryStore.at(f"memory://loader-again-{kind}")
    for n in range(3):
        run.decide(move(run, run.batched(n), far.url) if n == 1 else run.batched(n))
    short = run.config.trainer.model_copy(update={"batch_timeout_s": 0.3})
    with pytest.raises(DeadlineError):
        run_trainer(
            run.store, run.config.model_copy(update={"trainer": short}), "solver", participant="trainer-solver-a"
        )
    before = published(run)
    assert len(before) == 4

    def fail(key):
        raise StoreError("no", where=far.url, kind=kind)

    with monkeypatch.context() as fault:
        fault.setattr(far, "get", fail)
        with pytest.raises(StoreError):
            run_trainer(run.store, run.config, "solver", participant="trainer-solver-b")
    assert published(run) == before
    run.decide(run.batched(3))
    run_trainer(run.store, run.config, "solver", participant="trainer-solver-c")
    alone = make_run("alone", steps=4, checkpoint_every=100)
    for n in range(4):
        alone.decide(alone.batched(n))
    run_trainer(alone.store, alone.config, "solver")
    assert published(run)[-1][1] == published(alone)[-1][1]


def test_resuming_a_region_resumes_no_policy_of_its_name(make_run):
    run = make_run()
    run.decide(Paused(policy="solver", reason="asked for"), Paused(policy="", region="solver", reason="a region"))
    run.decide(Resumed(policy="", region="solver"))
    feed = BatchFeed(run.store, run.keys, "solver", "trainer-1", cursor=0, first=0)
    feed.poll()
    assert feed.is_paused
    run.decide(Resumed(policy="solver"))
    feed.poll()
    assert not feed.is_paused
