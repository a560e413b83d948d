"""Folding a run's logs: recovery, what readers use, and the proof that decisions follow from their inputs.

Recovery takes decisions as they are recorded and never decides again. ``verify_run`` does the opposite: it runs
``step`` on the recorded inputs and compares, so any hidden input (a clock, a set's order) shows.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec

from astraflow import records as r
from astraflow.config import RunConfig
from astraflow.dataflow.participants import Participant
from astraflow.dataflow.state import RunState
from astraflow.dataflow.step import Incoming, step
from storage.errors import DataError, NotFound
from storage.fetch import fetch_all
from storage.keys import RunKeys
from storage.log import NumberedLog
from storage.store import ObjectStore

SNAPSHOTS_TRIED = 3
"""Newest snapshots that are looked at before the whole log is folded."""


def read_incoming(store: ObjectStore, keys: RunKeys, participant: str, seq: int) -> Incoming | None:
    """One object of an outbox, or None while there is none. Undecodable bytes are told, not raised."""
    key = keys.outbox(participant, seq)
    try:
        data = store.get(key)
    except NotFound:
        return None
    try:
        return Incoming(participant, seq, r.decode(data, r.FactRecord, where=key))
    except DataError as error:
        return Incoming(participant, seq, None, error.what)


def read_inputs(store: ObjectStore, keys: RunKeys, state: RunState, record: r.DecisionRecord) -> list[Incoming]:
    """The outbox objects that a decision record took in, in its order. Raises ``DataError`` if one is missing."""
    wanted = [
        (name, seq) for name in sorted(record.cursors) for seq in range(state.cursor_of(name), record.cursors[name])
    ]
    return fetch_all(store, lambda item: _read_taken(store, keys, *item), wanted)


def _read_taken(store: ObjectStore, keys: RunKeys, name: str, seq: int) -> Incoming:
    incoming = read_incoming(store, keys, name, seq)
    if incoming is None:
        raise DataError(
            "a decision took this record in, and it is not there",
            where=keys.outbox(name, seq),
            remedy="The run's logs are damaged; restore the object from a copy of the bucket",
            kind="log",
        )
    return incoming


def fold(
    state: RunState,
    record: r.DecisionRecord,
    inputs: list[Incoming],
    *,
    watch: Callable[[r.AnyDecision], None] | None = None,
) -> None:
    """Fold one recorded decision record with the facts that it took in; ``watch`` sees each decision before it."""
    state.begin(record.now)
    state.observe(record.observations)
    rejected = {(d.participant, d.seq) for d in record.decisions if isinstance(d, r.Rejected)}
    for incoming in inputs:
        _known(state, incoming.participant).cursor = incoming.seq + 1
        if incoming.record is not None and (incoming.participant, incoming.seq) not in rejected:
            state.absorb(incoming.participant, incoming.record)
    for decision in record.decisions:
        if watch is not None:
            watch(decision)
        state.apply(decision)
    state.settle()
    state.ledger.seq += 1


def _known(state: RunState, name: str) -> Participant:
    """A participant that some record has seen. Raises ``DataError`` if none did."""
    found = state.participants.get(name)
    if found is None:
        raise DataError(
            f"{name} is spoken of and was never seen",
            where=f"decision record {state.ledger.seq + 1}",
            remedy="The logs do not belong together: was a record changed or copied?",
            kind="log",
        )
    return found


def read_decisions(store: ObjectStore, keys: RunKeys, start: int) -> Iterator[r.DecisionRecord]:
    """The decisions log from number ``start`` to its present end."""
    log = NumberedLog(store, keys.decision)
    for seq, data in log.read_from(start):
        yield r.decode(data, r.DecisionRecord, where=log.key(seq))


def newest_snapshot(store: ObjectStore, keys: RunKeys, config: RunConfig) -> RunState:
    """The state of the newest usable snapshot, or the empty state."""
    for info in store.list(keys.snapshots, limit=SNAPSHOTS_TRIED):
        try:
            return RunState.restore(config, store.get(info.key), where=info.key)
        except (DataError, NotFound):
            continue
    return RunState(config)


def fold_run(store: ObjectStore, keys: RunKeys, config: RunConfig, *, from_snapshot: bool = True) -> RunState:
    """The state after all decisions that are in the store now."""
    state = newest_snapshot(store, keys, config) if from_snapshot else RunState(config)
    for record in read_decisions(store, keys, state.ledger.seq + 1):
        fold(state, record, read_inputs(store, keys, state, record))
    return state


@dataclass(slots=True)
class Proof:
    """What was decided again and came out the same; ``identical_bytes`` counts records that are so byte for byte.

    Fewer than ``records`` means that another version of the code wrote some of them, with fewer or other fields.
    """

    records: int = 0
    decisions: int = 0
    identical_bytes: int = 0


def verify_run(
    store: ObjectStore,
    keys: RunKeys,
    config: RunConfig,
    *,
    decide: Callable[..., list[r.AnyDecision]] = step,
) -> int:
    """Decide everything again from the recorded inputs and return the number of records compared.

    Raises ``DataError`` (kind ``replay``) naming the first decision that differs.
    """
    return prove_run(store, keys, config, decide=decide).records


def prove_run(
    store: ObjectStore,
    keys: RunKeys,
    config: RunConfig,
    *,
    decide: Callable[..., list[r.AnyDecision]] = step,
) -> Proof:
    """As ``verify_run``, with what was compared."""
    state, proof = RunState(config), Proof()
    log = NumberedLog(store, keys.decision)
    for seq, data in log.read_from(0):
        record = r.decode(data, r.DecisionRecord, where=log.key(seq))
        inputs = read_inputs(store, keys, state, record)
        if any(isinstance(decision, r.Epoch) for decision in record.decisions):
            fold(state, record, inputs)  # a takeover is not a step
            decided = record.decisions
        else:
            for incoming in inputs:
                if incoming.participant not in record.observations:
                    _known(state, incoming.participant)
            decided = decide(state, inputs, record.observations, record.now)
            state.ledger.seq += 1
            _compare(decided, record, log.key(seq))
        proof.records += 1
        proof.decisions += len(decided)
        proof.identical_bytes += r.encode(msgspec.structs.replace(record, decisions=decided)) == data
    return proof


def _compare(decided: list[r.AnyDecision], record: r.DecisionRecord, where: str) -> None:
    for index, pair in enumerate(itertools.zip_longest(decided, record.decisions)):
        if pair[0] != pair[1]:
            raise DataError(
                f"decision {index} is {pair[1]}, deciding again gives {pair[0]}",
                where=where,
                remedy="Replay with the code and config that the epoch before names",
                kind="replay",
            )
