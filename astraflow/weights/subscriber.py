"""A reader's side: learn of new versions and bring one copy of the weights up to any of them.

Pulled, never pushed. The copy is hashed before a delta is applied and after, block by block, so that
what comes out has the digest in its manifest or does not come out at all. A copy in the middle of an
update counts as torn until the last block is checked; a torn or foreign copy is given up for a
snapshot. An object that is damaged or gone is left out, and the next cheapest way is taken.

Invariant: ``version`` is -1 or the copy has, bit for bit, the weights of that version.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import closing, suppress
from itertools import islice

from astraflow.weights.catch_up import CatchUp, Hop, Road
from astraflow.weights.codec import Kind, SparseChange, decode_block
from astraflow.weights.container import StoredBlock, read_blob
from astraflow.weights.downloader import downloads
from astraflow.weights.kept_copy import KeptCopy
from astraflow.weights.kernels import unzigzag, zigzag
from astraflow.weights.layout import Layout
from astraflow.weights.manifest import Blob, Manifest, decode_manifest
from astraflow.weights.manifests import Manifests, find_way, hop_folder
from astraflow.weights.merged import Merges
from astraflow.weights.replica import Replica
from astraflow.weights.touched import Touched
from astraflow.weights.update import WeightUpdate
from storage.errors import DataError, NotFound
from storage.keys import RunKeys
from storage.log import NumberedLog
from storage.store import ObjectStore


class Subscriber:
    """One policy's weights as one process holds them. One thread at a time."""

    def __init__(
        self,
        store: ObjectStore,
        keys: RunKeys,
        policy: str,
        *,
        root: ObjectStore | None = None,
        keep: KeptCopy | None = None,
    ) -> None:
        """``root`` is asked for what can not be had intact from ``store``, a mirror of it; ``keep`` outlives us."""
        self._store = store
        self._root = root if root is not store else None
        self._keys = keys
        self._policy = policy
        self._log = NumberedLog(store, lambda version: keys.manifest(policy, version))
        self._newest = -1
        self._held: Manifest | None = None
        self._replica: Replica | None = None
        self._road: Road = (-1, -1)  # of the plan under way
        self._payload_bytes = 0
        self._touched = Touched()
        self._keep = keep
        self._found: Manifest | None = None  # what a kept copy says it is, until the store says the same
        if keep is not None and (found := keep.find(policy)) is not None:
            self._held, self._replica = found
            self._found = self._held
            self._newest = self._held.version
            self._touched.note_all(self._replica.layout.names)

    @property
    def version(self) -> int:
        """The version held, -1 if none (before the first ``fetch``, or after one that failed half-way)."""
        return self._held.version if self._held else -1

    def newest(self) -> int:
        """The newest version in the store, -1 if there is none. One request when nothing is new."""
        # Versions are never taken away; a kept copy, though, may have been another store's.
        self._newest = self._log.tail(self._newest + 1, taken=self._found is None) - 1
        return self._newest

    def fetch(self, version: int) -> WeightUpdate:
        """Bring the copy to ``version`` (newer or older than the one held) and return it.

        What is damaged or gone is passed over for the next cheapest way. Raises ``NotFound`` if there is no such
        version, ``DataError`` if it can not be had intact; the subscriber stays usable.
        """
        self._forget_if_foreign()
        self._forget_if_touched()
        try:
            return self._fetch(version)
        except DataError:
            if self._root is None:
                raise
        mirror, self._store = self._store, self._root
        try:
            return self._fetch(version)
        finally:
            self._store = mirror

    def _fetch(self, version: int) -> WeightUpdate:
        """Take the cheapest way, and the next one when an object of it is not whole."""
        manifests = Manifests(self.manifest)
        avoid: set[Road] = set()
        first: DataError | NotFound | None = None
        self._payload_bytes = 0
        while True:
            try:
                plan = self._plan(manifests, version, self.version, avoid)
            except DataError as error:
                raise (_lost(version, first) if first else error) from (first or error.__cause__)
            try:
                return self._follow(plan, manifests)
            except (DataError, NotFound) as error:
                avoid.add(self._road)
                first = first or error

    def plan(self, version: int, held: int = -1, avoid: Collection[Road] = ()) -> CatchUp:
        """The cheapest way to ``version`` for a reader that holds ``held``; nothing is downloaded but manifests.

        Raises ``NotFound`` if there is no such version, ``DataError`` if no way is left without those in ``avoid``.
        """
        return self._plan(Manifests(self.manifest), version, held, avoid)

    def _plan(self, manifests: Manifests, version: int, held: int, avoid: Collection[Road]) -> CatchUp:
        return find_way(manifests, self._merges_after, version, held, avoid=avoid, newest=self._newest)

    def manifest(self, version: int) -> Manifest:
        """The manifest of ``version``. Raises ``NotFound`` or ``DataError``."""
        return self._manifest_in(self._store, version)

    def _manifest_in(self, store: ObjectStore, version: int) -> Manifest:
        key = self._log.key(version)
        data = NumberedLog(store, self._log.key).read(version)
        if data is None:
            raise NotFound(
                f"version {version} of {self._policy} is not published",
                where=key,
                remedy="Ask for versions up to newest()",
                kind="not_found",
            )
        return decode_manifest(data, where=key, policy=self._policy, version=version)

    def merges(self, *, after: int = -1) -> Merges:
        """The merged deltas that end above version ``after``."""
        return Merges(self._store, self._keys, self._policy, after=after)

    def _merges_after(self, after: int) -> Merges:
        return self.merges(after=after)

    def _forget_if_foreign(self) -> None:
        """A kept copy may be of another run of the same name: once, it is compared with what the store has."""
        if (found := self._found) is None:
            return
        for store in (self._store, self._root):
            with suppress(DataError, NotFound):
                if store is not None and self._manifest_in(store, found.version) == found:
                    self._found = None
                    return
        self._found = self._held = None
        self._newest = -1

    def _forget_if_touched(self) -> None:
        """Hash the whole copy; give it up if somebody wrote to it since it was checked."""
        if self._held is None:
            return
        for block in self._copy.layout.blocks:
            self._copy.rehash(block)
        if self._copy.root() != self._held.digest:
            self._held = None

    def _follow(self, plan: CatchUp, manifests: Manifests) -> WeightUpdate:
        """Carry out a plan; the copy counts as held again after each stage whose digest it has."""
        with closing(downloads(self._store, self._blobs_of(plan))) as blobs:
            if plan.snapshot:
                self._road = (-1, plan.snapshot.version)
                self._load(plan.snapshot, self._counted(islice(blobs, len(plan.snapshot.snapshot))))
            for hop in plan.deltas:
                self._road = hop.road
                self._step(hop, manifests.read(hop.target), self._counted(islice(blobs, len(hop.blobs))))
        assert self._held is not None, "a plan ends with a manifest that was accepted, or is empty and one is held"
        changed, places = self._touched.take(self._copy.layout)
        return WeightUpdate(
            policy=self._policy,
            version=self._held.version,
            step=self._held.step,
            digest=self._held.digest,
            tensors=self._copy.tensors(),
            changed=changed,
            places=places,
            payload_bytes=self._payload_bytes,
        )

    def _counted(self, blobs: Iterable[tuple[str, bytes]]) -> Iterator[tuple[str, bytes]]:
        for where, data in blobs:
            self._payload_bytes += len(data)
            yield where, data

    def _blobs_of(self, plan: CatchUp) -> list[tuple[str, Blob]]:
        """All blobs of a plan with their keys, in the order of their use."""
        keys, policy = self._keys, self._policy
        stages = [(keys.version(policy, plan.snapshot.version), plan.snapshot.snapshot)] if plan.snapshot else []
        stages += [(hop_folder(keys, policy, hop), hop.blobs) for hop in plan.deltas]
        return [(folder + blob.name, blob) for folder, blobs in stages for blob in blobs]

    def _load(self, manifest: Manifest, blobs: Iterable[tuple[str, bytes]]) -> None:
        """Fill the copy from a snapshot, blob by blob."""
        self._tear()
        copy: Replica | None = None
        for where, data in blobs:
            table, stored_blocks = read_blob(data, where=where)
            if copy is None:
                copy = self._replica = self._replica_for(table.layout, manifest, where)
                copy.digests = [""] * len(copy.digests)
                self._touched.note_all(copy.layout.names)
            del data  # a blob is large, and the next one is under way
            for stored in stored_blocks:
                self._write(copy, stored, where)
        self._accept(manifest)

    def _replica_for(self, layout: Layout | None, manifest: Manifest, where: str) -> Replica:
        """The copy that there is, if it has the snapshot's layout, else a new one."""
        if layout is None or layout.digest != manifest.layout:
            raise _wrong("the snapshot has not the tensor table that its manifest names", where, "digest")
        if self._replica is not None and self._replica.layout == layout:
            return self._replica
        return Replica(layout) if self._keep is None else self._keep.new(layout)

    def _step(self, hop: Hop, target: Manifest, blobs: Iterable[tuple[str, bytes]]) -> None:
        """Apply one delta, once it has come whole; every base is compared before a byte is written."""
        copy, key = self._copy, self._log.key(hop.version)
        if copy.layout.digest != hop.layout or copy.root() != hop.source_digest:
            raise _wrong(f"the copy is not version {hop.source}, where this delta starts", key, "base")
        read = [(where, *read_blob(data, where=where)) for where, data in blobs]
        for where, table, _ in read:
            for record in table.blocks:
                before = record.result if hop.inverse else record.base
                if not 0 <= record.block < len(copy.digests) or before != copy.digests[record.block]:
                    raise _wrong(f"block {record.block} of the copy is not this delta's base", where, "base")
                if hop.inverse and record.kind is not Kind.SPARSE:
                    raise _wrong(f"block {record.block} is {record.kind} and leads only forward", where, "one_way")
        self._tear()
        for where, _, stored_blocks in read:
            for stored in stored_blocks:
                self._write(copy, stored, where, inverse=hop.inverse)
        self._accept(target)

    def _write(self, copy: Replica, stored: StoredBlock, where: str, *, inverse: bool = False) -> None:
        """Decode a block, write it into the copy, hash the result; note the tensors that it changes."""
        record = stored.record
        if not 0 <= record.block < len(copy.layout.blocks):
            raise _wrong(f"there is no block {record.block}", where, "container")
        block = copy.layout.blocks[record.block]
        words = copy.words(block)
        change = decode_block(
            record.kind, record.changed, stored.streams, size=block.size, word=words.dtype, where=where, base=words
        )
        if inverse and isinstance(change, SparseChange):
            change = SparseChange(change.positions, zigzag(0 - unzigzag(change.steps)))
        self._touched.note(change, words, block, copy.layout)
        change.write(words)
        if copy.rehash(block) != (record.base if inverse else record.result):
            raise _wrong(f"block {record.block} has another digest after its update", where, "digest")

    def _accept(self, manifest: Manifest) -> None:
        """All blocks together must have the manifest's digest; then the copy is that version."""
        if self._copy.root() != manifest.digest:
            raise _wrong(
                "the weights have another digest than their manifest", self._log.key(manifest.version), "digest"
            )
        self._held = manifest
        if self._keep is not None:
            self._keep.keep(manifest, self._copy.layout)

    def _tear(self) -> None:
        """From now until ``_accept`` the copy is no version."""
        self._held = None
        if self._keep is not None:
            self._keep.tear()

    @property
    def _copy(self) -> Replica:
        assert self._replica is not None, "a plan without a snapshot needs a copy"
        return self._replica


def _wrong(what: str, where: str, kind: str) -> DataError:
    remedy = "Another way is taken; if there is none, restore the object from a mirror"
    return DataError(what, where=where, remedy=remedy, kind=kind)


def _lost(version: int, first: DataError | NotFound) -> DataError:
    """What is said when no way is left: what was wrong with the cheapest."""
    return DataError(
        f"no intact way leads to version {version}: {first.what}",
        where=first.where,
        remedy="Restore the object from a mirror, or ask for another version",
        kind=first.kind,
    )
