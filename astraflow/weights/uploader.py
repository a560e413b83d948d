"""Writes the blocks of a version as blobs, a bounded number of bytes at a time.

Blob names hold the incarnation and a random part, so that two trainers at the same version never touch
each other's bytes, and what a crash leaves behind is garbage and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from astraflow.weights.codec import EncodedBlock
from astraflow.weights.container import BlobTable, BlockRecord, digest_blob, format_of, write_blob
from astraflow.weights.layout import Layout
from astraflow.weights.manifest import Blob
from storage.errors import DataError
from storage.log import NumberedLog
from storage.store import ObjectStore

BLOB_BYTES = 2**25  # no blob of more than one block is larger: readers and writers hold a few at once


@dataclass(frozen=True, slots=True)
class Uploader:
    """Uploads blobs into ``folder`` (ends with /) under names that start with ``prefix``."""

    store: ObjectStore
    folder: str
    prefix: str
    blob_bytes: int = BLOB_BYTES

    def delta(self, blocks: Iterable[tuple[BlockRecord, EncodedBlock]]) -> tuple[Blob, ...]:
        """Upload changed blocks; without any there is no blob."""
        return self._upload("delta", blocks, None)

    def snapshot(self, blocks: Iterable[tuple[BlockRecord, EncodedBlock]], layout: Layout | None) -> tuple[Blob, ...]:
        """Upload all blocks, or all of a shard; the first blob carries the tensor table ``layout``, if it is given."""
        return self._upload("snapshot", blocks, layout)

    def _upload(
        self,
        part: Literal["delta", "snapshot"],
        blocks: Iterable[tuple[BlockRecord, EncodedBlock]],
        layout: Layout | None,
    ) -> tuple[Blob, ...]:
        blobs: list[Blob] = []
        records: list[BlockRecord] = []
        encoded: list[EncodedBlock] = []

        def close() -> None:
            carried = layout if not blobs else None
            table = BlobTable(format_of(records, carried), part, tuple(records), carried)
            data = write_blob(table, encoded)
            records.clear()
            encoded.clear()  # before the upload: it has them once more
            blobs.append(self._put(f"{self.prefix}-{part}-{len(blobs):04d}.safetensors", data))

        for record, block in blocks:
            if encoded and sum(each.size_bytes for each in encoded) + block.size_bytes > self.blob_bytes:
                close()
            records.append(record)
            encoded.append(block)
        if records or (layout and not blobs):
            close()
        return tuple(blobs)

    def _put(self, name: str, data: bytes) -> Blob:
        # A log of one record: it sends again when an answer is lost, and reads back what stands there.
        if NumberedLog(self.store, lambda _: self.folder + name).create(0, data) is not None:
            raise DataError(
                "another object has the name of a new blob",
                where=self.folder + name,
                remedy="Names are random: the store does not keep its word, or a copy of this process runs",
                kind="taken",
            )
        return Blob(name=name, size_bytes=len(data), hash=digest_blob(data))
