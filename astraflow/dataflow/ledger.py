"""The manager's whole state as plain data: what a snapshot holds, exactly, order of dictionaries included."""

from __future__ import annotations

from typing import Any

import msgspec

from astraflow.dataflow.evaluation import EvalBook
from astraflow.dataflow.leases import LeaseBook
from astraflow.dataflow.participants import Participant
from astraflow.dataflow.policy_queue import PolicyQueue
from astraflow.dataflow.scale_book import ScaleBook
from storage.errors import DataError

SNAPSHOT_FORMAT = 3


class Ledger(msgspec.Struct):
    """What a snapshot holds. Field names are the stored format."""

    format: int = SNAPSHOT_FORMAT
    seq: int = -1  # the last decision record that is folded in
    epoch: int = 0
    now: float = 0.0
    config_hash: str = ""
    code: str = ""
    data_hash: str = ""
    policies: dict[str, PolicyQueue] = {}
    participants: dict[str, Participant] = {}
    leases: LeaseBook = msgspec.field(default_factory=LeaseBook)
    evaluations: EvalBook = msgspec.field(default_factory=EvalBook)
    paused: bool = False
    drain_reason: str = ""
    draining_since: float | None = None
    stopped: bool = False
    curator: dict[str, Any] = {}
    replays: dict[str, dict[str, Any]] = {}
    scaling: ScaleBook = msgspec.field(default_factory=ScaleBook)


def decode_ledger(data: bytes, policies: list[str], *, where: str) -> Ledger:
    """A snapshot's ledger. Raises ``DataError`` (kind ``snapshot``) if it is not one of this format and run."""
    try:
        ledger = msgspec.json.decode(data, type=Ledger)
    except (msgspec.DecodeError, ValueError) as error:
        raise _unusable(f"not a snapshot: {error}", where) from error
    if ledger.format != SNAPSHOT_FORMAT or sorted(ledger.policies) != policies:
        raise _unusable("a snapshot of another format or other policies", where)
    return ledger


def _unusable(what: str, where: str) -> DataError:
    return DataError(what, where=where, remedy="An older snapshot or the whole log is folded instead", kind="snapshot")
