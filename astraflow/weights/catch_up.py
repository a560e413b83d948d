"""Which blobs a reader fetches to get from what it has to a version.

A version is reached along the deltas from the version held, or from the newest snapshot below it and
the deltas since; whichever is fewer bytes. Manifests are read from the wanted version downwards along
their bases, and no further than a cheaper way could still be found.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from astraflow.weights.manifest import Manifest


@dataclass(frozen=True, slots=True)
class CatchUp:
    """A way to a version: a snapshot to start from (None: from the copy held), then deltas in order."""

    snapshot: Manifest | None
    deltas: tuple[Manifest, ...]
    size_bytes: int


def plan_catch_up(read: Callable[[int], Manifest], wanted: int, held: int) -> CatchUp:
    """The cheapest way to version ``wanted`` from version ``held`` (-1: nothing). ``read`` gives manifests."""
    best: CatchUp | None = None
    deltas: list[Manifest] = []  # newest first
    spent_bytes = 0
    version = wanted
    while version != held:
        manifest = read(version)
        if manifest.snapshot and best is None:
            best = CatchUp(manifest, tuple(reversed(deltas)), spent_bytes + manifest.snapshot_bytes)
        spent_bytes += manifest.size_bytes
        deltas.append(manifest)
        if best and (version < held or held < 0 or manifest.base < 0 or spent_bytes >= best.size_bytes):
            return best
        version = manifest.base
    return CatchUp(None, tuple(reversed(deltas)), spent_bytes)
