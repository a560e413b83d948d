"""A reader's side: learn of new versions and bring one copy of the weights up to any of them.

Pulled, never pushed. The copy is hashed before a delta is applied and after, block by block, so that
what comes out has the digest in its manifest or does not come out at all. A copy in the middle of an
update counts as torn until the last block is checked; a torn or foreign copy is given up for the
newest snapshot.

Invariant: ``version`` is -1 or the copy has, bit for bit, the weights of that version.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from itertools import islice

from astraflow.weights.catch_up import CatchUp, plan_catch_up
from astraflow.weights.codec import decode_block
from astraflow.weights.container import StoredBlock, read_blob
from astraflow.weights.downloader import downloads
from astraflow.weights.layout import Layout
from astraflow.weights.manifest import Blob, Manifest, decode_manifest
from astraflow.weights.replica import Replica
from astraflow.weights.update import WeightUpdate
from storage.errors import DataError, NotFound
from storage.keys import RunKeys
from storage.log import NumberedLog
from storage.store import ObjectStore


class Subscriber:
    """One policy's weights as one process holds them. One thread at a time."""

    def __init__(self, store: ObjectStore, keys: RunKeys, policy: str) -> None:
        self._store = store
        self._keys = keys
        self._policy = policy
        self._log = NumberedLog(store, lambda version: keys.manifest(policy, version))
        self._newest = -1
        self._held: Manifest | None = None
        self._replica: Replica | None = None
        self._changed: set[str] = set()  # since the last update that was returned, over fetches that failed too

    @property
    def version(self) -> int:
        """The version held, -1 if none (before the first ``fetch``, or after one that failed half-way)."""
        return self._held.version if self._held else -1

    def newest(self) -> int:
        """The newest version in the store, -1 if there is none. One request when nothing is new."""
        self._newest = self._log.tail(self._newest + 1) - 1
        return self._newest

    def fetch(self, version: int) -> WeightUpdate:
        """Bring the copy to ``version`` (newer or older than the one held) and return it.

        A damaged delta or copy is passed over by starting from a snapshot. Raises ``NotFound`` if there is no such
        version, ``DataError`` if it can not be had intact; the subscriber stays usable.
        """
        self._forget_if_touched()
        plan = plan_catch_up(self.manifest, version, self.version)
        try:
            return self._follow(plan)
        except DataError:
            if plan.snapshot:
                raise
            return self._follow(plan_catch_up(self.manifest, version, held=-1))

    def manifest(self, version: int) -> Manifest:
        """The manifest of ``version``. Raises ``NotFound`` or ``DataError``."""
        key = self._log.key(version)
        data = self._log.read(version)
        if data is None:
            raise NotFound(
                f"version {version} of {self._policy} is not published",
                where=key,
                remedy="Ask for versions up to newest()",
                kind="not_found",
            )
        return decode_manifest(data, where=key, policy=self._policy, version=version)

    def _forget_if_touched(self) -> None:
        """Hash the whole copy; give it up if somebody wrote to it since it was checked."""
        if self._held is None:
            return
        for block in self._copy.layout.blocks:
            self._copy.rehash(block)
        if self._copy.root() != self._held.digest:
            self._held = None

    def _follow(self, plan: CatchUp) -> WeightUpdate:
        """Carry out a plan; the copy counts as held again after each manifest whose digest it has."""
        with closing(downloads(self._store, self._blobs_of(plan))) as blobs:
            if plan.snapshot:
                self._load(plan.snapshot, islice(blobs, len(plan.snapshot.snapshot)))
            for delta in plan.deltas:
                self._step(delta, islice(blobs, len(delta.delta)))
        assert self._held is not None, "a plan ends with a manifest that was accepted, or is empty and one is held"
        aliases = self._copy.layout.aliases
        changed = self._changed | {alias for alias, name in aliases.items() if name in self._changed}
        self._changed = set()
        return WeightUpdate(
            policy=self._policy,
            version=self._held.version,
            step=self._held.step,
            digest=self._held.digest,
            tensors=self._copy.tensors(),
            changed=frozenset(changed),
            payload_bytes=plan.size_bytes,
        )

    def _blobs_of(self, plan: CatchUp) -> list[tuple[str, Blob]]:
        """All blobs of a plan with their keys, in the order of their use."""
        stages = [(plan.snapshot, plan.snapshot.snapshot)] if plan.snapshot else []
        stages += [(delta, delta.delta) for delta in plan.deltas]
        return [
            (self._keys.version(self._policy, manifest.version) + blob.name, blob)
            for manifest, blobs in stages
            for blob in blobs
        ]

    def _load(self, manifest: Manifest, blobs: Iterable[tuple[str, bytes]]) -> None:
        """Fill the copy from a snapshot, blob by blob."""
        self._held = None
        copy: Replica | None = None
        for where, data in blobs:
            table, stored_blocks = read_blob(data, where=where)
            if copy is None:
                copy = self._replica = self._replica_for(table.layout, manifest, where)
                copy.digests = [""] * len(copy.digests)
            for stored in stored_blocks:
                self._write(copy, stored, where)
        self._accept(manifest)
        self._changed = set(self._copy.layout.names)

    def _replica_for(self, layout: Layout | None, manifest: Manifest, where: str) -> Replica:
        """The copy that there is, if it has the snapshot's layout, else a new one."""
        if layout is None or layout.digest != manifest.layout:
            raise _wrong("the snapshot has not the tensor table that its manifest names", where, "digest")
        if self._replica is not None and self._replica.layout == layout:
            return self._replica
        return Replica(layout)

    def _step(self, manifest: Manifest, blobs: Iterable[tuple[str, bytes]]) -> None:
        """Apply one delta, once it has come whole; every base is compared before a byte is written."""
        copy = self._copy
        if copy.layout.digest != manifest.layout or copy.root() != manifest.base_digest:
            where = self._log.key(manifest.version)
            raise _wrong(f"the copy is not version {manifest.base}, this delta's base", where, "base")
        read = [(where, *read_blob(data, where=where)) for where, data in blobs]
        for where, table, _ in read:
            for record in table.blocks:
                if not 0 <= record.block < len(copy.digests) or record.base != copy.digests[record.block]:
                    raise _wrong(f"block {record.block} of the copy is not this delta's base", where, "base")
        self._held = None
        for where, _, stored_blocks in read:
            for stored in stored_blocks:
                self._write(copy, stored, where)
        self._accept(manifest)

    def _write(self, copy: Replica, stored: StoredBlock, where: str) -> None:
        """Decode a block, write it into the copy, hash the result; note the tensors that it changes."""
        record = stored.record
        if not 0 <= record.block < len(copy.layout.blocks):
            raise _wrong(f"there is no block {record.block}", where, "container")
        block = copy.layout.blocks[record.block]
        words = copy.words(block)
        change = decode_block(
            record.kind, record.changed, stored.streams, size=block.size, word=words.dtype, where=where
        )
        pieces = copy.layout.pieces(block)
        self._changed.update(piece.name for piece in pieces if change.touches(words, piece.start, piece.stop))
        change.write(words)
        if copy.rehash(block) != record.result:
            raise _wrong(f"block {record.block} has another digest after its update", where, "digest")

    def _accept(self, manifest: Manifest) -> None:
        """All blocks together must have the manifest's digest; then the copy is that version."""
        if self._copy.root() != manifest.digest:
            raise _wrong(
                "the weights have another digest than their manifest", self._log.key(manifest.version), "digest"
            )
        self._held = manifest

    @property
    def _copy(self) -> Replica:
        assert self._replica is not None, "a plan without a snapshot needs a copy"
        return self._replica


def _wrong(what: str, where: str, kind: str) -> DataError:
    remedy = "The copy is filled again from a snapshot; if that fails too, restore the object from a mirror"
    return DataError(what, where=where, remedy=remedy, kind=kind)
