"""What every participant has: an outbox it alone writes, a beating status object, and a reader of the decisions.

A participant is one life of a pool, trainer, experiment or operator; its name is new for every life
(``pool-us-east-3f2a9c11``), so no two processes ever write one outbox.
"""

from __future__ import annotations

import itertools
import os
import threading
import uuid
from collections.abc import Sequence

from astraflow.records import (
    AnyFact,
    DecisionRecord,
    FactRecord,
    Status,
    decode,
    encode,
    new_id,
)
from storage import is_near
from storage.errors import DataError, StoreError
from storage.keys import RunKeys
from storage.log import NumberedLog
from storage.store import ObjectStore


def new_participant(role: str, name: str = "") -> str:
    """A participant name for a new life: ``role[-name]-8hex``."""
    return "-".join(part for part in (role, name, uuid.uuid4().hex[:8]) if part)


class Outbox:
    """Appends facts to one participant's log. Not thread-safe: one writer, one thread at a time."""

    def __init__(self, store: ObjectStore, keys: RunKeys, participant: str) -> None:
        self.participant = participant
        self._log = NumberedLog(store, lambda seq: keys.outbox(participant, seq))
        self._next = 0
        self._undecided: FactRecord | None = None

    def append(self, facts: Sequence[AnyFact]) -> int:
        """Write one record with all ``facts`` and return its number. Retries lost answers by read-back.

        After an error the record may be in the log or not: the next call first sends the same bytes again, and with
        the same facts that is all it does. So no facts ever stand there twice.
        """
        unsaid, said = self._undecided, list(facts)
        if unsaid is not None:
            number = self._send(unsaid)
            if unsaid.facts == said:
                return number
        return self._send(FactRecord(id=new_id(), participant=self.participant, facts=said))

    def _send(self, record: FactRecord) -> int:
        self._undecided = record
        self._next = self._log.append(encode(record), start=self._next) + 1
        self._undecided = None
        return self._next - 1


class DecisionsReader:
    """Reads the decisions log in order from number ``start`` on."""

    def __init__(self, store: ObjectStore, keys: RunKeys, start: int = 0) -> None:
        self._log = NumberedLog(store, keys.decision)
        self.cursor = start

    @classmethod
    def from_tail(cls, store: ObjectStore, keys: RunKeys) -> DecisionsReader:
        """A reader that starts at the newest snapshot's number: for who needs only what comes now."""
        newest = next(iter(store.list(keys.snapshots, limit=1)), None)
        return cls(store, keys, keys.snapshot_seq(newest.key) + 1 if newest else 0)

    def poll(self, limit: int = 256) -> list[tuple[int, DecisionRecord]]:
        """The records that are there from the cursor on, at most ``limit``; moves the cursor behind them."""
        records: list[tuple[int, DecisionRecord]] = []
        try:
            for seq, data in itertools.islice(self._log.read_from(self.cursor), limit):
                records.append((seq, decode(data, DecisionRecord, where=self._log.key(seq))))
                self.cursor = seq + 1
        except (StoreError, DataError):
            if not records:
                raise
            # the cursor has passed those already: they must be returned; the error comes again with the next call
        return records


class Beat:
    """Writes the status object every ``every_s`` from its own thread. Advisory: store errors are only counted."""

    def __init__(self, store: ObjectStore, keys: RunKeys, status: Status, *, every_s: float) -> None:
        self.status = status
        self.failures = 0
        self._store = store
        self._key = keys.status(status.participant)
        self._every_s = every_s
        self._end = threading.Event()
        self._lock = threading.Lock()
        self._words = threading.Lock()  # who publishes beside the training speaks too
        self._thread = threading.Thread(target=self._run, name="beat", daemon=True)
        status.pid = os.getpid()

    def __enter__(self) -> Beat:
        self.write()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join(timeout=self._every_s + 5)
        self.write()

    def write(self) -> None:
        """Write the status now, with the next beat number."""
        with self._lock:
            with self._words:
                self.status.beat += 1
                told = encode(self.status)
            try:
                self._store.put(self._key, told)
            except StoreError:
                self.failures += 1

    def set(self, *, state: str | None = None, waiting: str | None = None, **figures: float) -> None:
        """Change what the next beat says."""
        with self._words:
            if state is not None:
                self.status.state = state
            if waiting is not None:
                self.status.waiting = waiting
            self.status.figures = {**self.status.figures, **figures}

    def _run(self) -> None:
        while not self._end.wait(self._every_s):
            self.write()


def beat_every_s(store_url: str, silence_s: float) -> float:
    """Seconds between beats: 2 locally, 15 elsewhere, and never more than a quarter of ``silence_s``."""
    usual_s = 2.0 if is_near(store_url) else 15.0
    return min(usual_s, silence_s / 4)
