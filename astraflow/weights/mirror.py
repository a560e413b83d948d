"""A region's copy of a policy's weights: each version crosses the ocean once, and pools there read it nearby.

Versions are copied in order, each as it was published: its blobs first, compared with the digests in the manifest,
then the manifest, created only if absent. So the region's store has a version whole or not at all, several
mirrors of one region do no harm to each other, and one that died is continued by the next. Merged deltas follow
their versions. Blobs that are damaged or gone at the source are left out, and a damaged manifest is copied as it
is, alone: readers go around them.

Invariant: every object in the region's store has, byte for byte, what the source has under that key.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from astraflow.config import RunConfig
from astraflow.follow import RunFollower
from astraflow.pace import Pace
from astraflow.participant import Beat, beat_every_s, new_participant
from astraflow.records import Status
from astraflow.weights.container import digest_blob
from astraflow.weights.manifest import Blob, decode_manifest
from astraflow.weights.merged import Merges, encode_merge
from storage import open_store
from storage.errors import ConfigError, DataError, NotFound, StoreError
from storage.keys import RunKeys
from storage.log import NumberedLog
from storage.probe import check_store
from storage.store import ObjectStore

log = logging.getLogger("astraflow.weights")
LOOK_EVERY_S = 5.0  # at the decisions, for the end of the run


class Mirror:
    """Copies one policy from ``source`` to ``target``. One thread at a time."""

    def __init__(self, source: ObjectStore, target: ObjectStore, keys: RunKeys, policy: str) -> None:
        self._source = source
        self._target = target
        self._keys = keys
        self._policy = policy
        self._read = NumberedLog(source, lambda version: keys.manifest(policy, version))
        self._written = NumberedLog(target, lambda version: keys.manifest(policy, version))
        self._next = 0
        self._merged: set[tuple[int, int]] | None = None
        self._longest = 0  # of the merges seen: how far below the newest version one may still turn up
        self.copied_bytes = 0
        self.left_out = 0

    @property
    def version(self) -> int:
        """The newest version known to be in the target, -1 if none."""
        return self._next - 1

    def copy(self) -> int:
        """Copy what is missing, and return how many versions that were. One request when there is nothing new.

        Raises ``StoreError`` as either store does, and ``DataError`` (kind ``foreign``) when the target has another
        run's objects under these keys.
        """
        first = self._merged is None
        if first:
            self._next = self._written.tail()
        began = self._next
        while (data := self._read.read(self._next)) is not None:
            self._copy_version(self._next, data)
            self._next += 1
        if first or self._next > began:
            self.copy_merges(everything=first)
        return self._next - began

    def copy_merges(self, *, everything: bool = True) -> int:
        """Copy the merges that are missing; they are made some time after their version.

        Without ``everything`` only those are looked for that end within twice the longest length: a LIST of all, after
        every version, would cost more and more.
        """
        if self._merged is None:
            self._note_merged(Merges(self._target, self._keys, self._policy).spans())
        assert self._merged is not None
        after = -1 if everything else max(-1, self.version - 2 * self._longest - 1)
        merges = Merges(self._source, self._keys, self._policy, after=after if self._longest else -1)
        before = len(self._merged)
        for span in merges.spans():
            if span not in self._merged and span[1] <= self.version:
                self._copy_merge(merges, span)
                self._note_merged([span])
        return len(self._merged) - before

    def _note_merged(self, spans: Sequence[tuple[int, int]]) -> None:
        self._merged = self._merged or set()
        self._merged.update(spans)
        self._longest = max([self._longest, *(version - base for base, version in spans)])

    def _copy_merge(self, merges: Merges, span: tuple[int, int]) -> None:
        """A damaged record is left out: nobody needs a merge."""
        try:
            merge = merges.read(span)
        except (DataError, NotFound):
            self.left_out += 1
            return
        record = self._keys.merge(self._policy, *span)
        folder = self._keys.merged(self._policy)
        if self._copy_blobs(folder, merge.blobs, listed=record.removesuffix(".json") + "-"):
            self._create(record, encode_merge(merge))

    def _copy_version(self, version: int, data: bytes) -> None:
        key = self._read.key(version)
        try:
            manifest = decode_manifest(data, where=key, policy=self._policy, version=version)
        except DataError as error:
            log.warning("a manifest is mirrored without its blobs: %s", error)
            self.left_out += 1
        else:
            self._copy_blobs(self._keys.version(self._policy, version), (*manifest.delta, *manifest.snapshot))
        self._create(self._written.key(version), data)

    def _copy_blobs(self, folder: str, blobs: Sequence[Blob], *, listed: str = "") -> bool:
        """Copy what is not there yet; False if the source has not all of it. All have the prefix ``listed``."""
        if not blobs:
            return True
        there = {info.key: info.size_bytes for info in self._target.list(listed or folder)}
        whole = True
        for blob in blobs:
            if there.get(folder + blob.name) == blob.size_bytes and _fits(self._target.get(folder + blob.name), blob):
                continue
            try:
                data = self._source.get(folder + blob.name)
            except NotFound:
                data = b""
            if not _fits(data, blob):
                log.info("%s is damaged or gone, and not mirrored", folder + blob.name)
                self.left_out += 1
                whole = False
                continue
            if folder + blob.name in there:  # what stands there is damaged
                self._target.put(folder + blob.name, data)
            else:
                self._create(folder + blob.name, data)
            self.copied_bytes += len(data)
        return whole

    def _create(self, key: str, data: bytes) -> None:
        if NumberedLog(self._target, lambda _: key).create(0, data) is not None:
            raise DataError(
                "the region's store has something else under this key",
                where=f"{self._target.url}/{key}",
                remedy="It holds another run of this name: give the region a store or prefix of its own",
                kind="foreign",
            )


def run_mirror(
    store: ObjectStore,
    config: RunConfig,
    region: str,
    *,
    participant: str | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Mirror all policies of a run into the store of ``region`` until the run is over or ``stop`` is set.

    Raises ``ConfigError`` if the region has no store, ``DataError`` and ``StoreError`` as ``Mirror.copy`` does; a store
    that is away is waited for.
    """
    section = config.regions.get(region)
    if section is None or section.store is None:
        raise ConfigError(
            f"the region {region!r} has no store",
            where=f"regions.{region}.store",
            remedy="Name one, or start no mirror",
            kind="region",
        )
    stop, keys = stop or threading.Event(), RunKeys(config.name)
    target = open_store(section.store)
    mirrors = {policy: Mirror(store, target, keys, policy) for policy in sorted(config.policies)}
    pace = Pace(store.url)
    participant = participant or new_participant("mirror", region)
    status = Status(participant=participant, role="mirror", state="copying", name=region, region=region)
    every_s = beat_every_s(store.url, config.dataflow.silence_s)
    with Beat(store, keys, status, every_s=every_s) as beat, _End(RunFollower(store, config)) as end:
        checked = False
        while not stop.is_set():
            try:
                if not checked:
                    check_store(target)
                    checked = True
                over = end.is_seen()
                copied = sum(mirror.copy() for mirror in mirrors.values())
                if over:
                    for mirror in mirrors.values():
                        mirror.copy_merges()
                    break
                beat.set(state="copying", waiting="", **_figures(mirrors))
            except StoreError as error:
                if error.kind != "unreachable":
                    raise
                copied = 0
                beat.set(waiting=f"a store is unreachable: {error}")
            if copied:
                pace.reset()
            else:
                stop.wait(pace.next_s())
        beat.set(state="left", waiting="", **_figures(mirrors))


class _End:
    """Looks for the run's end in a thread of its own: to find a log's tail takes round trips, and no version waits."""

    def __init__(self, follower: RunFollower) -> None:
        self._follower = follower
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="end")
        self._look: Future[bool] | None = None
        self._looked_at = float("-inf")

    def __enter__(self) -> _End:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def is_seen(self) -> bool:
        """Whether the last look saw it. What went wrong with the store in it is raised here."""
        if self._look is not None and self._look.done():
            look, self._look = self._look, None
            look.result()
        if self._look is None and time.monotonic() - self._looked_at >= LOOK_EVERY_S:
            self._looked_at = time.monotonic()
            self._look = self._thread.submit(self._follower.poll_end)
        return self._follower.is_over


def _figures(mirrors: dict[str, Mirror]) -> dict[str, float]:
    return {
        "copied_mb": sum(mirror.copied_bytes for mirror in mirrors.values()) / 1e6,
        "left_out": float(sum(mirror.left_out for mirror in mirrors.values())),
        **{f"version_{policy}": float(mirror.version) for policy, mirror in mirrors.items()},
    }


def _fits(data: bytes, blob: Blob) -> bool:
    return len(data) == blob.size_bytes and digest_blob(data) == blob.hash
