"""Makes merged deltas out of a policy's single ones, after the versions are out.

Steps of one word add, so the change over many versions is made from deltas alone, block by block; a longer merge is
made from shorter ones. At half the bytes of its singles (8 of them at lr 3e-6) it is what readers far behind take.
Blocks stored by classes can't be merged without the weights, so the publisher hands over what they are without: for as
many versions as the shortest merge is long, in memory.
The work is done in a thread of low priority: nobody waits for it, and a trainer that ends leaves it undone.

Invariant: a merge's record is created after its blobs, and only if the merge is well below the bytes that it replaces.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from itertools import pairwise

from astraflow.weights.catch_up import CatchUp, Road, plan_catch_up
from astraflow.weights.codec import Coding, EncodedBlock, Kind
from astraflow.weights.compose import compose_all
from astraflow.weights.container import BlockRecord, StoredBlock, read_blob, record_of
from astraflow.weights.downloader import downloads
from astraflow.weights.layout import Layout
from astraflow.weights.manifest import Manifest, decode_manifest
from astraflow.weights.manifests import Manifests, hop_folder
from astraflow.weights.merged import Merge, Merges, encode_merge, seal_merge
from astraflow.weights.uploader import BLOB_BYTES, Uploader
from storage.errors import AstraFlowError, DataError, NotFound
from storage.keys import RunKeys
from storage.log import NumberedLog
from storage.store import ObjectStore

WORTH = 0.95  # of the bytes it replaces: a merge that is larger is not kept
MOST_WAITING = 1024  # spans: a thread that is so far behind will not catch up, and nobody needs a merge
log = logging.getLogger("astraflow.weights")


class _TooLarge(Exception):
    """The merge would be no fewer bytes than the deltas it replaces."""


class Merger:
    """Makes the merges that end at a version: for each length n of ``every``, at the versions that n divides."""

    def __init__(
        self,
        store: ObjectStore,
        keys: RunKeys,
        policy: str,
        *,
        every: Sequence[int],
        writer: str,
        blob_bytes: int = BLOB_BYTES,
        coding: Coding = "default",
    ) -> None:
        self._store = store
        self._keys = keys
        self._policy = policy
        self._coding = coding
        self._forms: dict[int, dict[int, EncodedBlock]] = {}  # of versions, for classes: block -> its form without
        self._every = sorted(set(every))
        self._writer = writer
        self._blob_bytes = blob_bytes
        self._attempts = 0

    def due(self, version: int) -> list[tuple[int, int]]:
        """(base, version) of the merges that end at ``version``, the shortest first: longer ones are made of them."""
        return [(version - n, version) for n in self._every if n > 1 and version >= n and version % n == 0]

    def due_until(self, version: int) -> list[tuple[int, int]]:
        """All that may be missing up to ``version``, if an earlier trainer left before it made them."""
        longest = max(self._every, default=0)
        return [span for each in range(max(0, version - longest) + 1, version + 1) for span in self.due(each)]

    @property
    def needs_forms(self) -> bool:
        """Whether ``remember`` is of use."""
        return self._coding == "classes" and any(n > 1 for n in self._every)

    def remember(self, version: int, forms: dict[int, EncodedBlock] | None) -> None:
        """Keep what the blocks of a version's delta are without classes, for twice the shortest merge."""
        if forms is None or not self.needs_forms:
            return
        shortest = min(n for n in self._every if n > 1)
        self._forms[version] = forms
        for old in [each for each in self._forms if each <= version - 2 * shortest]:
            del self._forms[old]

    def make(self, base: int, version: int, layout: Layout) -> Merge | None:
        """Write the merge of one span; None if it stands there, would not pay, or no deltas lead there any more.

        Raises ``StoreError``, and ``DataError`` when a delta is damaged.
        """
        key = self._keys.merge(self._policy, base, version)
        there = NumberedLog(self._store, lambda _: key)
        if there.read(0) is not None:
            return None
        manifests = Manifests(self._manifest)
        manifests.read_ahead(range(base, version + 1))
        merges = Merges(self._store, self._keys, self._policy, after=base)
        try:
            plan = plan_catch_up(
                manifests.read, version, base, merges=merges, snapshots=False, avoid=self._unmergeable(base, version)
            )
        except DataError as error:
            if error.kind == "no_way":  # an anchor without a delta lies between
                return None
            raise
        if len(plan.deltas) < 2 or any(hop.layout != layout.digest for hop in plan.deltas):
            return None
        records: list[BlockRecord] = []
        self._attempts += 1
        prefix = f"{version:08d}-{base:08d}-{self._writer}-{self._attempts}"
        uploader = Uploader(self._store, self._keys.merged(self._policy), prefix, self._blob_bytes)
        try:
            blobs = uploader.delta(self._composed(plan, layout, records))
        except (_TooLarge, NotFound):
            return None
        merge = seal_merge(
            Merge(
                policy=self._policy,
                base=base,
                version=version,
                base_digest=plan.deltas[0].base_digest,
                digest=plan.deltas[-1].digest,
                layout=layout.digest,
                blobs=blobs,
                size_bytes=sum(blob.size_bytes for blob in blobs),
                changed=sum(record.changed for record in records),
                writer=self._writer,
            )
        )
        return merge if there.create(0, encode_merge(merge)) is None else None

    def _composed(
        self, plan: CatchUp, layout: Layout, records: list[BlockRecord]
    ) -> Iterator[tuple[BlockRecord, EncodedBlock]]:
        """The merged blocks one by one, noting their records."""
        spent = 0
        for index, found in sorted(self._blocks(plan).items()):
            for before, after in pairwise(found):
                if before.record.result != after.record.base:
                    raise DataError(
                        f"block {index} of a delta does not start where the one before ended",
                        where=f"{self._policy} versions {plan.deltas[0].base} to {plan.deltas[-1].version}",
                        remedy="`astraflow weights verify` finds the object; readers go around it",
                        kind="base",
                    )
            base, result = found[0].record.base, found[-1].record.result
            if base == result:
                continue
            block = layout.blocks[index]
            encoded = compose_all(
                [EncodedBlock(each.record.kind, each.record.changed, each.streams) for each in found],
                size=block.size,
                word=block.dtype.word,
                where=f"block {index}",
            )
            spent += encoded.size_bytes
            if spent > WORTH * plan.size_bytes:
                raise _TooLarge
            records.append(record_of(index, encoded, base=base, result=result))
            yield records[-1], encoded

    def _blocks(self, plan: CatchUp) -> dict[int, list[StoredBlock]]:
        """Every changed block's stored forms along the plan, packed as they are."""
        wanted = [(hop, blob) for hop in plan.deltas for blob in hop.blobs]
        keys = [(hop_folder(self._keys, self._policy, hop) + blob.name, blob) for hop, blob in wanted]
        blocks: dict[int, list[StoredBlock]] = {}
        with closing(downloads(self._store, keys)) as blobs:
            for (hop, _), (where, data) in zip(wanted, blobs, strict=True):
                forms = {} if hop.merged else self._forms.get(hop.version, {})
                for stored in read_blob(data, where=where)[1]:
                    blocks.setdefault(stored.record.block, []).append(_in_form(stored, forms))
        return blocks

    def _unmergeable(self, base: int, version: int) -> list[Road]:
        """Single deltas that can't be merged: by classes, and not of this life's last versions."""
        if self._coding == "default":
            return []
        forms = self._forms.copy()
        return [(each - 1, each) for each in range(base + 1, version + 1) if each not in forms]

    def _manifest(self, version: int) -> Manifest:
        where = self._keys.manifest(self._policy, version)
        return decode_manifest(self._store.get(where), where=where, policy=self._policy, version=version)


def _in_form(stored: StoredBlock, forms: dict[int, EncodedBlock]) -> StoredBlock:
    """The block as it is remembered without classes, if it is."""
    form = forms.get(stored.record.block)
    if stored.record.kind is not Kind.CLASSES or form is None:
        return stored
    record = record_of(stored.record.block, form, base=stored.record.base, result=stored.record.result)
    return StoredBlock(record, form.streams)


class MergeQueue:
    """Merges that are due, made one after the other by a thread that never holds up a publish or the end."""

    def __init__(self, merger: Merger) -> None:
        self._merger = merger
        self._waiting: queue.Queue[tuple[int, int, Layout]] = queue.Queue(MOST_WAITING)
        self._idle = threading.Condition()
        self._left = 0
        self._thread: threading.Thread | None = None

    def add(self, spans: Sequence[tuple[int, int]], layout: Layout) -> None:
        """Have these made, in this order. Never raises: the version that they belong to is out."""
        if not spans or not self._begun():
            return
        for base, version in spans:
            with self._idle:
                self._left += 1
            try:
                self._waiting.put_nowait((base, version, layout))
            except queue.Full:
                log.warning("versions %d to %d are not merged: %d merges wait", base, version, MOST_WAITING)
                self._done()

    def _begun(self) -> bool:
        """Whether there is a thread; a machine that can have no more threads does without merges."""
        if self._thread is None:
            thread = threading.Thread(target=self._work, name="merges", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                log.warning("nothing is merged for now: %s", error)
                return False
            self._thread = thread
        return True

    def settle(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing is left to make; False if that took longer than ``timeout_s``."""
        with self._idle:
            return self._idle.wait_for(lambda: self._left == 0, timeout_s)

    def _work(self) -> None:
        with suppress(OSError, AttributeError):  # where threads have a priority, this one has a low one
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
        while True:
            base, version, layout = self._waiting.get()
            try:
                self._merger.make(base, version, layout)
            except AstraFlowError as error:
                log.warning("versions %d to %d are not merged: %s", base, version, error)
            except Exception:  # the thread's boundary: recorded, and the next merge is tried
                log.warning("versions %d to %d are not merged", base, version, exc_info=True)
            finally:
                self._done()

    def _done(self) -> None:
        with self._idle:
            self._left -= 1
            self._idle.notify_all()
