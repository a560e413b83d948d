"""Versions published straight from a trainer's shards: each rank encodes what it has, and no rank has the model.

Per publish: rank 0 asks its ``Publisher`` for a plan and sends it to all; each rank's ``ShardEncoder`` hashes its
blocks, uploads what changed (or all, for a snapshot) and returns a part of a few kilobytes; rank 0 makes the manifest
of the parts; when it stands, each rank keeps its words as the next base. Plans and parts are JSON, for any
means that the ranks have of talking to each other.

    plan = publisher.plan_parts(layout, held=encoder.held, step=…, incarnation=…, batch=…)     # rank 0
    part = encoder.encode(local_tensors, plan)                                                 # each rank
    manifest = publisher.publish_parts(layout, plan, parts)                                    # rank 0
    encoder.keep(manifest.digest)                                                              # each rank

Invariant: what a rank uploads counts only once the manifest names it, and ``held`` is the digest of the version whose
words this rank has kept, so that all ranks make a delta from the same version or none does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
import torch

from astraflow.weights.codec import Coding
from astraflow.weights.container import BlockRecord
from astraflow.weights.encoder import all_blocks, changed_blocks
from astraflow.weights.kernels import Words
from astraflow.weights.layout import Block, Layout, words_of
from astraflow.weights.manifest import Blob, root_digest
from astraflow.weights.sharding import spans_of
from astraflow.weights.source import Source
from astraflow.weights.uploader import BLOB_BYTES, Uploader
from storage.errors import DataError
from storage.keys import RunKeys
from storage.store import ObjectStore


class ShardPlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What every rank shall write: a delta from the version of digest ``base`` unless that is empty; a snapshot."""

    version: int
    prefix: str
    base: str
    snapshot: bool
    step: int
    incarnation: int
    batch: int


class ShardPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one rank wrote: its blocks' digests by number, before (without a delta: empty) and after, and its blobs."""

    shard: int
    bases: dict[int, str]
    digests: dict[int, str]
    delta: tuple[Blob, ...]
    snapshot: tuple[Blob, ...]
    changed: int


@dataclass(frozen=True, slots=True)
class Parts:
    """All ranks' parts as one version. ``delta`` is None without a base."""

    digest: str
    delta: tuple[Blob, ...] | None
    snapshot: tuple[Blob, ...]
    changed: int


def join_parts(layout: Layout, plan: ShardPlan, parts: Sequence[ShardPart], *, where: str) -> Parts:
    """Put one part of every rank together; ``DataError`` (kind ``shard``) naming ``where`` if they do not fit."""
    ordered = sorted(parts, key=lambda part: part.shard)
    digests = {index: digest for part in ordered for index, digest in part.digests.items()}
    bases = {index: digest for part in ordered for index, digest in part.bases.items()}
    blocks = list(range(len(layout.blocks)))
    fits = sorted(index for part in ordered for index in part.digests) == blocks
    if not fits or (plan.base and (sorted(bases) != blocks or _root(layout, bases) != plan.base)):
        raise DataError(
            f"the parts of {len(parts)} ranks do not make one version" if not fits else "the ranks' bases differ",
            where=where,
            remedy="Nothing was published: plan again, with an anchor",
            kind="shard",
        )
    return Parts(
        digest=_root(layout, digests),
        delta=tuple(blob for part in ordered for blob in part.delta) if plan.base else None,
        snapshot=tuple(blob for part in ordered for blob in part.snapshot),
        changed=sum(part.changed for part in ordered) if plan.base else sum(layout.sizes.values()),
    )


def _root(layout: Layout, digests: Mapping[int, str]) -> str:
    return root_digest(layout.digest, [digests[index] for index in sorted(digests)])


class ShardSource(Source):
    """One rank's rows of the tensors, as the blocks that it owns. Small tensors are rank 0's, whole."""

    def __init__(self, layout: Layout, shard: int, rows: Mapping[str, torch.Tensor]) -> None:
        self.layout = layout
        self.blocks = tuple(block for block in layout.blocks if block.shard == shard)
        self._words: dict[str, Words] = {}
        self._first: dict[str, int] = {}
        if layout.sharding is msgspec.UNSET:
            raise ValueError("the layout has no sharding")
        for spec in layout.tensors:
            for span in spans_of(spec.shape, spec.size, layout.sharding):
                if span.shard == shard and spec.size:
                    self._first[spec.name] = span.start
                    self._words[spec.name] = self._checked(spec.name, rows, span.stop - span.start)

    def _checked(self, name: str, rows: Mapping[str, torch.Tensor], size: int) -> Words:
        if name not in rows or rows[name].numel() != size:
            raise DataError(
                f"this rank's part of the tensor should have {size} elements",
                where=name,
                remedy="Shard by rows as torch.chunk does, and give small tensors to rank 0 whole",
                kind="shard",
            )
        return words_of(rows[name])


class _Kept:
    """A rank's blocks of the version it published last."""

    def __init__(self) -> None:
        self.digests: dict[int, str] = {}
        self._words: dict[int, Words] = {}

    def words(self, block: Block) -> Words:
        return self._words[block.index]

    def keep(self, source: Source, digests: dict[int, str]) -> None:
        """Copy the blocks that differ."""
        for block in source.blocks:
            if self.digests.get(block.index) != digests[block.index]:
                self.digests.pop(block.index, None)  # a copy that is broken off is no base
                kept = self._words.setdefault(block.index, np.empty(block.size, block.dtype.word))
                kept[:] = source.words(block)
                self.digests[block.index] = digests[block.index]


class ShardEncoder:
    """One rank's side of publishing. ``layout`` is that of the whole model, with its sharding."""

    def __init__(
        self,
        store: ObjectStore,
        keys: RunKeys,
        policy: str,
        layout: Layout,
        shard: int,
        *,
        coding: Coding = "default",
        blob_bytes: int = BLOB_BYTES,
    ) -> None:
        self._store = store
        self._keys = keys
        self._policy = policy
        self._layout = layout
        self._shard = shard
        self._coding = coding
        self._blob_bytes = blob_bytes
        self._kept = _Kept()
        self._written: tuple[Source, dict[int, str]] | None = None
        self.held = ""  # digest of the version that is kept

    def encode(self, rows: Mapping[str, torch.Tensor], plan: ShardPlan) -> ShardPart:
        """Upload this rank's blocks as ``plan`` says. ``rows`` are its rows of each tensor, on the CPU.

        Raises ``DataError`` before anything is written: kinds ``non_finite``, ``shard`` (other rows than the layout
        gives this rank) and ``base`` (another version is kept than the plan's).
        """
        source = ShardSource(self._layout, self._shard, rows)
        digests = {block.index: digest for block, digest in zip(source.blocks, source.digests(), strict=True)}
        if plan.base and plan.base != self.held:
            raise DataError(
                f"rank {self._shard} keeps another version than the delta starts from",
                where=self._keys.version(self._policy, plan.version),
                remedy="Publish an anchor: plan with the `held` of a rank that has just started",
                kind="base",
            )
        folder = self._keys.version(self._policy, plan.version)
        uploader = Uploader(self._store, folder, f"{plan.prefix}-s{self._shard:04d}", self._blob_bytes)
        records: list[BlockRecord] = []
        delta: tuple[Blob, ...] = ()
        snapshot: tuple[Blob, ...] = ()
        if plan.base:
            delta = uploader.delta(changed_blocks(self._kept, source, digests, records, self._coding))
        if plan.snapshot:
            layout = self._layout if self._shard == 0 else None
            snapshot = uploader.snapshot(all_blocks(source, digests), layout)
        self._written = source, digests
        bases = dict(self._kept.digests) if plan.base else {}
        changed = sum(record.changed for record in records)
        return ShardPart(self._shard, bases, digests, delta, snapshot, changed)

    def keep(self, digest: str) -> None:
        """Make the words that were encoded last, unchanged since, the base; ``digest`` is their manifest's."""
        assert self._written is not None, "keep follows encode"
        self.held = ""
        self._kept.keep(*self._written)
        self.held, self._written = digest, None
