"""A merged delta as checked in under ``golden/merges-1``: every later reader must read it, every writer write its like.

The second half reads it by ``FORMAT.md`` alone. Run this file with a folder to write the objects there (only for a new
format).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import blake3
import numpy as np
import pytest
import torch
import xxhash
from pcodec import standalone

from astraflow.weights.codec import EncodedBlock
from astraflow.weights.container import read_blob, write_blob
from astraflow.weights.merged import Merges, decode_merge, encode_merge
from astraflow.weights.publisher import Publisher
from astraflow.weights.subscriber import Subscriber
from storage.keys import RunKeys
from storage.memory import MemoryStore

KEYS = RunKeys("run")
GOLDEN = Path(__file__).parent / "golden" / "merges-1"
RECORD = GOLDEN / "run" / "weights" / "solver" / "merged" / "00000003-00000000.json"


def golden_words() -> list[Any]:
    """Four versions by integer arithmetic; a word comes back to what it was, one moves twice."""
    words = (((np.arange(192, dtype=np.uint32) * 40503) & 0x80FF) | 0x3E00).astype(np.uint16)
    versions = [words.copy()]
    for step in range(1, 4):
        words[step::11] += 1
        words[40] += 3
        words[150] = versions[0][150] + (1 if step < 3 else 0)
        versions.append(words.copy())
    return versions


def write(store: MemoryStore) -> None:
    out = Publisher(store, KEYS, "solver", anchor_every=8, merge_every=(3,), block_elements=64)
    for step, words in enumerate(golden_words()):
        weights = {"a": torch.from_numpy(words).view(torch.bfloat16)}
        out.publish(weights, step=step, incarnation=1, batch=step - 1)
    assert out.settle(60)


def golden_store() -> MemoryStore:
    store = MemoryStore()
    for path in sorted(GOLDEN.rglob("*")):
        if path.is_file():
            store.put(path.relative_to(GOLDEN).as_posix(), path.read_bytes())
    return store


def test_the_golden_merge_is_read_in_both_directions() -> None:
    store, versions = golden_store(), golden_words()
    for version in (2,):  # no other way is left
        for info in list(store.list(KEYS.version("solver", version))):
            if info.key.endswith(".safetensors"):
                store.delete(info.key)
    reader = Subscriber(store, KEYS, "solver")
    for version in (0, 3, 0):
        words = reader.fetch(version).tensors["a"].view(torch.uint16).numpy()
        assert np.array_equal(words, versions[version])


def test_what_is_written_is_written_alike() -> None:
    data = RECORD.read_bytes()
    merge = decode_merge(data, where="", policy="solver", base=0, version=3)
    assert encode_merge(merge) == data
    for blob in merge.blobs:
        raw = (RECORD.parent / blob.name).read_bytes()
        table, stored = read_blob(raw, where=blob.name)
        blocks = [EncodedBlock(each.record.kind, each.record.changed, each.streams) for each in stored]
        assert write_blob(table, blocks) == raw
    store = MemoryStore()
    write(store)
    (mine,) = Merges(store, KEYS, "solver").ending(3)
    fields = ("base", "version", "base_digest", "digest", "layout", "changed", "format")
    assert [getattr(mine, field) for field in fields] == [getattr(merge, field) for field in fields]


def test_the_document_is_enough_to_read_it() -> None:
    text = RECORD.read_text()
    record = json.loads(text)
    unchecked = text.replace(f'"check":"{record["check"]}"', '"check":""')
    assert blake3.blake3(unchecked.encode()).hexdigest() == record["check"]
    assert (record["base"], record["version"], record["policy"], record["format"]) == (0, 3, "solver", 1)
    words, wanted = golden_words()[0], golden_words()[3]
    assert record["changed"] == int(np.count_nonzero(words != wanted))
    for blob in record["blobs"]:
        data = (RECORD.parent / blob["name"]).read_bytes()
        assert (len(data), xxhash.xxh3_128_hexdigest(data)) == (blob["size_bytes"], blob["hash"])
        start = 8 + int.from_bytes(data[:8], "little")
        table = json.loads(json.loads(data[8:start])["__metadata__"]["astraflow"])
        assert (table["part"], table["layout"]) == ("delta", None)
        for each in table["blocks"]:
            block = words[64 * each["block"] : 64 * each["block"] + 64]
            assert xxhash.xxh3_128_hexdigest(block.tobytes()) == each["base"]
            streams = []
            for _, size_bytes in each["streams"]:
                streams.append(standalone.simple_decompress(data[start : start + size_bytes]))
                start += size_bytes
            at = np.cumsum(streams[0].astype(np.int64) + 1) - 1
            for position, step in zip(at, streams[1], strict=True):
                old = int(block[position])
                order = (old ^ 0xFFFF) if old & 0x8000 else (old | 0x8000)
                order = (order + ((int(step) >> 1) ^ (0xFFFF if step & 1 else 0))) & 0xFFFF
                block[position] = order & 0x7FFF if order & 0x8000 else order ^ 0xFFFF
            assert xxhash.xxh3_128_hexdigest(block.tobytes()) == each["result"]
    assert np.array_equal(words, wanted)


@pytest.mark.parametrize("span", [(0, 3)])
def test_its_key_is_parsed(span: tuple[int, int]) -> None:
    assert KEYS.merge_span(KEYS.merge("solver", *span)) == span
    assert KEYS.merge_span(KEYS.merged("solver") + "00000003-00000000-w-1-delta-0000.safetensors") is None


if __name__ == "__main__":
    written = MemoryStore()
    write(written)
    for each in written.list(""):
        target = Path(sys.argv[1]) / each.key
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(written.get(each.key))
        print(each.key, each.size_bytes)
