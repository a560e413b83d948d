"""What of a policy's weights nobody can need any more, and its removal.

Two things become garbage: blobs that no manifest or record names (a crash or a lost race left them), and, when
somebody says which versions are to stay, every object that no cheapest way to those versions uses. Manifests
stay, so that versions remain gapless and a version that was given up is known to have been.

Invariant: before anything is deleted, every version that stays is led to by objects that are there in their full
size, from nothing and from the kept version before it; none of these objects is ever deleted. So a collection that
is broken off anywhere has done no harm, and another one finishes it.
While a run goes on nothing may be collected: blobs without a manifest may be those of a publish under way.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise

from astraflow.weights.catch_up import CatchUp, Road
from astraflow.weights.manifests import hop_folder
from astraflow.weights.subscriber import Subscriber
from storage.errors import ConfigError, DataError, NotFound
from storage.keys import RunKeys
from storage.store import ObjectStore


@dataclass(frozen=True, slots=True)
class Garbage:
    """What can go: keys in the order of their deletion, with their size in all; and what stays."""

    policy: str
    kept_versions: tuple[int, ...]
    keys: tuple[str, ...]
    size_bytes: int
    kept_bytes: int


def find_garbage(store: ObjectStore, keys: RunKeys, policy: str, *, keep: Collection[int] | None = None) -> Garbage:
    """What nobody can need if the versions in ``keep`` stay (None: all of them). The newest always stays.

    Raises ``ConfigError`` for a version that does not exist, ``DataError`` if one that is to stay can not be had.
    """
    sizes = {info.key: info.size_bytes for info in store.list(keys.weights(policy))}
    reader = Subscriber(store, keys, policy)
    newest = reader.newest()
    kept = tuple(sorted({*(range(newest + 1) if keep is None else keep), *([newest] if newest >= 0 else [])}))
    if any(not 0 <= version <= newest for version in kept):
        raise ConfigError(
            f"policy {policy} has no version {kept[0] if kept[0] < 0 else kept[-1]}",
            where=keys.weights(policy),
            remedy=f"Its versions go from 0 to {newest}",
            kind="version",
        )
    places = _Places(reader, keys, policy, sizes)
    needed = set(places.named(newest) if keep is None else places.used(kept))
    needed |= {key for key in sizes if key.endswith("/manifest.json")}
    gone = sorted(sizes.keys() - needed, key=lambda key: (keys.merge_span(key) is None, key))  # records first
    gone_bytes = sum(sizes[key] for key in gone)
    return Garbage(policy, kept, tuple(gone), gone_bytes, sum(sizes.values()) - gone_bytes)


def collect(store: ObjectStore, garbage: Garbage) -> None:
    """Delete what was found. A store that errs leaves the rest for another time."""
    for key in garbage.keys:
        store.delete(key)


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the objects of versions lie, and which of them are there."""

    reader: Subscriber
    keys: RunKeys
    policy: str
    sizes: dict[str, int]

    def named(self, newest: int) -> Iterator[str]:
        """Everything that a manifest or a merge's record names, and the records.

        What a damaged manifest names can't be known: all that lies in its folder.
        """
        for version in range(newest + 1):
            folder = self.keys.version(self.policy, version)
            try:
                manifest = self.reader.manifest(version)
            except (DataError, NotFound):
                yield from (key for key in self.sizes if key.startswith(folder))
                continue
            yield from (folder + blob.name for blob in (*manifest.delta, *manifest.snapshot))
        for merge in self.reader.merges().all():
            yield self.keys.merge(self.policy, merge.base, merge.version)
            yield from (self.keys.merged(self.policy) + blob.name for blob in merge.blobs)

    def used(self, kept: tuple[int, ...]) -> Iterator[str]:
        """What the cheapest ways to ``kept`` use: from nothing, and from each version to the next."""
        for version in kept:
            yield from self._way(version, -1)
        for before, after in pairwise(kept):
            yield from self._way(after, before)

    def _way(self, version: int, held: int) -> list[str]:
        """Keys of the cheapest way whose objects are all there."""
        avoid: set[Road] = set()
        while True:
            found: list[str] = []
            for road, objects, record in self._stages(self.reader.plan(version, held, avoid)):
                if any(self.sizes.get(key) != size_bytes for key, size_bytes in objects):
                    avoid.add(road)
                    break
                found += [key for key, _ in objects] + record
            else:
                return found

    def _stages(self, plan: CatchUp) -> Iterator[tuple[Road, list[tuple[str, int]], list[str]]]:
        """A plan's objects in order: road, blobs with their sizes, and a merge's record."""
        keys, policy = self.keys, self.policy
        if plan.snapshot:
            folder = keys.version(policy, plan.snapshot.version)
            blobs = [(folder + blob.name, blob.size_bytes) for blob in plan.snapshot.snapshot]
            yield (-1, plan.snapshot.version), blobs, []
        for hop in plan.deltas:
            record = [keys.merge(policy, hop.base, hop.version)] if hop.merged else []
            yield hop.road, [(hop_folder(keys, policy, hop) + blob.name, blob.size_bytes) for blob in hop.blobs], record
