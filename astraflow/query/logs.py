"""The decisions of a run and the facts they were made on, read from the store.

A fact counts only once a decision record's cursor has passed it, and only if it was not rejected: what lies beyond
the cursors is not yet part of the run. Nothing is decided here, so a reader cannot disagree with the manager.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from astraflow.records import DecisionRecord, FactRecord, Rejected, decode
from storage.errors import DataError, NotFound
from storage.fetch import fetch_all
from storage.keys import RunKeys
from storage.store import ObjectStore

_RECORDS_AT_ONCE = 256  # bounds the memory of a first reading


@dataclass(frozen=True, slots=True)
class SeenFacts:
    """One outbox record that took effect."""

    participant: str
    seq: int
    record: FactRecord


@dataclass(frozen=True, slots=True)
class SeenDecision:
    """One decision record with the outbox records that its cursors took in, in (participant, number) order."""

    seq: int
    record: DecisionRecord
    facts: list[SeenFacts]


class RunLogReader:
    """Reads a run's logs from where it stopped the last time."""

    def __init__(self, store: ObjectStore, keys: RunKeys) -> None:
        self._store = store
        self._keys = keys
        self._next = 0
        self._cursors: dict[str, int] = {}

    def advance(self) -> Iterator[SeenDecision]:
        """The decision records written since the last call, each with the facts that it took in.

        After an error the next call begins where this one stopped.
        """
        keys = self._new_decision_keys()
        for start in range(0, len(keys), _RECORDS_AT_ONCE):
            yield from self._read(keys[start : start + _RECORDS_AT_ONCE])

    def _read(self, keys: Sequence[str]) -> list[SeenDecision]:
        cursors = dict(self._cursors)
        found = fetch_all(self._store, self._store.get, keys)
        records = [decode(data, DecisionRecord, where=key) for key, data in zip(keys, found, strict=True)]
        ranges = [_move_cursors(cursors, record) for record in records]
        outbox_keys = [self._keys.outbox(who, seq) for taken in ranges for who, seq in taken]
        facts = dict(zip(outbox_keys, self._get_facts(outbox_keys), strict=True))
        seen = []
        for seq, (record, taken) in enumerate(zip(records, ranges, strict=True), start=self._next):
            seen.append(SeenDecision(seq, record, self._effective(record, taken, facts)))
        self._next, self._cursors = self._next + len(records), cursors
        return seen

    def _new_decision_keys(self) -> list[str]:
        """Keys of the gapless stretch of records from the next number on."""
        prefix = self._keys.decision(0).rpartition("/")[0] + "/"
        after = self._keys.decision(self._next - 1) if self._next else None
        found: list[str] = []
        for info in self._store.list(prefix, after=after):
            if info.key != self._keys.decision(self._next + len(found)):
                break
            found.append(info.key)
        return found

    def _get_facts(self, keys: list[str]) -> list[bytes]:
        try:
            return fetch_all(self._store, self._store.get, keys)
        except NotFound as error:
            raise DataError(
                "an outbox record that a decision was made on is gone",
                where=error.where,
                remedy="Outboxes and decisions of a run must be kept together: copy the whole run",
                kind="missing",
            ) from error

    def _effective(
        self, record: DecisionRecord, taken: list[tuple[str, int]], facts: dict[str, bytes]
    ) -> list[SeenFacts]:
        """The records of ``taken`` that had an effect: decodable and not rejected."""
        rejected = {(d.participant, d.seq) for d in record.decisions if isinstance(d, Rejected)}
        effective = []
        for participant, seq in taken:
            if (participant, seq) in rejected:
                continue
            key = self._keys.outbox(participant, seq)
            try:
                effective.append(SeenFacts(participant, seq, decode(facts[key], FactRecord, where=key)))
            except DataError:
                continue  # a manager rejects what it cannot read; a newer writer's record is no reason to stop
        return effective


def _move_cursors(cursors: dict[str, int], record: DecisionRecord) -> list[tuple[str, int]]:
    """Move ``cursors`` to where the record has read; the (participant, number) of what it took in."""
    taken = []
    for participant, cursor in sorted(record.cursors.items()):
        start = cursors.get(participant, 0)
        taken += [(participant, seq) for seq in range(start, cursor)]
        cursors[participant] = max(start, cursor)
    return taken
