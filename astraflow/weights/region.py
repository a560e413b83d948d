"""Where a pool of a region reads weights: in the region's store, and in the run's when the mirror falls behind.

A pool polls for the next manifest in its region. Only when nothing new came there for ``timeout_s`` is the run's
store asked, and once it had something that the mirror had not, it is asked at each poll until the mirror has caught up.
Blobs that the region lacks are read from the run's store: their manifest can only have come from there.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

from astraflow.config import Pool, RunConfig
from storage import open_store
from storage.errors import NotFound, StoreError
from storage.store import Created, ObjectInfo, ObjectStore


def weights_store(store: ObjectStore, config: RunConfig, pool: Pool) -> ObjectStore:
    """The store in which ``pool`` reads a policy's weights: its region's if that has one, else the run's."""
    near = region_store(store, config, pool.region)
    if near is None:
        return store
    return RegionStore(store, near, timeout_s=config.regions[pool.region].mirror_timeout_s)


def region_store(store: ObjectStore, config: RunConfig, region: str) -> ObjectStore | None:
    """The store of ``region``'s own; None if it has none, or the run's ``store`` is it."""
    section = config.regions.get(region)
    if section is None or section.store is None:
        return None
    near = open_store(section.store)
    return None if near.url == store.url else near


class RegionStore:
    """Reads of one policy's weights; writes go to the run's store. Threads may share it."""

    def __init__(
        self,
        root: ObjectStore,
        mirror: ObjectStore,
        *,
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root = root
        self._mirror = mirror
        self._timeout_s = timeout_s
        self._clock = clock
        self._lock = threading.Lock()
        self._newest = ""  # the highest manifest's key that the mirror gave
        self._ahead = ""  # the highest that only the root gave: the mirror is behind until it has it
        self._quiet_since = clock()  # something new came, or the root had nothing either

    @property
    def url(self) -> str:
        return self._mirror.url

    @property
    def root(self) -> ObjectStore:
        """The run's own store."""
        return self._root

    def get(self, key: str) -> bytes:
        is_manifest = key.endswith("/manifest.json")
        try:
            data = self._mirror.get(key)
        except StoreError as error:
            absent = isinstance(error, NotFound)
            if not absent and error.kind != "unreachable":
                raise
            if is_manifest or not absent:
                if not self._may_ask_root():
                    raise
                return self._from_root(key, is_manifest=is_manifest)
            return self._root.get(key)
        if is_manifest:
            self._note(key)
        return data

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self.get(key)[start : start + length]

    def list(self, prefix: str, *, after: str | None = None, limit: int | None = None) -> Iterator[ObjectInfo]:
        try:
            yield from list(self._mirror.list(prefix, after=after, limit=limit))
        except StoreError as error:
            if error.kind != "unreachable" or not self._may_ask_root():
                raise
            yield from self._root.list(prefix, after=after, limit=limit)

    def put(self, key: str, data: bytes) -> None:
        self._root.put(key, data)

    def create(self, key: str, data: bytes) -> Created:
        return self._root.create(key, data)

    def delete(self, key: str) -> None:
        self._root.delete(key)

    def _note(self, key: str) -> None:
        """The mirror has a manifest."""
        with self._lock:
            if key > self._newest:
                self._newest, self._quiet_since = key, self._clock()
            if key >= self._ahead:
                self._ahead = ""

    def _may_ask_root(self) -> bool:
        ahead = self._ahead
        if ahead:
            try:
                self._mirror.get(ahead)
            except StoreError:
                return True
            self._note(ahead)
        with self._lock:
            return self._clock() - self._quiet_since >= self._timeout_s

    def _from_root(self, key: str, *, is_manifest: bool) -> bytes:
        try:
            data = self._root.get(key)
        except NotFound:
            with self._lock:
                if not self._ahead:
                    self._quiet_since = self._clock()  # nothing new anywhere: no reason to ask again soon
            raise
        with self._lock:
            if is_manifest:
                self._ahead = max(self._ahead, key)
        return data
