"""The driver around ``step``: reads outboxes and beats, appends decisions, survives faults and other managers.

A manager claims the run by appending ``Epoch n + 1``; every older one then meets that record at its own next
append and exits (``Fenced``). One ``tick`` writes at most one record. A record that is decided and not yet known
to be in the log is kept and sent again, the same bytes, before anything else happens; nothing else is pending
between ticks, so a killed manager loses nothing. Only ``run_manager`` sleeps.
"""

from __future__ import annotations

import gc
import hashlib
import itertools
import threading
import time
from collections.abc import Callable

import astraflow
from astraflow import records as r
from astraflow.config import RunConfig
from astraflow.dataflow.figures import status_figures, wait_reasons
from astraflow.dataflow.replay import fold, newest_snapshot, read_decisions, read_incoming, read_inputs
from astraflow.dataflow.state import RunState
from astraflow.dataflow.step import Incoming, step
from astraflow.pace import Pace
from astraflow.participant import Beat, beat_every_s
from storage.commit_points import commit_point
from storage.errors import ConfigError, DataError, Fenced, StoreError
from storage.fetch import fetch_all
from storage.keys import RunKeys
from storage.log import NumberedLog, Patience
from storage.store import ObjectStore

NAME = "manager"
RECORDS_A_TICK = 64
"""Most records of one outbox that a tick takes in: bounds the size of a decision record."""
SNAPSHOTS_KEPT = 4
"""Newest snapshots that stay; as large as the data set with curators that learn, so they do not pile up."""
OUTAGE_S = 900.0
"""How long the store may be unreachable before the manager gives up."""
EAGER_S = 30.0
"""For so long after its start a manager looks for new participants at every ``EAGER_SCAN_S``."""
EAGER_SCAN_S = 0.25


class Manager:
    """One manager of one run. ``start`` once, then ``tick`` until ``stopped``."""

    def __init__(
        self,
        store: ObjectStore,
        config: RunConfig,
        *,
        holder: str,
        clock: Callable[[], float] = time.monotonic,
        patience: Patience | None = None,
        commit: Callable[[str], None] = commit_point,
    ) -> None:
        if config.problem_count < 1:
            raise ConfigError(
                "the run has no problems", where="problem_count", remedy="Create the run before its manager starts"
            )
        self.config = config
        self.keys = RunKeys(config.name)
        self.state = RunState(config)
        self.holder = holder
        self._store = store
        self._clock = clock
        self._commit = commit
        self._log = NumberedLog(store, self.keys.decision, patience=patience)
        self._begun_at = 0.0
        self._pending: r.DecisionRecord | None = None
        self._snapshot_at = -1  # decision record that the last snapshot holds
        self._e_tags: dict[str, str] = {}
        self._changed: dict[str, None] = {}  # participants whose beat changed and is not recorded
        self._scanned_at: float | None = None
        self._scan_every_s = beat_every_s(store.url, config.dataflow.silence_s)

    @property
    def stopped(self) -> bool:
        """The log says ``Stopped``; nothing may follow."""
        return self.state.ledger.stopped and self._pending is None

    # --- taking over ----------------------------------------------------------------------------

    def start(self) -> None:
        """Recover by folding the logs, then claim the run. Raises ``StoreError`` if the store fails: call it again."""
        if self._pending is None:
            self.state = newest_snapshot(self._store, self.keys, self.config)
            self._snapshot_at = self.state.ledger.seq
            self._catch_up()
        while not self.state.ledger.stopped:
            claim = self._pending or self._claim()
            self._pending = claim
            if self._log.create(self.state.ledger.seq + 1, r.encode(claim)) is None:
                fold(self.state, claim, [])
                self._pending = None
                break
            self._pending = None  # another record is there: take it in and claim the next epoch
            self._catch_up()
        self._begun_at = self._clock()

    def _catch_up(self) -> None:
        for record in read_decisions(self._store, self.keys, self.state.ledger.seq + 1):
            fold(self.state, record, read_inputs(self._store, self.keys, self.state, record))

    def _claim(self) -> r.DecisionRecord:
        """The record that begins this manager's epoch, saying what differs from the last one."""
        ledger = self.state.ledger
        now = (_digest(self.config), astraflow.__version__, self.config.data_hash)
        before = (ledger.config_hash, ledger.code, ledger.data_hash)
        config_hash, code, data_hash = now
        decisions: list[r.AnyDecision] = [
            r.Epoch(n=ledger.epoch + 1, holder=self.holder, data_hash=data_hash, config_hash=config_hash, code=code)
        ]
        if ledger.epoch > 0 and now != before:
            decisions.append(r.Reconfigured(config_hash=config_hash, code=code, data_hash=data_hash))
        return r.DecisionRecord(
            id=r.new_id(), epoch=ledger.epoch + 1, now=0.0, cursors={}, observations={}, decisions=decisions
        )

    # --- a tick ---------------------------------------------------------------------------------

    def tick(self) -> bool:
        """Finish what is pending, then see, decide and record once. True if there was something to record.

        Raises ``StoreError`` (unreachable: tick again later) and ``Fenced``.
        """
        if self._pending is not None:
            self._append(self._pending)
            return True
        self._snapshot_when_due()
        if self.stopped:
            return False
        self._scan()
        known = self.state.participants
        observations = {name: (known[name].beats if name in known else 0) + 1 for name in self._changed}
        incoming = self._read(observations)
        self._changed.clear()
        now = max(self.state.now, round(self._clock() - self._begun_at, 3))
        decisions = step(self.state, incoming, observations, now)
        cursors = {
            name: self.state.participants[name].cursor for name in dict.fromkeys(i.participant for i in incoming)
        }
        if not (decisions or cursors or observations):
            return False
        self._pending = r.DecisionRecord(
            id=r.new_id(),
            epoch=self.state.ledger.epoch,
            now=now,
            cursors=cursors,
            observations=observations,
            decisions=decisions,
        )
        self._append(self._pending)
        return True

    def _append(self, record: r.DecisionRecord) -> None:
        seq = self.state.ledger.seq + 1
        self._commit("manager.before_decision")
        there = self._log.create(seq, r.encode(record))
        if there is not None:
            raise self._met(r.decode(there, r.DecisionRecord, where=self._log.key(seq)), seq)
        self._commit("manager.after_decision")
        self.state.ledger.seq = seq
        self._pending = None

    def _met(self, other: r.DecisionRecord, seq: int) -> Exception:
        epoch = self.state.ledger.epoch
        if other.epoch > epoch:
            return Fenced(
                f"manager epoch {other.epoch} took over from epoch {epoch}",
                where=self._log.key(seq),
                remedy="Nothing is lost: the newer manager goes on; this one exits",
                kind="epoch",
            )
        return DataError(
            f"a record of epoch {other.epoch} stands where epoch {epoch} was to write",
            where=self._log.key(seq),
            remedy="Start the manager again: it folds the log anew",
            kind="log",
        )

    def _scan(self) -> None:
        """Note beats that changed and participants that are new, from one LIST, when it is time for it."""
        now = self._clock()
        every_s = min(EAGER_SCAN_S, self._scan_every_s) if now - self._begun_at < EAGER_S else self._scan_every_s
        unseen_s = every_s if self._scanned_at is None else now - self._scanned_at
        if unseen_s < every_s:
            return
        seen = {self.keys.status_participant(i.key): i.e_tag for i in self._store.list(self.keys.statuses)}
        is_first = self._scanned_at is None
        # Its clock stands still while it cannot see: an outage or a suspended process makes nobody silent.
        self._begun_at += max(0.0, unseen_s - 2 * self._scan_every_s)
        self._scanned_at = now
        known = self.state.participants
        for name, e_tag in seen.items():
            if name != NAME and self._e_tags.get(name) != e_tag and not (is_first and name in known):
                self._changed[name] = None
        self._e_tags = seen

    def _read(self, observations: dict[str, int]) -> list[Incoming]:
        """New records of everyone who may still speak; silent ones are asked only when they beat."""
        state = self.state
        heard = [
            name
            for name in sorted({*state.participants, *observations})
            if name in observations or state.participants[name].is_heard(state.now, state.flow.silence_s)
        ]
        return [incoming for found in fetch_all(self._store, self._read_outbox, heard) for incoming in found]

    def _read_outbox(self, name: str) -> list[Incoming]:
        """What is new in one outbox, at most ``RECORDS_A_TICK``."""
        start = self.state.cursor_of(name)
        found: list[Incoming] = []
        while len(found) < RECORDS_A_TICK:
            incoming = read_incoming(self._store, self.keys, name, start + len(found))
            if incoming is None:
                break
            found.append(incoming)
        return found

    def _snapshot_when_due(self) -> None:
        seq = self.state.ledger.seq
        if seq - self._snapshot_at >= self.config.dataflow.snapshot_every:
            self._store.create(self.keys.snapshot(seq), self.state.snapshot())
            for old in itertools.islice(self._store.list(self.keys.snapshots), SNAPSHOTS_KEPT, None):
                self._store.delete(old.key)  # no decision names a snapshot
            self._snapshot_at = seq
            self._commit("manager.after_snapshot")


def _digest(config: RunConfig) -> str:
    """Names a config: equal configs have equal digests."""
    return hashlib.sha256(config.model_dump_json().encode()).hexdigest()[:32]


def be_frugal() -> None:
    """Look for garbage in cycles seldom: a manager makes many small objects, next to none of them in cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def run_manager(
    store: ObjectStore,
    config: RunConfig,
    *,
    holder: str,
    stop: threading.Event | None = None,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Manage the run until it is stopped (or ``stop`` is set, and another manager may go on).

    Raises ``Fenced`` when a newer manager took over, ``StoreError`` when the store was unreachable for ``OUTAGE_S``.
    """
    manager = Manager(store, config, holder=holder, clock=clock)
    be_frugal()
    pace = Pace(store.url)
    status = r.Status(participant=NAME, role="manager", state="starting")
    outage = _Outage(clock)
    is_told = stop.is_set if stop is not None else lambda: False
    with Beat(store, manager.keys, status, every_s=beat_every_s(store.url, config.dataflow.silence_s)) as beat:
        try:
            while not is_told() and not outage.bears(manager.start):
                sleep(outage.wait_s)
            while not manager.stopped and not is_told():
                if outage.bears(lambda: _tick(manager, pace, beat)):
                    sleep(pace.next_s())
                else:
                    beat.set(state="waiting", waiting="the store is unreachable")
                    sleep(outage.wait_s)
        except Fenced as error:
            beat.set(state="fenced", waiting=str(error))
            raise
        beat.set(state="stopped" if manager.stopped else "ended", waiting="")


def _tick(manager: Manager, pace: Pace, beat: Beat) -> None:
    if manager.tick():
        pace.reset()
    reasons = wait_reasons(manager.state)
    waiting = "; ".join(f"{policy}: {reason}" for policy, reason in reasons.items())
    beat.set(state="running", waiting=waiting, **status_figures(manager.state))


class _Outage:
    """Patience with an unreachable store: backs off, and gives up after ``OUTAGE_S``."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._since: float | None = None
        self.wait_s = 0.05

    def bears(self, act: Callable[[], None]) -> bool:
        """Do it: True if the store answered. Raises what is not worth waiting for."""
        try:
            act()
        except StoreError as error:
            now = self._clock()
            self._since = now if self._since is None else self._since
            if error.kind != "unreachable" or now - self._since > OUTAGE_S:
                raise
            self.wait_s = min(5.0, self.wait_s * 2)
            return False
        self._since, self.wait_s = None, 0.05
        return True
