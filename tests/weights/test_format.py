"""A second reader, written from ``FORMAT.md`` alone, reads the golden files: the document says enough.

It imports nothing from the package under test.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import blake3
import numpy as np
import pytest
import xxhash
import zstandard
from pcodec import standalone

GOLDEN = Path(__file__).parent / "golden"
WORDS = {"BF16": "<u2", "F16": "<u2", "F32": "<u4", "F8_E4M3": "u1", "F8_E5M2": "u1"}


def folder_of(number: int, version: int) -> Path:
    return GOLDEN / f"format-{number}" / "run" / "weights" / "solver" / f"{version:08d}"


def manifest_of(number: int, version: int) -> dict[str, Any]:
    text = (folder_of(number, version) / "manifest.json").read_text()
    manifest: dict[str, Any] = json.loads(text)
    unchecked = text.replace(f'"check":"{manifest["check"]}"', '"check":""')
    assert blake3.blake3(unchecked.encode()).hexdigest() == manifest["check"]
    return manifest


def blob_of(number: int, version: int, blob: dict[str, Any]) -> tuple[dict[str, Any], dict[int, bytes]]:
    data = (folder_of(number, version) / blob["name"]).read_bytes()
    assert (len(data), xxhash.xxh3_128_hexdigest(data)) == (blob["size_bytes"], blob["hash"])
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    table = json.loads(header.pop("__metadata__")["astraflow"])
    spans = {int(name): each["data_offsets"] for name, each in header.items()}
    return table, {number: data[start + first : start + last] for number, (first, last) in spans.items()}


def unpack(codec: str, data: bytes, kind: str) -> list[int]:
    if codec == "pco":
        return [int(number) for number in standalone.simple_decompress(data)]
    plain = zstandard.ZstdDecompressor().decompress(data) if codec == "zstd" else data
    return [int(number) for number in np.frombuffer(plain, kind)]


def step_word(old: int, step: int, bits: int) -> int:
    top, ones = 1 << (bits - 1), (1 << bits) - 1
    order = old ^ ones if old & top else old | top
    order = (order + ((step >> 1) ^ (ones if step & 1 else 0))) & ones
    return order & ~top if order & top else order ^ ones


def classes_of(words: np.ndarray, starts: list[int]) -> np.ndarray:  # type: ignore[type-arg]
    bits = 8 * words.dtype.itemsize
    keys = (words & ((1 << (bits - 1)) - 1)) >> max(bits - 9, 0)
    return np.searchsorted(starts, keys, side="right") - 1


def apply_classes(words: np.ndarray, streams: list[tuple[str, bytes]]) -> None:  # type: ignore[type-arg]
    starts, counts = unpack(*streams[0], "u1"), unpack(*streams[1], "<u4")
    in_class = classes_of(words, starts)
    found = []
    for index, count in enumerate(counts):
        gaps, steps = (unpack(*streams[place], "<u4") for place in (2 + 2 * index, 3 + 2 * index))
        assert len(gaps) == len(steps) == count
        members, rank = np.flatnonzero(in_class == index), -1
        for gap, step in zip(gaps, steps, strict=True):
            rank += gap + 1
            found.append((members[rank], step))
    for position, step in found:
        words[position] = step_word(int(words[position]), step, 8 * words.dtype.itemsize)


def apply(words: np.ndarray, record: dict[str, Any], data: bytes) -> None:  # type: ignore[type-arg]
    streams, at = [], 0
    for codec, size_bytes in record["streams"]:
        streams.append((codec, data[at : at + size_bytes]))
        at += size_bytes
    if record["kind"] == "sparse":
        position = -1
        gaps, steps = (unpack(codec, each, "<u4") for codec, each in streams)
        for gap, step in zip(gaps, steps, strict=True):
            position += gap + 1
            words[position] = step_word(int(words[position]), step, 8 * words.dtype.itemsize)
    elif record["kind"] == "classes":
        apply_classes(words, streams)
    else:
        planes = [unpack(codec, each, "u1") for codec, each in streams]
        words[:] = [sum(byte << (8 * place) for place, byte in enumerate(each)) for each in zip(*planes, strict=True)]
    assert xxhash.xxh3_128_hexdigest(words.tobytes()) == record["result"]


def owners_of(tensor: dict[str, Any], sharding: dict[str, int] | None) -> list[tuple[int, int]]:
    """(shard, elements) of a tensor, in order."""
    shape, size = tensor["shape"], int(np.prod(tensor["shape"]))
    if sharding is None or not shape or size < sharding["from_elements"]:
        return [(0, size)] if size else []
    each = -(-shape[0] // sharding["shards"])
    rows = [min(shape[0] - first, each) for first in range(0, shape[0], each)]
    return [(shard, count * size // shape[0]) for shard, count in enumerate(rows)]


def blocks_of(layout: dict[str, Any]) -> list[np.ndarray]:  # type: ignore[type-arg]
    blocks = []
    for dtype, word in WORDS.items():
        owned: list[list[int]] = []
        for tensor in layout["tensors"]:
            for shard, size in owners_of(tensor, layout.get("sharding")) if tensor["dtype"] == dtype else []:
                if owned and owned[-1][0] == shard:
                    owned[-1][1] += size
                else:
                    owned.append([shard, size])
        for _, size in owned:
            for start in range(0, size, layout["block_elements"]):
                blocks.append(np.zeros(min(layout["block_elements"], size - start), word))
    return blocks


def root_of(manifest: dict[str, Any], blocks: list[np.ndarray]) -> str:  # type: ignore[type-arg]
    digests = [xxhash.xxh3_128_hexdigest(block.tobytes()) for block in blocks]
    lines = ["astraflow weights 1", manifest["layout"], *digests]
    return str(blake3.blake3("".join(f"{line}\n" for line in lines).encode()).hexdigest())


def snapshot_of(number: int, version: int) -> tuple[dict[str, Any], list[np.ndarray]]:  # type: ignore[type-arg]
    layout: dict[str, Any] = {}
    blocks: list[np.ndarray] = []  # type: ignore[type-arg]
    manifest = manifest_of(number, version)
    for blob in manifest["snapshot"]:
        table, data = blob_of(number, version, blob)
        if table["layout"]:
            layout = table["layout"]
            blocks = blocks_of(layout)
        for record in table["blocks"]:
            apply(blocks[record["block"]], record, data[record["block"]])
    assert blake3.blake3(json.dumps(layout, separators=(",", ":")).encode()).hexdigest() == manifest["layout"]
    assert root_of(manifest, blocks) == manifest["digest"]
    return layout, blocks


@pytest.mark.parametrize(
    ("number", "version", "aliases"), [(1, 0, {"lm_head": "embed"}), (1, 3, {"lm_head": "embed"}), (2, 0, {})]
)
def test_snapshots_are_read(number: int, version: int, aliases: dict[str, str]) -> None:
    layout, _ = snapshot_of(number, version)
    assert layout["aliases"] == aliases


@pytest.mark.parametrize(("number", "last"), [(1, 3), (2, 1)])
def test_deltas_lead_from_the_first_snapshot_to_the_last(number: int, last: int) -> None:
    _, blocks = snapshot_of(number, 0)
    for version in range(1, last + 1):
        manifest = manifest_of(number, version)
        assert manifest["base"] == version - 1
        assert manifest["base_digest"] == root_of(manifest, blocks)
        for blob in manifest["delta"]:
            table, data = blob_of(number, version, blob)
            for record in table["blocks"]:
                block = blocks[record["block"]]
                assert xxhash.xxh3_128_hexdigest(block.tobytes()) == record["base"]
                apply(block, record, data[record["block"]])
        assert root_of(manifest, blocks) == manifest["digest"]
    if manifest_of(number, last)["snapshot"]:
        for mine, other in zip(blocks, snapshot_of(number, last)[1], strict=True):
            assert np.array_equal(mine, other)
