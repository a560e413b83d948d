"""Which objects a reader fetches to get from the version it has to the one it wants.

Versions are places, objects are roads: a single delta between neighbours, a merged one over many, both in either
direction, and a snapshot from anywhere. The cheapest way by bytes is found by Dijkstra's algorithm from the
wanted version backwards, so that manifests are read only as far as a cheaper way could still be found.
A road that turned out to be broken is left out by planning again with its name in ``avoid``.

Invariant: a plan's first hop starts at the version held or at a snapshot, each next one where the last ended, and
the last ends at the wanted version.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from astraflow.weights.manifest import Blob, Manifest
from astraflow.weights.merged import Merge, Merges
from storage.errors import DataError, NotFound

Road = tuple[int, int]
"""An object's name in a plan: (base, version) of a delta, single or merged; (-1, version) of a snapshot."""
NOTHING = -1  # the place of a reader that holds no version


@dataclass(frozen=True, slots=True)
class Hop:
    """One delta of a plan: from ``base`` to ``version``, or, as an ``inverse``, from ``version`` back to ``base``."""

    base: int
    version: int
    base_digest: str
    digest: str
    layout: str
    blobs: tuple[Blob, ...]
    merged: bool = False
    inverse: bool = False

    @property
    def road(self) -> Road:
        """The object's name."""
        return (self.base, self.version)

    @property
    def source(self) -> int:
        """The version it starts from."""
        return self.version if self.inverse else self.base

    @property
    def target(self) -> int:
        """The version it leads to."""
        return self.base if self.inverse else self.version

    @property
    def source_digest(self) -> str:
        """The digest of the weights it starts from."""
        return self.digest if self.inverse else self.base_digest

    @property
    def size_bytes(self) -> int:
        """What is downloaded for it."""
        return sum(blob.size_bytes for blob in self.blobs)


@dataclass(frozen=True, slots=True)
class CatchUp:
    """A way to a version: a snapshot to start from (None: from the copy held), then deltas in order."""

    snapshot: Manifest | None
    deltas: tuple[Hop, ...]
    size_bytes: int


def plan_catch_up(
    read: Callable[[int], Manifest],
    wanted: int,
    held: int,
    *,
    merges: Merges | None = None,
    avoid: Collection[Road] = (),
    highest: int = -1,
    snapshots: bool = True,
    lowest: int = 0,
) -> CatchUp:
    """The cheapest way to version ``wanted`` from version ``held`` (-1: nothing). ``read`` gives manifests.

    Ways lead back only from versions up to ``highest``, or up to the version held, and through none below ``lowest``.
    Raises what ``read`` raises for
    ``wanted``, and ``DataError`` when no way is left, which says what was wrong with the first manifest not read.
    """
    search = _Search(read, merges, frozenset(avoid), max(highest, held), wanted, snapshots, lowest)
    return search.run(wanted, held)


@dataclass(slots=True)
class _Search:
    """One search. Its queue holds (bytes, hops, place): among equal ways the one of fewer objects is taken."""

    read: Callable[[int], Manifest]
    merges: Merges | None
    avoid: frozenset[Road]
    highest: int
    wanted: int
    snapshots: bool
    lowest: int
    trouble: DataError | NotFound | None = None

    def run(self, wanted: int, held: int) -> CatchUp:
        queue: list[tuple[int, int, int]] = [(0, 0, wanted)]
        found: dict[int, tuple[int, int]] = {wanted: (0, 0)}
        after: dict[int, Hop | Manifest] = {}  # place -> what leads from it towards the wanted version
        while queue:
            spent, hops, place = heapq.heappop(queue)
            if place in (held, NOTHING):
                return _plan(place, after, spent)
            if (spent, hops) > found[place]:
                continue
            for source, size_bytes, road in self._roads_to(place):
                cost = (spent + size_bytes, hops + 1)
                if source not in found or cost < found[source]:
                    found[source], after[source] = cost, road
                    heapq.heappush(queue, (*cost, source))
        raise self._no_way(wanted, held)

    def _roads_to(self, place: int) -> Iterator[tuple[int, int, Hop | Manifest]]:
        """What leads to ``place``: where from, for how many bytes, by what."""
        manifest = self._manifest(place)
        if manifest is None:
            return
        if self.snapshots and manifest.snapshot and (NOTHING, place) not in self.avoid:
            yield NOTHING, manifest.snapshot_bytes, manifest
        hops = [hop_of(manifest)]
        if place < self.highest:  # else nothing that leads back is of use
            above = self._manifest(place + 1)
            hops.append(hop_of(above, inverse=True) if above else None)
        if self.merges is not None:
            hops += [hop_of_merge(merge) for merge in self.merges.ending(place, lowest=self.lowest)]
            back = self.merges.starting(place, highest=self.highest)
            hops += [hop_of_merge(merge, inverse=True) for merge in back]
        for hop in hops:
            if hop is None or hop.source < self.lowest:
                continue
            if hop.target == place and hop.road not in self.avoid:
                yield hop.source, hop.size_bytes, hop

    def _manifest(self, version: int) -> Manifest | None:
        """A manifest; only the wanted version must have one that can be read."""
        try:
            return self.read(version)
        except (DataError, NotFound) as error:
            if version == self.wanted:
                raise
            self.trouble = self.trouble or error
            return None

    def _no_way(self, wanted: int, held: int) -> DataError:
        error = DataError(
            f"no way leads from version {held} to version {wanted}"
            + (f": {self.trouble.what}" if self.trouble else ""),
            where=self.trouble.where if self.trouble else "",
            remedy="Restore the objects from a mirror, or ask for another version",
            kind=self.trouble.kind if self.trouble else "no_way",
        )
        error.__cause__ = self.trouble
        return error


def hop_of(manifest: Manifest, *, inverse: bool = False) -> Hop | None:
    """The single delta of a version, or None if it has none."""
    if manifest.base < 0:
        return None
    return Hop(
        manifest.base,
        manifest.version,
        manifest.base_digest,
        manifest.digest,
        manifest.layout,
        manifest.delta,
        inverse=inverse,
    )


def hop_of_merge(merge: Merge, *, inverse: bool = False) -> Hop:
    """A merged delta."""
    return Hop(
        merge.base,
        merge.version,
        merge.base_digest,
        merge.digest,
        merge.layout,
        merge.blobs,
        merged=True,
        inverse=inverse,
    )


def _plan(place: int, after: dict[int, Hop | Manifest], spent: int) -> CatchUp:
    """Walk from the start to the wanted version along what was found to lead there."""
    snapshot: Manifest | None = None
    hops: list[Hop] = []
    while place in after:
        road = after[place]
        if isinstance(road, Hop):
            hops.append(road)
            place = road.target
        else:
            snapshot, place = road, road.version
    return CatchUp(snapshot, tuple(hops), spent)
