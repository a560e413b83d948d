"""A blob: some blocks of one version in one safetensors file, with a table of what each is.

A safetensors file can be mapped, read by ranges and looked into with other people's tools. Each block is
one U8 tensor that holds its streams one after the other; the table (``BlobTable``) is JSON under the
key ``astraflow`` of the file's metadata. It is read and written here, byte for byte, because a reader must
get at blocks without a copy and a writer must always give the same bytes.

Invariant: a blob is parsed only after its digest was compared with the manifest's; parsing trusts nothing anyway.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import msgspec
import xxhash

from astraflow.weights.codec import Codec, EncodedBlock, Kind
from astraflow.weights.layout import Layout
from storage.errors import DataError

FORMAT = 2  # the newest that is read; a blob is written in the oldest that has what it holds
_LENGTH_BYTES = 8  # the header's length, little-endian
_ALIGN = 8  # safetensors: data starts at a multiple of 8


class StreamSpec(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One stream of a block: how it is packed and how long it is."""

    codec: Codec
    size_bytes: int


class BlockRecord(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One stored block. ``base`` and ``result`` are xxh3-128 of its words before and after; no base in a snapshot."""

    block: int
    kind: Kind
    changed: int
    base: str
    result: str
    streams: tuple[StreamSpec, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of its tensor."""
        return sum(stream.size_bytes for stream in self.streams)

    @property
    def tensor(self) -> str:
        """Its tensor's name in the file."""
        return f"{self.block:08d}"


class BlobTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is in a blob. A snapshot's first blob carries the tensor table. ``ValueError`` if its format lacks that."""

    format: Literal[1, 2]
    part: Literal["delta", "snapshot"]
    blocks: tuple[BlockRecord, ...]
    layout: Layout | None = None

    def __post_init__(self) -> None:
        if self.format < format_of(self.blocks, self.layout):
            raise ValueError(f"format {self.format} has neither classes nor sharding")


def format_of(blocks: Iterable[BlockRecord], layout: Layout | None) -> Literal[1, 2]:
    """The oldest format that can hold these: classes and sharding came with format 2."""
    sharded = layout is not None and layout.sharding is not msgspec.UNSET
    return 2 if sharded or any(record.kind is Kind.CLASSES for record in blocks) else 1


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A block's record and its packed streams, as read from a blob."""

    record: BlockRecord
    streams: tuple[tuple[Codec, bytes], ...]


def record_of(index: int, encoded: EncodedBlock, *, base: str, result: str) -> BlockRecord:
    """The table row of an encoded block."""
    streams = tuple(StreamSpec(codec, len(data)) for codec, data in encoded.streams)
    return BlockRecord(index, encoded.kind, encoded.changed, base, result, streams)


def digest_blob(data: bytes) -> str:
    """xxh3-128 of a whole blob, as hex."""
    return xxhash.xxh3_128_hexdigest(data)


def write_blob(table: BlobTable, blocks: list[EncodedBlock]) -> bytes:
    """The blob of ``blocks``, which stand in the table's order."""
    header: dict[str, object] = {"__metadata__": {"astraflow": msgspec.json.encode(table).decode()}}
    at = 0
    for record in table.blocks:
        header[record.tensor] = {
            "dtype": "U8",
            "shape": [record.size_bytes],
            "data_offsets": [at, at + record.size_bytes],
        }
        at += record.size_bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGN)
    streams = (data for block in blocks for _, data in block.streams)
    return b"".join((len(text).to_bytes(_LENGTH_BYTES, "little"), text, *streams))


def read_blob(data: bytes, *, where: str) -> tuple[BlobTable, Iterator[StoredBlock]]:
    """The blob's table, and its blocks one by one.

    Raises ``DataError`` naming ``where``: kind ``container`` when it is not such a file.
    """
    try:
        start = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
        header = msgspec.json.decode(data[_LENGTH_BYTES:start], type=dict[str, dict[str, object]])
        table = msgspec.json.decode(str(header["__metadata__"]["astraflow"]), type=BlobTable)
        size_bytes = sum(record.size_bytes for record in table.blocks)
        if start + size_bytes != len(data):
            raise ValueError(f"it should have {start + size_bytes} bytes and has {len(data)}")
    except (msgspec.DecodeError, ValueError, KeyError) as error:
        raise DataError(
            f"not a blob of weights in a format up to {FORMAT}: {error}",
            where=where,
            remedy="A newer writer needs a newer reader; a damaged blob is passed over from an anchor",
            kind="container",
        ) from error
    return table, _blocks(data, start, table)


def _blocks(data: bytes, at: int, table: BlobTable) -> Iterator[StoredBlock]:
    for record in table.blocks:
        streams = []
        for stream in record.streams:
            streams.append((stream.codec, data[at : at + stream.size_bytes]))
            at += stream.size_bytes
        yield StoredBlock(record, tuple(streams))
