"""The invariants can fail: classic bugs, put in on purpose, are found within a few seeds."""

from __future__ import annotations

import json
from collections.abc import Callable
from types import ModuleType

import msgspec
import pytest

from astraflow import records as r
from astraflow.dataflow import admission, batching, evaluating
from astraflow.dataflow import step as steps
from astraflow.dataflow.leases import LeaseBook, OpenGroup
from astraflow.dataflow.manager import Manager
from astraflow.dataflow.participants import Participant
from astraflow.dataflow.state import RunState
from storage.errors import AstraFlowError
from tests.simulation.invariants import check_run
from tests.simulation.world import run_world

SEEDS = range(60)


def _assert_found(word: str, make_manager: Callable[..., Manager] = Manager, *, verify: bool = False) -> None:
    """Some seed must fail with an assertion or an error that says ``word``; ``verify`` also decides all again."""
    said: list[str] = []
    for seed in SEEDS:
        try:
            world = run_world(seed, make_manager)
            check_run(world.base.client(), world.config, verify=verify)
        except (AssertionError, AstraFlowError) as error:
            said.append(str(error))
            if word in said[-1]:
                return
    pytest.fail(f"no seed found the bug; they said: {sorted(set(said))[:5]}")


def test_staleness_off_by_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def oldest_step(n: int, max_staleness: int) -> int:
        return max(0, n - max_staleness - 1)

    monkeypatch.setattr(batching, "oldest_step", oldest_step)
    _assert_found("lag")


def test_double_admission_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def close(self: LeaseBook, group: int) -> OpenGroup:
        self.leased.pop(group, None)
        self.waiting.pop(group, None)
        return self.open[group]

    monkeypatch.setattr(LeaseBook, "close", close)
    _assert_found("two attempts of one group were admitted")


def test_a_gate_off_by_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    need = steps.lease_need
    monkeypatch.setattr(steps, "lease_need", lambda state, pool: need(state, pool) + 1)
    _assert_found("bound")


@pytest.mark.parametrize(("module", "word"), [(admission, "a lease in a"), (evaluating, "an evaluation in a")])
def test_a_lease_to_a_paused_region_is_found(monkeypatch: pytest.MonkeyPatch, module: ModuleType, word: str) -> None:
    def may_play(state: RunState, pool: Participant) -> bool:
        return pool.is_able(state.names, state.now, state.flow.silence_s) and pool.serves(state.names)

    monkeypatch.setattr(module, "may_play", may_play)
    _assert_found(f"{word} paused region")


def test_a_lease_beyond_those_that_a_pool_asked_for_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def room(self: Participant) -> int:
        return max(0, self.capacity + self.ahead + 1 - len(self.held) - len(self.evals))

    monkeypatch.setattr(Participant, "room", property(room))
    _assert_found("a pool without room")


def test_a_standstill_that_is_not_said_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "standstill", lambda state: None)
    _assert_found("whether anything plays")


class _Rewriting(Manager):
    """A manager that records something else than it saw."""

    def rewrite(self, record: r.DecisionRecord) -> r.DecisionRecord:
        raise NotImplementedError

    def _append(self, record: r.DecisionRecord) -> None:
        super()._append(self.rewrite(record))


class _Cursorless(_Rewriting):
    def rewrite(self, record: r.DecisionRecord) -> r.DecisionRecord:
        return msgspec.structs.replace(record, cursors={})


class _Unobserved(_Rewriting):
    def rewrite(self, record: r.DecisionRecord) -> r.DecisionRecord:
        return msgspec.structs.replace(record, observations={}) if not record.cursors else record


class _Forgetful(_Rewriting):
    """Drops are made and not recorded."""

    def rewrite(self, record: r.DecisionRecord) -> r.DecisionRecord:
        kept = [decision for decision in record.decisions if not isinstance(decision, r.Dropped)]
        return msgspec.structs.replace(record, decisions=kept)


class _Unfenced(Manager):
    """Meets a newer manager's record and writes behind it."""

    def _append(self, record: r.DecisionRecord) -> None:
        while self._log.create(self.state.ledger.seq + 1, r.encode(record)) is not None:
            self.state.ledger.seq += 1
        self.state.ledger.seq += 1
        self._pending = None


@pytest.mark.parametrize(
    ("manager", "word"),
    [(_Cursorless, "nobody knows"), (_Forgetful, "without an end"), (_Unfenced, "fenced epoch")],
)
def test_a_wrong_record_is_found(manager: type[Manager], word: str) -> None:
    _assert_found(word, manager)


def test_an_input_that_is_not_recorded_is_found_by_deciding_again() -> None:
    _assert_found("was never seen", _Unobserved, verify=True)


def test_a_hidden_clock_is_found_by_deciding_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_silent(self: object, now: float, silence_s: float) -> bool:
        ticks["n"] += 1
        return ticks["n"] % 1000 == 0

    ticks = {"n": 0}
    monkeypatch.setattr(Participant, "is_silent", is_silent)
    _assert_found("deciding again gives", verify=True)


def test_a_state_that_a_snapshot_leaves_out_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = RunState.snapshot

    def without_position(self: RunState) -> bytes:
        """What is written lacks the curator's place; the live state is left alone."""
        written = json.loads(snapshot(self))
        written["curator"]["position"] = 0
        return json.dumps(written).encode()

    monkeypatch.setattr(RunState, "snapshot", without_position)
    _assert_found("a snapshot and what follows", verify=True)
