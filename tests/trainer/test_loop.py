"""Whole lives of a trainer against recorded batches."""

from __future__ import annotations

import threading
import time

import msgspec
import pyarrow.parquet as pq
import pytest

import storage.commit_points as commit_points
from astraflow.dataflow.step import BARREN
from astraflow.records import (
    EVERYWHERE,
    Consumed,
    DrainRequested,
    Ended,
    Left,
    Paused,
    Published,
    Resumed,
    Status,
    Stopped,
    TrainerJoined,
    decode,
)
from astraflow.trainer.loop import MAX_BAD_STEPS, run_trainer
from astraflow.weights.publisher import Publisher
from astraflow.weights.subscriber import Subscriber
from storage.errors import ConfigError, DataError, DeadlineError, Fenced
from storage.filesystem import open_filesystem


def of(facts, kind):
    return [fact for fact in facts if isinstance(fact, kind)]


def until(done, thread=None, timeout_s=60.0):
    """Wait for ``done``; fail at once when the thread that should bring it about has died."""
    deadline = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < deadline, "it did not come about"
        assert thread is None or thread.is_alive(), "the thread has died"
        time.sleep(0.02)


def head(run):
    return Publisher(run.store, run.keys, "solver", anchor_every=64).head()


def test_trains_all_batches_publishes_each_step_and_ends(make_run):
    run = make_run(steps=4)
    run.decide(*[run.batched(n) for n in range(4)])
    run_trainer(run.store, run.config, "solver", participant="trainer-solver-a")
    facts = run.facts()
    assert isinstance(facts[0], TrainerJoined) and isinstance(facts[1], Published)
    assert [(fact.version, fact.step) for fact in of(facts, Published)] == [(v, v) for v in range(5)]
    assert [(fact.batch, fact.step) for fact in of(facts, Consumed)] == [(n, n + 1) for n in range(4)]
    assert facts[-2:] == [Ended(policy="solver", reason="done"), Left(reason="done")]
    assert len({fact.digest for fact in of(facts, Published)}) == 5
    status = decode(run.store.get(run.keys.status("trainer-solver-a")), Status, where="status")
    assert (status.role, status.name, status.state) == ("trainer", "solver", "left")
    metrics = of(facts, Consumed)[-1].metrics
    for name in ("loss", "reward_mean", "lag_max", "wait_s", "step_s", "publish_s", "rss_mb", "delta_bytes", "lr"):
        assert name in metrics
    files, root = open_filesystem(run.store.url)
    row = pq.read_table(files.open(f"{root}/{run.keys.step('solver', 4)}")).to_pylist()[0]
    assert (row["step"], row["batch"], row["version"], row["skipped"]) == (4, 3, 4, [])
    assert row["loss"] == metrics["loss"] and dict(row["mismatch_by_pool"]).keys() == {"local"}


def test_pools_can_serve_what_was_published(make_run, model_folder):
    run = make_run(steps=2)
    run.decide(*[run.batched(n) for n in range(2)])
    run_trainer(run.store, run.config, "solver")
    subscriber = Subscriber(run.store, run.keys, "solver")
    assert subscriber.newest() == 2
    assert subscriber.fetch(2).digest == head(run).digest
    assert run.store.get(run.keys.model_files("solver") + "config.json") == (model_folder / "config.json").read_bytes()


def test_batches_that_come_late_are_waited_for(make_run):
    run = make_run(steps=3)
    trainer = threading.Thread(target=run_trainer, args=(run.store, run.config, "solver"))
    trainer.start()
    for n in range(3):
        time.sleep(0.05)
        run.decide(run.batched(n))
    trainer.join(timeout=30)
    assert [fact.batch for fact in of(run.facts(), Consumed)] == [0, 1, 2]


def test_waiting_has_a_deadline_and_a_reason(make_run):
    run = make_run(steps=3, batch_timeout_s=0.2)
    run.decide(run.batched(0))
    with pytest.raises(DeadlineError, match="batch 1 of policy solver"):
        run_trainer(run.store, run.config, "solver", participant="trainer-solver-a")
    status = decode(run.store.get(run.keys.status("trainer-solver-a")), Status, where="status")
    assert status.state == "failed"


@pytest.mark.parametrize("region", ["", EVERYWHERE])
def test_a_pause_that_somebody_wanted_has_no_deadline(make_run, region):
    run = make_run(steps=1, batch_timeout_s=0.2)
    run.decide(Paused(policy="", region=region, reason="asked for"))
    failures = []

    def train():
        try:
            run_trainer(run.store, run.config, "solver", participant="trainer-solver-a")
        except DeadlineError as error:
            failures.append(error)

    thread = threading.Thread(target=train)
    thread.start()
    thread.join(timeout=5)
    assert thread.is_alive(), failures
    run.decide(Resumed(policy="", region=region), run.batched(0))
    thread.join(timeout=60)
    assert not failures
    assert of(run.facts(), Ended) == [Ended(policy="solver", reason="done")]


@pytest.mark.parametrize(
    "pause",
    [
        Paused(policy="solver", reason=f"{BARREN} 9 of 9 parts"),
        Paused(policy="", region="west", reason="others play"),
        Paused(policy="verifier", reason="another's"),
    ],
)
def test_a_pause_of_something_else_or_for_want_of_parts_has_one(make_run, pause):
    run = make_run(steps=1, batch_timeout_s=0.2)
    run.decide(pause)
    with pytest.raises(DeadlineError, match="batch 0"):
        run_trainer(run.store, run.config, "solver", participant="trainer-solver-a")


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        (DrainRequested(participants=[], reason="end"), "drained"),
        (DrainRequested(participants=["pool-x", "trainer-solver-a"], reason="move"), "drained"),
        (Stopped(reason="end"), "stopped"),
    ],
)
def test_the_word_to_end_is_heard_after_the_batch_in_hand(make_run, word, reason):
    run = make_run(steps=9)
    run.decide(run.batched(0), DrainRequested(participants=["trainer-solver-other"], reason="not me"))
    trainer = threading.Thread(target=run_trainer, args=(run.store, run.config, "solver"), kwargs={
        "participant": "trainer-solver-a"})  # fmt: skip
    trainer.start()
    until(lambda: of(run.facts(), Consumed), trainer)
    run.decide(word)
    trainer.join(timeout=30)
    facts = run.facts()
    assert [fact.batch for fact in of(facts, Consumed)] == [0]
    # Moved elsewhere, it leaves the policy to its next life.
    is_moved = isinstance(word, DrainRequested) and bool(word.participants)
    last = [Left(reason=reason)] if is_moved else [Ended(policy="solver", reason=reason), Left(reason=reason)]
    assert facts[-len(last) :] == last and len(of(facts, Ended)) == len(last) - 1
    if is_moved:
        run.decide(*[run.batched(n) for n in range(1, 9)])
        run_trainer(run.store, run.config, "solver", participant="trainer-solver-b")
        assert [fact.batch for fact in of(run.facts(), Consumed)] == [0, *range(9)]
        assert of(run.facts(), Ended) == [Ended(policy="solver", reason="done")]


def test_a_life_that_begins_after_the_end_changes_nothing(make_run):
    run = make_run(steps=1)
    run.decide(run.batched(0))
    run_trainer(run.store, run.config, "solver", participant="trainer-solver-a")
    run.decide(Stopped(reason="done"))
    version = head(run).version
    run_trainer(run.store, run.config, "solver", participant="trainer-solver-b")
    assert head(run).version == version
    assert run.facts()[-1] == Left(reason="the run has ended")


def test_a_first_life_after_the_end_makes_nothing(make_run):
    run = make_run(steps=1)
    run.decide(Stopped(reason="done"))
    run_trainer(run.store, run.config, "solver", participant="trainer-solver-a")
    assert head(run) is None and run.facts() == [Left(reason="the run has ended")]
    assert not list(run.store.list(run.keys.model_files("solver")))


@pytest.mark.parametrize("region", ["", EVERYWHERE])
def test_a_life_that_begins_in_a_pause_knows_of_it(make_run, region):
    """The pause stands before the batch that was trained last, which is where the next life begins to read."""
    run = make_run(steps=2, batch_timeout_s=0.3)
    run.decide(Paused(policy="", region=region, reason="asked for"))
    run.decide(run.batched(0))
    thread = live(run, "a")
    until(lambda: of(run.facts(), Consumed), thread)
    run.decide(DrainRequested(participants=["trainer-solver-a"], reason="move"))
    thread.join(timeout=30)
    thread = live(run, "b")
    until(lambda: len(of(run.facts(), TrainerJoined)) == 2, thread)
    thread.join(timeout=2)
    assert thread.is_alive()  # no deadline runs in a pause
    run.decide(Resumed(policy="", region=region), run.batched(1))
    thread.join(timeout=30)
    assert of(run.facts(), Ended) == [Ended(policy="solver", reason="done")]


def test_after_a_pause_the_whole_deadline_runs(make_run):
    run = make_run(steps=1, batch_timeout_s=3)
    run.decide(Paused(policy="", reason="asked for"))
    thread = live(run, "a")
    until(lambda: of(run.facts(), TrainerJoined), thread)
    thread.join(timeout=2.5)
    run.decide(Resumed(policy=""))  # shortly before the first deadline would be over
    thread.join(timeout=1.5)
    assert thread.is_alive()
    run.decide(run.batched(0))
    thread.join(timeout=30)
    assert of(run.facts(), Ended) == [Ended(policy="solver", reason="done")]


def live(run, name):
    """A life of the trainer in a thread."""
    arguments = (run.store, run.config, "solver")
    named = {"participant": f"trainer-solver-{name}"}
    thread = threading.Thread(target=run_trainer, args=arguments, kwargs=named, daemon=True)
    thread.start()
    return thread


class OutOfMemory(RuntimeError):
    pass


def broken(learner, batch):
    raise OutOfMemory("no room")


def test_whatever_ends_a_life_is_said(make_run):
    run = make_run(steps=1, kind="tests.trainer.test_loop:broken")
    run.decide(run.batched(0))
    with pytest.raises(OutOfMemory):
        run_trainer(run.store, run.config, "solver", participant="trainer-solver-a")
    status = decode(run.store.get(run.keys.status("trainer-solver-a")), Status, where="status")
    assert status.state == "failed"


def test_a_pull_to_version_0_is_the_same_in_every_life(make_run):
    """The reference is read from the store, so a later life pulls to the same weights."""
    run = make_run(steps=3, kl={"weight": 0.1}, checkpoint_every=1)
    run.decide(*[run.batched(n) for n in range(3)])

    def stop(name):
        if name == "trainer.after_consumed" and len(of(run.facts(), Consumed)) == 2:
            raise KeyboardInterrupt

    commit_points.hook = stop
    try:
        with pytest.raises(KeyboardInterrupt):
            run_trainer(run.store, run.config, "solver", participant="trainer-solver-a")
    finally:
        commit_points.hook = None
    run_trainer(run.store, run.config, "solver", participant="trainer-solver-b")
    told = of(run.facts(), Consumed)[-1].metrics
    assert told["reference_kl"] > 0 and told["loss"] == pytest.approx(told["policy_loss"] + 0.1 * told["reference_kl"])


def test_of_two_trainers_the_older_is_fenced_and_changes_nothing_more(make_run):
    run = make_run(steps=4)
    run.decide(run.batched(0), run.batched(1))
    ended: list[BaseException | None] = []

    def older():
        try:
            run_trainer(run.store, run.config, "solver", participant="trainer-solver-a")
            ended.append(None)
        except Fenced as error:
            ended.append(error)

    first = threading.Thread(target=older)
    first.start()
    until(lambda: len(of(run.facts(), Consumed)) == 2, first)
    second = threading.Thread(target=run_trainer, args=(run.store, run.config, "solver"), kwargs={
        "participant": "trainer-solver-b"})  # fmt: skip
    second.start()
    until(lambda: len(of(run.facts(), TrainerJoined)) == 2, second)
    run.decide(run.batched(2), run.batched(3))
    first.join(timeout=30)
    second.join(timeout=30)
    assert isinstance(ended[0], Fenced)
    done = [(fact.batch, fact.incarnation) for fact in of(run.facts(), Consumed)]
    assert done == [(0, 0), (1, 0), (1, 1), (2, 1), (3, 1)]
    published = [(fact.version, fact.step, fact.incarnation) for fact in of(run.facts(), Published)]
    assert published == [(0, 0, 0), (1, 1, 0), (2, 2, 0), (3, 2, 1), (4, 3, 1), (5, 4, 1)]
    status = decode(run.store.get(run.keys.status("trainer-solver-a")), Status, where="status")
    assert status.state == "fenced"


def test_skips_are_told_and_recorded(make_run):
    run = make_run(steps=2)
    good, bad = run.batched(0), run.batched(1)
    data = bytearray(run.store.get(bad.paths[1]))
    data[40] ^= 1
    run.store.put(bad.paths[1], bytes(data))
    run.decide(good, bad)
    run_trainer(run.store, run.config, "solver")
    told = of(run.facts(), Consumed)[1]
    assert told.skipped == [4] and told.reasons[0].startswith("digest")
    assert head(run).skipped == {"0": [], "1": [4]}
    assert told.metrics["skipped_parts"] == 1


def test_a_batch_without_one_usable_part_is_consumed(make_run):
    run = make_run(steps=1)
    decision = run.batched(0, parts=2)
    for path in decision.paths:
        run.store.delete(path)
    run.decide(decision)
    run_trainer(run.store, run.config, "solver")
    told = of(run.facts(), Consumed)[0]
    assert told.skipped == [0, 1]
    first, second = of(run.facts(), Published)
    assert first.digest == second.digest and second.delta_bytes == 0


def test_weights_that_are_not_finite_are_never_published(make_run):
    run = make_run(steps=3, lr=1e39)
    run.decide(*[run.batched(n) for n in range(3)])
    with pytest.raises(DataError) as raised:
        run_trainer(run.store, run.config, "solver")
    assert raised.value.kind == "non_finite"
    assert head(run).version == 0 and not of(run.facts(), Consumed)


def test_a_policy_that_only_diverges_is_given_up(make_run):
    run = make_run(steps=30, lr=1e37)
    run.decide(*[run.batched(n) for n in range(14)])
    with pytest.raises(DataError, match="in a row"):
        run_trainer(run.store, run.config, "solver")
    told = of(run.facts(), Consumed)
    refused = [fact for fact in told if fact.metrics["step_refused"]]
    assert len(refused) == MAX_BAD_STEPS
    assert len({fact.digest for fact in of(run.facts(), Published)[-MAX_BAD_STEPS:]}) == 1
    for fact in told:
        assert msgspec.json.decode(msgspec.json.encode(fact), type=Consumed) == fact


def test_a_frozen_policy_is_published_once(make_run, model_folder):
    run = make_run(steps=1)
    judge = run.config.policies["solver"].model_copy(update={"frozen": True})
    config = run.config.model_copy(update={"policies": {**run.config.policies, "judge": judge}})
    for _ in range(2):
        run_trainer(run.store, config, "judge")
    assert Publisher(run.store, run.keys, "judge", anchor_every=64).head().version == 0
    assert not run.facts()
    assert run.store.get(run.keys.model_files("judge") + "config.json")


def test_an_unknown_kind_is_a_config_error(make_run):
    run = make_run(kind="lr")
    with pytest.raises(ConfigError) as raised:
        run_trainer(run.store, run.config, "solver")
    assert raised.value.where == "policies.solver.trainer.kind"


def test_a_new_life_learns_what_the_older_did_while_it_claimed(make_run):
    """The older trainer, still at work, publishes the very version that the new one is about to claim."""
    run = make_run(steps=4)
    run.decide(run.batched(0), run.batched(1))
    fenced: list[Fenced] = []

    def older():
        try:
            run_trainer(run.store, run.config, "solver", participant="trainer-solver-a")
        except Fenced as error:
            fenced.append(error)

    first = threading.Thread(target=older)
    first.start()
    until(lambda: len(of(run.facts(), Consumed)) == 2, first)
    main, passed = threading.get_ident(), []

    def hook(name):
        if name == "trainer.after_blobs" and threading.get_ident() == main and not passed:
            passed.append(name)
            run.decide(run.batched(2))
            until(lambda: head(run).version == 3, first)
        if name == "trainer.after_claim" and threading.get_ident() == main:
            run.decide(run.batched(3))

    commit_points.hook = hook
    try:
        run_trainer(run.store, run.config, "solver", participant="trainer-solver-b")
    finally:
        commit_points.hook = None
    first.join(timeout=30)
    assert passed and len(fenced) == 1
    done = [(fact.batch, fact.incarnation) for fact in of(run.facts(), Consumed)]
    assert done == [(0, 0), (1, 0), (2, 0), (2, 1), (3, 1)]
    published = [(fact.version, fact.step, fact.incarnation) for fact in of(run.facts(), Published)]
    assert published[-3:] == [(3, 3, 0), (4, 3, 1), (5, 4, 1)]
    assert len({fact.digest for fact in of(run.facts(), Published) if fact.step == 3}) == 1
