"""The trainer's side: turn weights into the next version, as the change from the last one.

Order of effects: refuse bad weights, upload blobs under names of our own, create the manifest if absent.
A crash before the manifest leaves orphan blobs and no version; a crash after it leaves a whole
version. The manifests are also the fence between two trainers of one policy: meeting the manifest of
a higher incarnation, or one of our incarnation that is not ours, is ``Fenced``.

Invariant: the base kept here is replaced only once its version is in the store, and a delta is made
only when the base's digest is that of the newest version.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from astraflow.weights.claim import Claim, VersionTaken, check_order, is_own_attempt, taken_by
from astraflow.weights.codec import Coding, EncodedBlock
from astraflow.weights.container import BlockRecord
from astraflow.weights.encoder import all_blocks, changed_blocks
from astraflow.weights.layout import BLOCK_ELEMENTS, Layout
from astraflow.weights.manifest import Blob, Manifest, decode_manifest, encode_manifest, seal
from astraflow.weights.merger import MergeQueue, Merger
from astraflow.weights.replica import Replica
from astraflow.weights.shards import ShardPart, ShardPlan, join_parts
from astraflow.weights.source import Source
from astraflow.weights.uploader import BLOB_BYTES, Uploader
from storage.commit_points import commit_point
from storage.keys import RunKeys
from storage.log import NumberedLog
from storage.store import ObjectStore

__all__ = ["Publisher", "VersionTaken"]


@dataclass(frozen=True, slots=True)
class _Blobs:
    """What was uploaded for a version. ``delta`` is None without a base, empty without a change.

    ``mergeable`` has, for merges, what the delta's blocks are without classes.
    """

    delta: tuple[Blob, ...] | None
    snapshot: tuple[Blob, ...]
    changed: int
    mergeable: dict[int, EncodedBlock] | None = None


class Publisher:
    """Publishes one policy's versions. One thread at a time; one publisher a trainer's life."""

    def __init__(
        self,
        store: ObjectStore,
        keys: RunKeys,
        policy: str,
        *,
        anchor_every: int,
        merge_every: Sequence[int] = (),
        coding: Coding = "default",
        block_elements: int = BLOCK_ELEMENTS,
        blob_bytes: int = BLOB_BYTES,
    ) -> None:
        self._store = store
        self._keys = keys
        self._policy = policy
        self._anchor_every = anchor_every
        self._coding = coding
        self._block_elements = block_elements
        self._blob_bytes = blob_bytes
        self._log = NumberedLog(store, lambda version: keys.manifest(policy, version))
        self._writer = uuid.uuid4().hex[:12]
        self._attempts = 0
        self._head: Manifest | None = None
        self._looked = False  # after that a collision tells what is newer, so that a retry meets its own manifest
        self._base: Replica | None = None
        self._merger = Merger(
            store, keys, policy, every=merge_every, writer=self._writer, blob_bytes=blob_bytes, coding=coding
        )
        self._merges = MergeQueue(self._merger)
        self._merged = False  # whether this life has looked for merges that an earlier one left undone

    def head(self) -> Manifest | None:
        """The newest version's manifest, or None before the first."""
        self._looked = True
        known = self._head.version + 1 if self._head else 0
        tail = self._log.tail(known, taken=True)  # versions are never taken away
        if tail > known:
            self._head = self._decode(self._log.read(tail - 1) or b"", tail - 1)
        return self._head

    def hold(self, weights: Mapping[str, torch.Tensor], manifest: Manifest) -> bool:
        """Take ``weights`` as the base after a resume; True if they are exactly those of ``manifest``.

        If they are not, or ``manifest`` is not the newest any more, the next publish of a change is an anchor.
        """
        source = Source(weights, self._block_elements)
        digests = source.digests()
        self._keep(source, digests)
        if self._head is None or self._head.version < manifest.version:
            self._head, self._looked = manifest, True
        return source.root(digests) == manifest.digest

    def publish(
        self,
        weights: Mapping[str, torch.Tensor],
        *,
        step: int,
        incarnation: int,
        batch: int,
        skipped: Mapping[str, list[int]] | None = None,
        anchor: bool = False,
    ) -> Manifest:
        """Write ``weights`` (CPU tensors) as the next version and return its manifest.

        With ``anchor`` a full snapshot is written whether one is due or not. Raises ``DataError`` before anything
        is written (kinds ``non_finite``, ``dtype``, ``behind``), ``Fenced`` when another trainer has taken over,
        and ``VersionTaken`` when an older one was faster. After a ``StoreError`` the same call may be made again.
        """
        source = Source(weights, self._block_elements)
        digests = source.digests()
        claim = Claim(step, incarnation, batch, dict(skipped or {}))
        head = self._head if self._looked else self.head()
        self._check_order(head, claim)
        blobs = self._write_blobs(source, digests, head, incarnation, anchor)
        manifest = self._create(source.layout, source.root(digests), head, blobs, claim)
        self._keep(source, digests)
        self._merger.remember(manifest.version, blobs.mergeable)
        self._merge(source.layout)
        return manifest

    def plan_parts(
        self, layout: Layout, *, held: str, step: int, incarnation: int, batch: int, anchor: bool = False
    ) -> ShardPlan:
        """What the ranks of a sharded trainer shall write for the next version; see ``shards``.

        ``held`` is that of rank 0's encoder. Raises as ``publish`` does.
        """
        head = self._head if self._looked else self.head()
        self._check_order(head, Claim(step, incarnation, batch, {}))
        self._attempts += 1
        version = head.version + 1 if head else 0
        base = head.digest if head and held == head.digest and head.layout == layout.digest else ""
        snapshot = anchor or head is None or not base or version - head.anchor >= self._anchor_every
        prefix = f"{incarnation}-{self._writer}-{self._attempts}"
        return ShardPlan(version, prefix, base, snapshot, step, incarnation, batch)

    def publish_parts(
        self,
        layout: Layout,
        plan: ShardPlan,
        parts: Sequence[ShardPart],
        *,
        skipped: Mapping[str, list[int]] | None = None,
    ) -> Manifest:
        """Make a version of what the ranks uploaded, one part each. Raises as ``publish`` does."""
        joined = join_parts(layout, plan, parts, where=self._log.key(plan.version))
        claim = Claim(plan.step, plan.incarnation, plan.batch, dict(skipped or {}))
        blobs = _Blobs(joined.delta, joined.snapshot, joined.changed)
        manifest = self._create(layout, joined.digest, self._head, blobs, claim)
        self._merge(layout)
        return manifest

    def _create(self, layout: Layout, digest: str, head: Manifest | None, blobs: _Blobs, claim: Claim) -> Manifest:
        """Make the version real by its manifest, or find out who was faster."""
        commit_point("trainer.after_blobs")
        wanted = self._manifest(layout, digest, head, blobs, claim)
        there = self._log.create(wanted.version, encode_manifest(wanted))
        self._head = wanted if there is None else self._settle(wanted, self._decode(there, wanted.version))
        commit_point("trainer.after_manifest")
        return self._head

    def _merge(self, layout: Layout) -> None:
        assert self._head is not None, "a version was just published"
        version = self._head.version
        self._merges.add(self._merger.due(version) if self._merged else self._merger.due_until(version), layout)
        self._merged = True

    def settle(self, timeout_s: float | None = None) -> bool:
        """Wait for the merges that are due, which nobody needs to; False if they took longer than ``timeout_s``."""
        return self._merges.settle(timeout_s)

    def _write_blobs(
        self, source: Source, digests: list[str], head: Manifest | None, incarnation: int, anchor: bool
    ) -> _Blobs:
        """Upload what the next version needs: the change if its base is at hand, a snapshot if one is due."""
        version = head.version + 1 if head else 0
        self._attempts += 1
        folder = self._keys.version(self._policy, version)
        uploader = Uploader(self._store, folder, f"{incarnation}-{self._writer}-{self._attempts}", self._blob_bytes)
        delta: tuple[Blob, ...] | None = None
        changed = sum(source.layout.sizes.values())
        mergeable: dict[int, EncodedBlock] | None = {} if self._merger.needs_forms else None
        if head and source.root(digests) == head.digest:
            delta, changed = (), 0
        elif head and self._base and self._base.layout == source.layout and self._base.root() == head.digest:
            records: list[BlockRecord] = []
            delta = uploader.delta(
                changed_blocks(self._base, source, digests, records, self._coding, mergeable=mergeable)
            )
            changed = sum(record.changed for record in records)
        snapshot: tuple[Blob, ...] = ()
        if anchor or head is None or delta is None or version - head.anchor >= self._anchor_every:
            snapshot = uploader.snapshot(all_blocks(source, digests), source.layout)
        return _Blobs(delta, snapshot, changed, mergeable if delta is not None else None)

    def _manifest(self, layout: Layout, digest: str, head: Manifest | None, blobs: _Blobs, claim: Claim) -> Manifest:
        version = head.version + 1 if head else 0
        based = head if blobs.delta is not None else None
        fetched = blobs.snapshot if blobs.delta is None else blobs.delta
        return seal(
            Manifest(
                policy=self._policy,
                version=version,
                step=claim.step,
                incarnation=claim.incarnation,
                batch=claim.batch,
                skipped=claim.skipped,
                kind="anchor" if blobs.snapshot else "delta",
                base=based.version if based else -1,
                base_digest=based.digest if based else "",
                digest=digest,
                layout=layout.digest,
                anchor=head.anchor if head and not blobs.snapshot else version,
                delta=blobs.delta or (),
                snapshot=blobs.snapshot,
                size_bytes=sum(blob.size_bytes for blob in fetched),
                full_bytes=layout.full_bytes,
                changed=blobs.changed,
                writer=self._writer,
            )
        )

    def _settle(self, wanted: Manifest, found: Manifest) -> Manifest:
        """What to do when ``found`` stands where ``wanted`` was to be created."""
        if is_own_attempt(found, wanted):
            return found  # whose answer was lost
        self._head = found
        raise taken_by(found, wanted, where=self._log.key(found.version))

    def _check_order(self, head: Manifest | None, claim: Claim) -> None:
        check_order(head, claim, where=self._log.key(head.version + 1 if head else 0))

    def _keep(self, source: Source, digests: list[str]) -> None:
        """Make ``source`` the base of the next delta, copying only the blocks that differ."""
        if self._base is None or self._base.layout != source.layout:
            self._base = Replica(source.layout)
        for block in source.layout.blocks:
            if self._base.digests[block.index] != digests[block.index]:
                self._base.digests[block.index] = ""  # a copy that is broken off is no base
                self._base.words(block)[:] = source.words(block)
                self._base.digests[block.index] = digests[block.index]

    def _decode(self, data: bytes, version: int) -> Manifest:
        return decode_manifest(data, where=self._log.key(version), policy=self._policy, version=version)
