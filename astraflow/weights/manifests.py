"""Manifests as one plan needs them: each read once, many of them at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

from astraflow.weights.catch_up import Hop
from astraflow.weights.manifest import Manifest
from storage.errors import DataError, NotFound
from storage.keys import RunKeys

AHEAD = 128  # manifests read at once before a plan: beyond that, a snapshot or merges are the way
_THREADS = 8


class Manifests:
    """Remembers what ``get`` gave or raised (``NotFound``, ``DataError``), for the length of one fetch."""

    def __init__(self, get: Callable[[int], Manifest]) -> None:
        self._get = get
        self._known: dict[int, Manifest | DataError | NotFound] = {}

    def read(self, version: int) -> Manifest:
        """The manifest of ``version``."""
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
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="manifests") as pool:
            self._known.update(zip(missing, pool.map(self._ask, missing), strict=True))

    def _ask(self, version: int) -> Manifest | DataError | NotFound:
        try:
            return self._get(version)
        except (DataError, NotFound) as error:
            return error


def hop_folder(keys: RunKeys, policy: str, hop: Hop) -> str:
    """Where a delta's blobs lie."""
    return keys.merged(policy) if hop.merged else keys.version(policy, hop.version)
