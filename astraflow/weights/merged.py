"""Merged deltas: the change over many versions as one object, found beside the versions.

A merge is made after its version is out, so no manifest can name it. It has a record of its own,
created only if absent once its blobs are there; readers find the records by one LIST in the order of the
versions that they end at. Nobody needs a merge: whatever is wrong with one, the singles below it remain.

Invariant: a record that decodes names blobs that were whole before it was created, and both its digests are
those of versions that were published.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from typing import Literal

import blake3
import msgspec

from astraflow.weights.manifest import Blob
from storage.errors import DataError, NotFound
from storage.keys import RunKeys
from storage.store import ObjectStore

FORMAT: Literal[1] = 1


class Merge(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The change from version ``base`` to ``version``, at least two further, of one policy and one layout."""

    policy: str
    base: int
    version: int
    base_digest: str
    digest: str
    layout: str
    blobs: tuple[Blob, ...]  # empty: the weights came back to what they were
    size_bytes: int
    changed: int  # words that differ
    writer: str
    format: Literal[1] = 1
    check: str = ""  # blake3 of this record with an empty check

    def __post_init__(self) -> None:
        if not 0 <= self.base <= self.version - 2 or self.size_bytes != sum(blob.size_bytes for blob in self.blobs):
            raise ValueError(f"a merge from {self.base} to {self.version} of {self.size_bytes} bytes")


def seal_merge(merge: Merge) -> Merge:
    """The record with its ``check`` filled in."""
    empty = msgspec.structs.replace(merge, check="")
    return msgspec.structs.replace(merge, check=blake3.blake3(encode_merge(empty)).hexdigest())


def encode_merge(merge: Merge) -> bytes:
    """The stored bytes; the same record always gives the same bytes."""
    return msgspec.json.encode(merge, order="deterministic")


def decode_merge(data: bytes, *, where: str, policy: str, base: int, version: int) -> Merge:
    """Parse the record stored as the merge from ``base`` to ``version``.

    Raises ``DataError`` naming ``where``: kind ``undecodable``, or ``digest`` when it is damaged or another's.
    """
    remedy = "Nobody needs a merge: delete the record, and readers take the single deltas"
    try:
        merge = msgspec.json.decode(data, type=Merge)
    except (msgspec.DecodeError, ValueError) as error:
        raise DataError(
            f"not a merge in format {FORMAT}: {error}", where=where, remedy=remedy, kind="undecodable"
        ) from error
    if seal_merge(merge) != merge or (merge.policy, merge.base, merge.version) != (policy, base, version):
        raise DataError("the record of a merge is damaged or another's", where=where, remedy=remedy, kind="digest")
    return merge


class Merges:
    """The merges of one policy that end above version ``after``: one LIST when first asked, one GET for each used.

    Records that are damaged or gone are left out.
    """

    def __init__(self, store: ObjectStore, keys: RunKeys, policy: str, *, after: int = -1) -> None:
        self._store = store
        self._keys = keys
        self._policy = policy
        self._after = after
        self._spans: list[tuple[int, int]] | None = None
        self._read: dict[tuple[int, int], Merge | None] = {}

    def all(self) -> Iterator[Merge]:
        """Every merge whose record can be read, by version."""
        for span in self.spans():
            yield from self._known([span])

    def ending(self, version: int, *, lowest: int = 0) -> list[Merge]:
        """Merges that lead to ``version``, from versions ≥ ``lowest``."""
        return self._known([span for span in self._by_end.get(version, []) if span[0] >= lowest])

    def starting(self, version: int, *, highest: int | None = None) -> list[Merge]:
        """Merges that lead away from ``version``, to versions ≤ ``highest``."""
        found = self._by_start.get(version, [])
        return self._known([span for span in found if highest is None or span[1] <= highest])

    def spans(self) -> list[tuple[int, int]]:
        """(base, version) of all records, by version."""
        if self._spans is None:
            folder = self._keys.merged(self._policy)
            after = self._keys.merge(self._policy, 10**8 - 1, self._after) if self._after >= 0 else None
            found = (self._keys.merge_span(info.key) for info in self._store.list(folder, after=after))
            self._spans = [span for span in found if span is not None]
        return self._spans

    def read(self, span: tuple[int, int]) -> Merge:
        """The record of one span. Raises ``NotFound`` or ``DataError``."""
        base, version = span
        where = self._keys.merge(self._policy, base, version)
        return decode_merge(self._store.get(where), where=where, policy=self._policy, base=base, version=version)

    @cached_property
    def _by_end(self) -> dict[int, list[tuple[int, int]]]:
        return _grouped(self.spans(), 1)

    @cached_property
    def _by_start(self) -> dict[int, list[tuple[int, int]]]:
        return _grouped(self.spans(), 0)

    def _known(self, spans: list[tuple[int, int]]) -> list[Merge]:
        for span in spans:
            if span not in self._read:
                try:
                    self._read[span] = self.read(span)
                except (DataError, NotFound):
                    self._read[span] = None
        return [merge for span in spans if (merge := self._read[span]) is not None]


def _grouped(spans: list[tuple[int, int]], place: int) -> dict[int, list[tuple[int, int]]]:
    grouped: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for span in spans:
        grouped[span[place]].append(span)
    return grouped
