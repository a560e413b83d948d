"""Manifests as one plan needs them: each read once, many of them at the same time; and plans made from them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from astraflow.weights.catch_up import CatchUp, Hop, Road, plan_catch_up
from astraflow.weights.manifest import Manifest
from astraflow.weights.merged import Merges
from storage.errors import DataError, NotFound
from storage.keys import RunKeys

AHEAD = 128  # manifests read at once before a plan: beyond that, a snapshot or merges are mostly the way
_FURTHER = 64  # read at once when a search goes below those
_THREADS = 16


class Manifests:
    """Remembers what ``get`` gave or raised (``NotFound``, ``DataError``), for the length of one fetch."""

    def __init__(self, get: Callable[[int], Manifest]) -> None:
        self._get = get
        self._known: dict[int, Manifest | DataError | NotFound] = {}
        self._lowest = 0  # of those that were read ahead

    def read(self, version: int) -> Manifest:
        """The manifest of ``version``. A search that comes below what was read ahead reads a stretch there."""
        if version < self._lowest:
            self.read_ahead(range(max(0, version - _FURTHER + 1), version + 1))
        if version not in self._known:
            self._known[version] = self._ask(version)
        found = self._known[version]
        if isinstance(found, Manifest):
            return found
        raise found

    def read_ahead(self, versions: Iterable[int]) -> None:
        """Read several at once: across an ocean a plan would else wait for one after the other."""
        missing = [version for version in versions if version >= 0 and version not in self._known]
        if len(missing) < 2:
            return
        self._lowest = missing[0]
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="manifests") as pool:
            self._known.update(zip(missing, pool.map(self._ask, missing), strict=True))

    def _ask(self, version: int) -> Manifest | DataError | NotFound:
        try:
            return self._get(version)
        except (DataError, NotFound) as error:
            return error


def find_way(
    manifests: Manifests,
    merges_after: Callable[[int], Merges],
    version: int,
    held: int,
    *,
    avoid: Collection[Road] = (),
    newest: int = -1,
) -> CatchUp:
    """The cheapest way to ``version`` for a reader that holds ``held``, without the objects in ``avoid``.

    A reader one behind reads one manifest. A way around what is broken is looked for up to ``newest``. Raises as
    ``plan_catch_up`` does.
    """
    if version - held == 1 and held >= 0 and not avoid:
        return plan_catch_up(manifests.read, version, held)
    # Who has nothing takes the newest snapshot: an older one is no smaller, and more lies between.
    lowest = manifests.read(version).anchor if held < 0 else 0
    low = min(version, held) if held >= 0 else lowest
    manifests.read_ahead(range(max(low, version - AHEAD), max(version, min(held, version + AHEAD)) + 1))
    if not avoid:
        with suppress(DataError):
            return plan_catch_up(manifests.read, version, held, merges=merges_after(low), lowest=lowest)
    highest = max(version, newest)
    return plan_catch_up(manifests.read, version, held, merges=merges_after(-1), avoid=avoid, highest=highest)


def hop_folder(keys: RunKeys, policy: str, hop: Hop) -> str:
    """Where a delta's blobs lie."""
    return keys.merged(policy) if hop.merged else keys.version(policy, hop.version)
