"""Replaying a run's logs, and reading from stores that are far away."""

from __future__ import annotations

import threading

import msgspec
import pytest

from astraflow import records as r
from astraflow.dataflow.replay import fold, fold_run, read_decisions, verify_run
from astraflow.dataflow.state import RunState
from storage.errors import DataError
from storage.fetch import AT_ONCE, fetch_all, reads_at_once
from storage.keys import RunKeys
from storage.memory import MemoryStore
from tests.dataflow.drive import epoch, make_config
from tests.simulation.world import run_world

KEYS = RunKeys("run")


def test_deciding_again_finds_the_first_decision_that_differs() -> None:
    world = run_world(5)
    store = world.base.client()
    count = verify_run(store, KEYS, world.config)
    assert count > 10
    seq = next(
        seq
        for seq, record in enumerate(read_decisions(store, KEYS, 0))
        if any(isinstance(decision, r.Leased) for decision in record.decisions)
    )
    record = r.decode(store.get(KEYS.decision(seq)), r.DecisionRecord, where="")
    store.put(KEYS.decision(seq), r.encode(msgspec.structs.replace(record, decisions=record.decisions[:-1])))
    with pytest.raises(DataError) as caught:
        verify_run(store, KEYS, world.config)
    assert (caught.value.kind, caught.value.where) == ("replay", KEYS.decision(seq))


def test_a_far_store_is_read_many_at_once_with_the_same_result() -> None:
    class Far(MemoryStore):
        @property
        def url(self) -> str:
            return "s3://bucket/x"

    world = run_world(6)
    near = world.base.client()
    far = Far()
    for info in near.list(""):
        far.put(info.key, near.get(info.key))
    assert (reads_at_once(near), reads_at_once(far)) == (1, AT_ONCE)
    assert fold_run(far, KEYS, world.config).snapshot() == fold_run(near, KEYS, world.config).snapshot()


def test_reads_of_a_far_store_run_beside_each_other() -> None:
    class Far(MemoryStore):
        @property
        def url(self) -> str:
            return "s3://bucket/x"

    both = threading.Barrier(2, timeout=10)
    assert fetch_all(Far(), lambda item: both.wait() >= 0 and item, [1, 2]) == [1, 2]


def test_an_admission_that_nobody_committed_is_an_error_of_the_log() -> None:
    state = RunState(make_config())
    state.begin(0.0)
    state.observe({"pool-a": 1})
    state.apply(epoch())
    state.apply(r.Leased(pool="pool-a", groups=[0], problems=[0], attempts=[1]))
    admitted = r.Admitted(groups=[0], attempts=[1], participant="pool-a")
    record = r.DecisionRecord(id="1", epoch=1, now=1.0, cursors={}, observations={}, decisions=[admitted])
    with pytest.raises(DataError) as caught:
        fold(state, record, [])
    assert caught.value.kind == "log"


def test_who_was_only_ever_named_is_known() -> None:
    state = RunState(make_config())
    state.apply(r.DrainRequested(participants=["pool-z"], reason=""))
    assert state.participants["pool-z"].draining and state.cursor_of("pool-z") == 0
