"""Formats 1 and 2, as checked in under ``golden``: every later reader must read them, every writer write their like.

Streams may pack differently with another release of a compressor, so what is compared byte for byte is
what this project writes itself: manifests, tables and the layout of blobs. Run this file with a format's
number and a folder to write the versions there (only for a new format).
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from astraflow.weights.codec import Codec, EncodedBlock, Kind
from astraflow.weights.container import format_of, read_blob, write_blob
from astraflow.weights.layout import layout_of
from astraflow.weights.manifest import decode_manifest, encode_manifest
from astraflow.weights.publisher import Publisher
from astraflow.weights.sharding import Sharding
from astraflow.weights.shards import ShardEncoder
from astraflow.weights.subscriber import Subscriber
from storage.keys import RunKeys
from storage.memory import MemoryStore

KEYS = RunKeys("run")
GOLDEN = Path(__file__).parent / "golden"
SHARDS = 2
DIGESTS = [
    "8ec7ecff805f53e3189d00b219f3f99cf39dd47dd28c389a33e8882eb6dc1a34",
    "58d29ba0f239f6b5cb21b47f01610bf1ddbfbfa8f0a32c0eef2f167b44f67d89",
    "58d29ba0f239f6b5cb21b47f01610bf1ddbfbfa8f0a32c0eef2f167b44f67d89",
    "0b97e2c34bfac6a1e69451d69c8d3f13c3c803b8e45e60f1e42762167b6cfde9",
]
SHARDED_DIGESTS = [
    "376a780844a7900b53c5ef82c61d241df47447692f793c9010dfe95841491efb",
    "5fe264508c8b42fd643d0ad4c2db70bf9ddc7d9a25e8bcd1b14b2ca2b457896a",
]


def golden_versions() -> list[dict[str, torch.Tensor]]:
    """Four versions by integer arithmetic: a sparse step, no change, a dense one."""
    spread = (np.arange(300, dtype=np.uint32) * 40503) & 0xFFFF
    words = ((spread & 0x80FF) | 0x3E00 | ((spread & 0x0100) >> 1)).astype(np.uint16)
    stepped = words.copy()
    stepped[7::31] += 1
    stepped[40] -= 2
    noisy = stepped.copy()
    noisy[100:200] = (words[:100][::-1] ^ 0x8055) & 0xBFFF
    small = np.arange(12, dtype=np.uint8)
    return [_tensors(words, small), _tensors(stepped, small + 1), _tensors(stepped, small + 1), _tensors(noisy, small)]


def _tensors(words: np.ndarray, small: np.ndarray) -> dict[str, torch.Tensor]:  # type: ignore[type-arg]
    flat = torch.from_numpy(words.copy()).view(torch.bfloat16)
    return {
        "embed": flat[:96].reshape(12, 8),
        "layers.0.w": flat[96:].reshape(4, 51),
        "lm_head": flat[:96].reshape(12, 8),
        "none": torch.empty(0, 3).half(),
        "scale": torch.from_numpy(small.copy()).view(torch.float8_e4m3fn),
        "step": flat[:5].float(),
    }


def sharded_versions() -> list[dict[str, torch.Tensor]]:
    """Two versions in shards: small words change more often than large ones, by one step up or down."""
    drawn = np.arange(320 * 100, dtype=np.uint32)
    for factor in (2654435761, 2246822519):
        drawn = (drawn ^ (drawn >> 15)) * np.uint32(factor)
    words = (((drawn & 0x8000) | 0x3A00) + ((drawn >> 3) & 0x3FF)).astype(np.uint16)
    often = 9 - ((words >> 7) & 7)
    up_or_down = ((drawn >> 30) & 1) * 2 - 1
    stepped = np.where((drawn >> 16) % 10 < often, words + up_or_down, words).astype(np.uint16)
    return [
        {"big": torch.from_numpy(each).view(torch.bfloat16).reshape(320, 100), "norm": torch.ones(6, dtype=torch.half)}
        for each in (words, stepped)
    ]


def golden_store(number: int = 1) -> MemoryStore:
    store = MemoryStore()
    folder = GOLDEN / f"format-{number}"
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            store.put(path.relative_to(folder).as_posix(), path.read_bytes())
    return store


@pytest.mark.parametrize("version", range(4))
def test_every_golden_version_is_read(version: int) -> None:
    update = Subscriber(golden_store(), KEYS, "solver").fetch(version)
    expected = golden_versions()[version]
    assert update.tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        got = update.tensors[name]
        assert (got.dtype, got.shape) == (tensor.dtype, tensor.shape)
        assert torch.equal(got.contiguous().view(torch.uint8), tensor.contiguous().view(torch.uint8))
    assert update.digest == DIGESTS[version]


@pytest.mark.parametrize("version", range(2))
def test_every_golden_version_of_shards_is_read(version: int) -> None:
    update = Subscriber(golden_store(2), KEYS, "solver").fetch(version)
    expected = sharded_versions()[version]
    assert update.tensors.keys() == expected.keys()
    assert all(torch.equal(update.tensors[name], tensor) for name, tensor in expected.items())
    assert update.digest == SHARDED_DIGESTS[version]


@pytest.mark.parametrize(("number", "expected"), [(1, {Kind.SPARSE, Kind.DENSE}), (2, {Kind.DENSE, Kind.CLASSES})])
def test_manifests_and_blobs_are_written_byte_for_byte_as_before(number: int, expected: set[Kind]) -> None:
    store = golden_store(number)
    kinds, codecs = set(), set()
    for info in store.list(KEYS.weights("solver")):
        data = store.get(info.key)
        if info.key.endswith(".json"):
            version = int(info.key.split("/")[-2])
            manifest = decode_manifest(data, where=info.key, policy="solver", version=version)
            assert encode_manifest(manifest) == data
        else:
            table, stored = read_blob(data, where=info.key)
            blocks = [EncodedBlock(each.record.kind, each.record.changed, each.streams) for each in stored]
            assert write_blob(table, blocks) == data
            assert table.format == format_of(table.blocks, table.layout)
            kinds |= {block.kind for block in blocks}
            codecs |= {codec for block in blocks for codec, _ in block.streams}
    assert kinds == expected
    assert codecs == set(Codec)


@pytest.mark.parametrize("number", [1, 2])
def test_the_same_weights_have_the_golden_digests(number: int) -> None:
    store = MemoryStore()
    WRITERS[number](store)
    for version, digest in enumerate(DIGESTS if number == 1 else SHARDED_DIGESTS):
        key = KEYS.manifest("solver", version)
        assert decode_manifest(store.get(key), where=key, policy="solver", version=version).digest == digest


def write(store: MemoryStore) -> None:
    out = Publisher(store, KEYS, "solver", anchor_every=3, block_elements=64)
    for step, weights in enumerate(golden_versions()):
        out.publish(weights, step=step, incarnation=1, batch=step - 1, skipped={"0": [4]} if step else {})


def write_sharded(store: MemoryStore) -> None:
    layout = msgspec.structs.replace(layout_of(sharded_versions()[0]), sharding=Sharding(SHARDS, 100))
    out = Publisher(store, KEYS, "solver", anchor_every=64)
    ranks = [ShardEncoder(store, KEYS, "solver", layout, rank, coding="classes") for rank in range(SHARDS)]
    for step, weights in enumerate(sharded_versions()):
        plan = out.plan_parts(layout, held=ranks[0].held, step=step, incarnation=1, batch=step - 1)
        rows = [{"big": part} for part in weights["big"].chunk(SHARDS)]
        rows[0]["norm"] = weights["norm"]
        parts = [rank.encode(mine, plan) for rank, mine in zip(ranks, rows, strict=True)]
        digest = out.publish_parts(layout, plan, parts).digest
        for rank in ranks:
            rank.keep(digest)


WRITERS = {1: write, 2: write_sharded}

if __name__ == "__main__":
    written = MemoryStore()
    WRITERS[int(sys.argv[1])](written)
    for each in written.list(""):
        target = Path(sys.argv[2]) / each.key
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(written.get(each.key))
        print(each.key, each.size_bytes)
