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

from astraflow.weights.codec import Coding
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
from storage.errors import AstraFlowError, DataError, Fenced
from storage.keys import RunKeys
from storage.log import NumberedLog
from storage.store import ObjectStore


@dataclass(frozen=True, slots=True)
class _Claim:
    """What a trainer says of a version beside its weights."""

    step: int
    incarnation: int
    batch: int
    skipped: dict[str, list[int]]


@dataclass(frozen=True, slots=True)
class _Blobs:
    """What was uploaded for a version. ``delta`` is None without a base, empty without a change."""

    delta: tuple[Blob, ...] | None
    snapshot: tuple[Blob, ...]
    changed: int


class VersionTaken(AstraFlowError):
    """An older trainer published the version we were about to: read ``head`` again, catch up, publish above it."""


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
        spans = merge_every if coding == "default" else ()  # classes can not be merged without the weights
        self._merger = Merger(store, keys, policy, every=spans, writer=self._writer, blob_bytes=blob_bytes)
        self._merges = MergeQueue(self._merger)
        self._merged = False  # whether this life has looked for merges that an earlier one left undone

    def head(self) -> Manifest | None:
        """The newest version's manifest, or None before the first."""
        self._looked = True
        known = self._head.version + 1 if self._head else 0
        tail = self._log.tail(known)
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
        claim = _Claim(step, incarnation, batch, dict(skipped or {}))
        head = self._head if self._looked else self.head()
        self._check_order(head, claim)
        blobs = self._write_blobs(source, digests, head, incarnation, anchor)
        manifest = self._create(source.layout, source.root(digests), head, blobs, claim)
        self._keep(source, digests)
        self._merge(source.layout)
        return manifest

    def plan_parts(
        self, layout: Layout, *, held: str, step: int, incarnation: int, batch: int, anchor: bool = False
    ) -> ShardPlan:
        """What the ranks of a sharded trainer shall write for the next version; see ``shards``.

        ``held`` is that of rank 0's encoder. Raises as ``publish`` does.
        """
        head = self._head if self._looked else self.head()
        self._check_order(head, _Claim(step, incarnation, batch, {}))
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
        claim = _Claim(plan.step, plan.incarnation, plan.batch, dict(skipped or {}))
        blobs = _Blobs(joined.delta, joined.snapshot, joined.changed)
        manifest = self._create(layout, joined.digest, self._head, blobs, claim)
        self._merge(layout)
        return manifest

    def _create(self, layout: Layout, digest: str, head: Manifest | None, blobs: _Blobs, claim: _Claim) -> Manifest:
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
        if head and source.root(digests) == head.digest:
            delta, changed = (), 0
        elif head and self._base and self._base.layout == source.layout and self._base.root() == head.digest:
            records: list[BlockRecord] = []
            delta = uploader.delta(changed_blocks(self._base, source, digests, records, self._coding))
            changed = sum(record.changed for record in records)
        snapshot: tuple[Blob, ...] = ()
        if anchor or head is None or delta is None or version - head.anchor >= self._anchor_every:
            snapshot = uploader.snapshot(all_blocks(source, digests), source.layout)
        return _Blobs(delta, snapshot, changed)

    def _manifest(self, layout: Layout, digest: str, head: Manifest | None, blobs: _Blobs, claim: _Claim) -> Manifest:
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

    def _check_order(self, head: Manifest | None, claim: _Claim) -> None:
        """Refuse what would make incarnation, step or batch fall along the versions."""
        if head is None:
            return
        if head.incarnation > claim.incarnation:
            raise self._fenced(head, claim.incarnation)
        if head.step > claim.step or head.batch > claim.batch:
            raise DataError(
                f"step {claim.step} after batch {claim.batch} is behind version {head.version}, "
                f"which has step {head.step} after batch {head.batch}",
                where=self._log.key(head.version + 1),
                remedy="Train the recorded batches again up to the head manifest's before publishing",
                kind="behind",
            )

    def _settle(self, wanted: Manifest, found: Manifest) -> Manifest:
        """What to do when ``found`` stands where ``wanted`` was to be created."""
        if found.writer == wanted.writer and _same_claim(found, wanted):
            return found  # our own earlier attempt, whose answer was lost
        self._head = found
        if found.incarnation > wanted.incarnation or (
            found.incarnation == wanted.incarnation and found.writer != wanted.writer
        ):
            raise self._fenced(found, wanted.incarnation)
        raise VersionTaken(
            f"incarnation {found.incarnation} published version {found.version} first",
            where=self._log.key(found.version),
            remedy="Read the head manifest again, train up to its batch, and publish above it",
            kind="taken",
        )

    def _fenced(self, found: Manifest, incarnation: int) -> Fenced:
        return Fenced(
            f"version {found.version} of {self._policy} has incarnation {found.incarnation}, this one {incarnation}",
            where=self._log.key(found.version),
            remedy="Another trainer of this policy has taken over: this one ends",
            kind="incarnation",
        )

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


def _same_claim(one: Manifest, other: Manifest) -> bool:
    """True if both say the same of the trainer and the weights, however those were encoded."""
    fields = ("version", "step", "incarnation", "batch", "skipped", "digest")
    return all(getattr(one, field) == getattr(other, field) for field in fields)
