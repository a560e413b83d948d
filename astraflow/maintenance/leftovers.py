"""What of a run's objects nobody can need: found by its decisions, deleted in an order that loses nothing.

Four things go. Copies that the log of copies does not know: at any time, once the log says that they never count.
Originals that a copy covers, objects that no decision took in and a region's mirrored weights: after ``Stopped`` only.
Before an original goes, its copy is read whole and checked against its digest, so a copy that was damaged since costs
nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from astraflow.compacted import Compacted, GivenUp, append_entry
from astraflow.query.fold import RunFold
from astraflow.records import new_id
from storage.commit_points import commit_point
from storage.errors import DataError, NotFound
from storage.keys import RunKeys
from storage.store import ObjectInfo, ObjectStore
from storage.tables import read_table

log = logging.getLogger("astraflow.maintenance")


@dataclass(frozen=True, slots=True)
class Leftovers:
    """Objects of one kind that can go.

    ``kind``: originals, orphans, copies, mirrored, weights, checkpoints or uploads.
    """

    kind: str
    keys: tuple[str, ...]
    size_bytes: int

    @classmethod
    def of(cls, kind: str, found: Sequence[ObjectInfo]) -> Leftovers:
        return cls(kind, tuple(info.key for info in found), sum(info.size_bytes for info in found))


def find_copies(store: ObjectStore, keys: RunKeys, compacted: Compacted) -> Leftovers:
    """Copies without effect: their maintainer was killed before it said so, or another one was first."""
    known = compacted.keys
    found = [info for info in store.list(keys.compacts) if keys.is_compacted(info.key) and info.key not in known]
    return Leftovers.of("copies", found)


def drop_copies(store: ObjectStore, keys: RunKeys, found: Leftovers, compacted: Compacted) -> Compacted:
    """Delete copies once the log says that they never count; one that was said to count meanwhile stays."""
    if found.keys:
        compacted = append_entry(store, keys, GivenUp(id=new_id(), keys=list(found.keys)), compacted)
        delete(store, [key for key in found.keys if key not in compacted.keys])
    return compacted


def find_trajectories(
    store: ObjectStore, keys: RunKeys, fold: RunFold, compacted: Compacted, *, root: str
) -> tuple[Leftovers, Leftovers]:
    """Originals that ``compacted`` covers, and objects with no admitted group: attempts that lost or never came in.

    An object that a record names lies where that says; one of the same name elsewhere is a write that was given up.
    In a region's store (not ``root``, the run's) only what the run's own pools wrote may go: a run of the same name in
    another root may share the bucket.
    """
    originals, orphans = [], []
    for info in store.list(keys.trajectories):
        if store.url != root and not _is_ours(info, fold):
            continue
        view = fold.objects.get(info.key)
        if info.key in compacted.copies:
            originals.append(info)
        elif view is None or (view.parts.store or root) != store.url:
            orphans.append(info)
    return Leftovers.of("originals", originals), Leftovers.of("orphans", orphans)


def _is_ours(info: ObjectInfo, fold: RunFold) -> bool:
    """Whether a pool of this run wrote it: every life of a pool has a name that no other has."""
    pool, _, _ = info.key.rpartition("/")[2].rpartition("-")
    return pool in fold.pools


def drop_originals(store: ObjectStore, found: Leftovers, compacted: Compacted) -> list[str]:
    """Delete originals whose copies are whole; returns the damaged copies, whose originals stay."""
    damaged = []
    by_copy: dict[str, list[str]] = {}
    for path in found.keys:
        by_copy.setdefault(compacted.copies[path].key, []).append(path)
    for key, paths in sorted(by_copy.items()):
        copy = compacted.copies[paths[0]]
        try:
            rows = read_table(store, key, hash=copy.hash, columns=["path"]).num_rows
            if rows != copy.rows:
                raise DataError(f"it has {rows} rows, its entry says {copy.rows}", where=key, kind="rows")
        except (DataError, NotFound) as error:
            log.warning("the originals of %s stay: %s", key, error)
            damaged.append(key)
            continue
        delete(store, paths)
    return damaged


@dataclass(frozen=True, slots=True)
class Mirrored:
    """A region's copies of a policy's weights; ``oldest`` is the first manifest's key there and ``data`` its bytes."""

    found: Leftovers
    oldest: str
    data: bytes

    def is_of(self, source: ObjectStore) -> bool:
        """Whether ``source``, the run's store, has the same: a manifest has its writer's random id in it."""
        try:
            return source.get(self.oldest) == self.data
        except NotFound:
            return False


def find_mirrored(region: ObjectStore, keys: RunKeys, policy: str) -> Mirrored | None:
    """What lies there of a policy's weights; None if nothing tells whose it is.

    Manifests go last and the newest of them first: what one broke off is still known by the oldest that is there.
    """
    found = {info.key: info for info in region.list(keys.weights(policy))}
    manifests = sorted((key for key in found if key.endswith("/manifest.json")), reverse=True)
    if not manifests:  # a mirror died in its first version, or another run is publishing its own
        return None
    blobs = [info for key, info in found.items() if key not in manifests]
    ordered = [*blobs, *(found[key] for key in manifests)]
    return Mirrored(Leftovers.of("mirrored", ordered), manifests[-1], region.get(manifests[-1]))


def delete(store: ObjectStore, keys: Sequence[str]) -> None:
    """One after the other; broken off anywhere, the rest is found the next time."""
    for key in keys:
        commit_point("maintenance.before_delete")
        store.delete(key)
        commit_point("maintenance.after_delete")
