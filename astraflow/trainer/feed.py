"""The trainer's ear at the decisions log: recorded batches of its policy, and the word to end.

It reads ahead: every ``Batched`` that stands in the log is known before it is needed, so that the next batch's
objects can be read while this one trains. Two threads may use it: who trains, and who reads ahead meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Collection

from astraflow.dataflow.step import BARREN
from astraflow.participant import DecisionsReader
from astraflow.records import EVERYWHERE, Batched, DecisionRecord, DrainRequested, Paused, Resumed, Stopped
from storage.keys import RunKeys
from storage.store import ObjectStore


class BatchFeed:
    """Batches of ``policy`` from number ``first`` on, which stands at or behind decision ``cursor``."""

    def __init__(
        self,
        store: ObjectStore,
        keys: RunKeys,
        policy: str,
        participant: str,
        *,
        cursor: int,
        first: int,
        paused: Collection[str] = (),
    ) -> None:
        self._reader = DecisionsReader(store, keys, cursor)
        self._asking = threading.Lock()  # of who polls
        self._lock = threading.RLock()  # of what was polled: nobody holds it while he waits for the store
        self._policy = policy
        self._participant = participant
        self._first = first
        self._batches: dict[int, tuple[int, Batched]] = {}
        self.end_reason: str | None = None
        self._is_drained_alone = False
        self._paused = set(paused)  # what is in force at the cursor, named as ``paused`` says
        self._paused_at: dict[int, tuple[str, ...]] = {}  # by decision: what was in force before it

    def poll(self) -> None:
        """Take in all decisions that are there."""
        with self._asking:
            while records := self._reader.poll():
                with self._lock:
                    for seq, record in records:
                        self._take(seq, record)

    def _take(self, seq: int, record: DecisionRecord) -> None:
        self._paused_at[seq] = self.paused
        for decision in record.decisions:
            match decision:
                case Batched(policy=self._policy, n=n) if n >= self._first:
                    self._batches[n] = (seq, decision)
                case DrainRequested(participants=[]):
                    self.end_reason = "drained"
                    self._is_drained_alone = False
                case DrainRequested(participants=names) if self._participant in names:
                    self.end_reason = "drained"
                    self._is_drained_alone = True
                case Paused(reason=reason) if self._concerns(decision) and not reason.startswith(BARREN):
                    self._paused.add(decision.region or decision.policy)
                case Resumed(region=region) if region in ("", EVERYWHERE):  # one region's may have a policy's name
                    self._paused.discard(decision.region or decision.policy)
                case Stopped():
                    self.end_reason = "stopped"
                case _:
                    pass

    def _concerns(self, pause: Paused) -> bool:
        """Whether nothing comes for the policy because of it: while one region is paused, others play."""
        return pause.region == EVERYWHERE or (not pause.region and pause.policy in ("", self._policy))

    @property
    def paused(self) -> tuple[str, ...]:
        """The pauses in force now: policies, an empty name for all, or ``EVERYWHERE`` for all regions."""
        with self._lock:
            return tuple(sorted(self._paused))

    def paused_at(self, cursor: int) -> tuple[str, ...]:
        """The pauses in force before decision ``cursor``, for who begins to read there again."""
        with self._lock:
            return self._paused_at.get(cursor, self.paused)

    @property
    def is_moved(self) -> bool:
        """Whether this participant alone was asked to leave: the policy goes on with another."""
        return self._is_drained_alone and self.end_reason == "drained"

    @property
    def is_paused(self) -> bool:
        """Whether there is no batch because somebody wanted none: no deadline runs meanwhile."""
        return bool(self._paused)

    def get(self, n: int) -> Batched | None:
        """Batch ``n`` if it stands in what was polled."""
        found = self._batches.get(n)
        return found[1] if found else None

    def done(self, n: int) -> int:
        """Forget batches up to ``n`` and return the number of the decision that held ``n``: where to read from again.

        Batches are consecutive, so every later one stands in that record or behind it.
        """
        with self._lock:
            cursor = self._batches[n][0]
            self._first = n + 1
            for number in [number for number in self._batches if number <= n]:
                del self._batches[number]
            for seq in [seq for seq in self._paused_at if seq < cursor]:
                del self._paused_at[seq]
        return cursor
