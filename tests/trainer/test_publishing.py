"""A version is written while the next batch is trained: order, errors, and what a killed trainer leaves."""

from __future__ import annotations

import threading

import pytest

import storage.commit_points as commit_points
from astraflow.records import Consumed
from astraflow.trainer.checkpoints import Checkpoints
from astraflow.trainer.office import NewVersion
from astraflow.trainer.publishing import Publishing
from tests.trainer.test_loop import head, of
from tests.trainer.test_resume import STEPS, Killed, check_equal, live, manifests, recorded

PATIENCE_S = 60


class Passed:
    """Commit points as they are passed, each kind counted, for threads that wait for one another."""

    def __init__(self):
        self._counts = {}
        self._change = threading.Condition()

    def note(self, name):
        with self._change:
            self._counts[name] = self._counts.get(name, 0) + 1
            self._change.notify_all()

    def await_count(self, name, count):
        with self._change:
            assert self._change.wait_for(lambda: self._counts.get(name, 0) >= count, PATIENCE_S), f"{name} {count}"


@pytest.fixture
def passed(monkeypatch):
    found = Passed()
    monkeypatch.setattr(commit_points, "hook", found.note)
    return found


def slow_publish(monkeypatch, before):
    """Call ``before(step)`` in the thread that publishes, before it does anything; not for a life's first version."""
    original = NewVersion.publish

    def publish(self, life):
        if threading.current_thread() is not threading.main_thread():
            before(self.step)
        return original(self, life)

    monkeypatch.setattr(NewVersion, "publish", publish)


def test_what_was_begun_is_out_before_the_next_begins():
    order, free = [], threading.Event()
    with Publishing() as publishing:
        publishing.begin(lambda: order.append(free.wait(PATIENCE_S)))
        assert publishing.is_busy
        publishing.check()  # nothing to say yet
        threading.Timer(0.05, free.set).start()
        publishing.begin(lambda: order.append("second"))
        assert order[0] is True
        publishing.settle()
        assert order == [True, "second"] and not publishing.is_busy


@pytest.mark.parametrize("ask", [Publishing.check, Publishing.settle, lambda p: p.begin(lambda: None)])
def test_what_the_work_raised_is_raised_once(ask):
    def fail():
        raise Killed("no space")

    with Publishing() as publishing:
        publishing.begin(fail)
        publishing._thread.submit(lambda: None).result()  # behind it
        with pytest.raises(Killed, match="no space"):
            ask(publishing)
        publishing.settle()


def test_in_place_it_is_done_when_it_is_begun():
    done = []
    with Publishing(in_place=True) as publishing:
        publishing.begin(lambda: done.append(threading.get_ident()))
        assert done == [threading.get_ident()] and not publishing.is_busy
        assert publishing.busy_s(0.0, 10.0) == 0.0


def test_the_end_waits_for_what_was_begun():
    done, free = [], threading.Event()
    with Publishing() as publishing:
        publishing.begin(lambda: done.append(free.wait(PATIENCE_S)))
        threading.Timer(0.05, free.set).start()
    assert done == [True]


def test_time_that_was_publishings():
    free = threading.Event()
    with Publishing() as publishing:
        assert publishing.busy_s(0.0, 10.0) == 0.0
        publishing.begin(lambda: free.wait(PATIENCE_S))
        assert publishing.busy_s(3.0, 10.0) == 7.0
        free.set()
        publishing.settle()
        publishing._ended_s = 5.0
        assert publishing.busy_s(3.0, 10.0) == 2.0
        assert publishing.busy_s(6.0, 10.0) == 0.0
        assert publishing.busy_s(1.0, 4.0) == 3.0


def test_a_step_is_trained_while_the_version_before_is_written(make_run, monkeypatch, passed):
    """Each version but the last waits for the step after it; its weights are those of its own step all the same."""
    straight = recorded(make_run, "straight")
    live(straight, 0)
    run = recorded(make_run, "beside", checkpoint_every=50)
    base = passed._counts["trainer.after_step"]
    slow_publish(monkeypatch, lambda step: passed.await_count("trainer.after_step", base + min(step + 1, STEPS)))
    live(run, 0)
    assert [m.digest for m in manifests(run)] == [m.digest for m in manifests(straight)]
    check_equal(run, straight)
    rows = [fact.metrics for fact in of(run.facts(), Consumed)]
    assert all(row["version_write_s"] > 0 and row["wait_s"] >= 0 and row["publish_s"] >= 0 for row in rows)


@pytest.mark.parametrize("every", [2, 50])
def test_killed_between_a_step_and_the_version_before(make_run, monkeypatch, passed, every):
    """Step 4 is done, version 3 is not there: neither happened, and the next life trains both."""
    straight = recorded(make_run, "straight", checkpoint_every=every)
    live(straight, 0)
    run = recorded(make_run, "killed", checkpoint_every=every)
    base = passed._counts["trainer.after_step"]

    def die(step):
        if step == 3:
            passed.await_count("trainer.after_step", base + 4)
            raise Killed

    with monkeypatch.context() as patch:
        slow_publish(patch, die)
        with pytest.raises(Killed):
            live(run, 0)
    assert head(run).step == 2
    live(run, 1)
    check_equal(run, straight)


def test_a_checkpoint_is_of_a_step_that_is_published(make_run, monkeypatch):
    run = recorded(make_run, "kept")
    original, seen = Checkpoints.save, []

    def save(self, mark, learner):
        seen.append((mark.step, head(run).step))
        original(self, mark, learner)

    monkeypatch.setattr(Checkpoints, "save", save)
    hurry = threading.Event()
    slow_publish(monkeypatch, lambda step: hurry.wait(0.2))
    live(run, 0)
    assert seen and all(step == published for step, published in seen)
