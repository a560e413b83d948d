"""Which trajectory objects were copied together into one, as a log beside them.

A closed version's rows lie in many small objects. Maintenance copies them into one under ``compact/`` and says so in
a numbered log, ``compact/log/``; readers prefer the copy, and originals may go once the run is over.

Invariant: each original is covered by at most one copy, for ever. The log decides: an entry has effect only if its
object was not given up and none of its paths is covered by an entry before it. So two maintainers at once do no harm,
and a copy without an entry is not there.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from storage.errors import DataError
from storage.keys import RunKeys
from storage.log import NumberedLog
from storage.store import ObjectStore


class Entry(msgspec.Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base of the log's entries. ``id`` tells an entry from every other one."""

    id: str


class Copied(Entry, frozen=True, kw_only=True, tag="Copied"):
    """The rows of ``paths`` lie, in this order and with a column ``path``, in ``key``."""

    key: str
    policy: str
    version: int
    size_bytes: int
    hash: str
    rows: int
    paths: list[str]
    paths_bytes: int


class GivenUp(Entry, frozen=True, kw_only=True, tag="GivenUp"):
    """Copies that no entry before this one made effective: none after it does, so they may be deleted."""

    keys: list[str]


_DECODER = msgspec.json.Decoder(Copied | GivenUp)


@dataclass(slots=True)
class Compacted:
    """The fold of one store's log: ``copies`` by the original's path; ``tail`` is the next free number."""

    copies: dict[str, Copied] = field(default_factory=dict)
    given_up: set[str] = field(default_factory=set)
    tail: int = 0

    @property
    def keys(self) -> set[str]:
        """The objects that readers read."""
        return {copy.key for copy in self.copies.values()}

    def take(self, data: bytes, where: str) -> None:
        """Fold the next entry. Raises ``DataError``: what an unreadable entry covers is not known."""
        try:
            entry = _DECODER.decode(data)
        except msgspec.DecodeError as error:
            raise DataError(
                f"not an entry of the log of copies: {error}",
                where=where,
                remedy="Upgrade AstraFlow here: the entry may be of a newer one",
                kind="undecodable",
            ) from error
        self.tail += 1
        if isinstance(entry, GivenUp):
            self.given_up |= set(entry.keys) - self.keys
        elif entry.key not in self.given_up and not self.copies.keys() & set(entry.paths):
            self.copies.update(dict.fromkeys(entry.paths, entry))


def compact_log(store: ObjectStore, keys: RunKeys) -> NumberedLog:
    """The log of the copies that lie in ``store``."""
    return NumberedLog(store, keys.compact_entry)


def read_compacted(store: ObjectStore, keys: RunKeys, known: Compacted | None = None) -> Compacted:
    """The log's fold up to its present end; goes on from ``known``. A run without copies costs one request."""
    compacted = known or Compacted()
    log = compact_log(store, keys)
    for seq, data in log.read_from(compacted.tail):
        compacted.take(data, log.key(seq))
    return compacted


def append_entry(store: ObjectStore, keys: RunKeys, entry: Copied | GivenUp, known: Compacted) -> Compacted:
    """Say it at the log's end, and what the log says then: that tells whether the entry had an effect."""
    compact_log(store, keys).append(msgspec.json.encode(entry), known.tail)
    return read_compacted(store, keys, known)
