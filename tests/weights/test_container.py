"""Blobs are safetensors files that any tool opens; manifests are canonical and check themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors import safe_open

from astraflow.weights.codec import EncodedBlock, Kind, encode_block, encode_dense
from astraflow.weights.container import BlobTable, format_of, read_blob, record_of, write_blob
from astraflow.weights.layout import Layout, TensorSpec
from astraflow.weights.manifest import Blob, Manifest, decode_manifest, encode_manifest, root_digest, seal
from astraflow.weights.sharding import Sharding
from storage.errors import DataError

LAYOUT = Layout((TensorSpec("a", "BF16", (20, 10)),), {"tied": "a"}, 100)


def blob() -> tuple[BlobTable, bytes]:
    words = np.arange(100, dtype=np.uint16)
    blocks = [encode_dense(words), encode_block(words, words + np.uint16(1))]
    records = tuple(record_of(index, each, base="b", result="r") for index, each in enumerate(blocks))
    table = BlobTable(1, "snapshot", records, LAYOUT)
    return table, write_blob(table, blocks)


def test_a_blob_gives_back_its_table_and_streams() -> None:
    table, data = blob()
    read, blocks = read_blob(data, where="here")
    assert read == table
    for record, stored in zip(table.blocks, blocks, strict=True):
        assert stored.record == record
        assert [len(stream) for _, stream in stored.streams] == [each.size_bytes for each in record.streams]


def test_safetensors_opens_a_blob(tmp_path: Path) -> None:
    data = blob()[1]
    (tmp_path / "blob.safetensors").write_bytes(data)
    with safe_open(str(tmp_path / "blob.safetensors"), "numpy") as opened:
        assert json.loads(opened.metadata()["astraflow"])["part"] == "snapshot"
        assert sorted(opened.keys()) == ["00000000", "00000001"]
        _, blocks = read_blob(data, where="here")
        for stored in blocks:
            assert opened.get_tensor(stored.record.tensor).tobytes() == b"".join(each for _, each in stored.streams)
    assert int.from_bytes(data[:8], "little") % 8 == 0


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: b"",
        lambda data: b"\xff" * 8 + data[8:],
        lambda data: data.replace(b"astraflow", b"other----"),
        lambda data: data.replace(b"__metadata__", b"__metadaty__"),
        lambda data: data.replace(b'format\\":1', b'format\\":3'),
    ],
)
def test_what_is_not_such_a_file_is_refused(damage: Any) -> None:
    with pytest.raises(DataError, match="here") as caught:
        read_blob(damage(blob()[1]), where="here")
    assert caught.value.kind == "container"


def test_what_came_with_format_2_is_refused_in_format_1() -> None:
    record = record_of(0, EncodedBlock(Kind.CLASSES, 1, ()), base="b", result="r")
    sharded = msgspec.structs.replace(LAYOUT, sharding=Sharding(2))
    for blocks, layout in (((record,), None), ((), sharded)):
        assert format_of(blocks, layout) == 2
        data = write_blob(BlobTable(2, "delta", blocks, layout), [])
        assert read_blob(data, where="here")[0].format == 2
        with pytest.raises(DataError, match="here"):
            read_blob(data.replace(b'format\\":2', b'format\\":1'), where="here")
    assert format_of((), LAYOUT) == 1


def manifest(**changes: Any) -> Manifest:
    fields: dict[str, Any] = {
        "policy": "solver",
        "version": 3,
        "step": 3,
        "incarnation": 1,
        "batch": 2,
        "skipped": {"2": [7, 9]},
        "kind": "delta",
        "base": 2,
        "base_digest": "d2",
        "digest": "d3",
        "layout": "l",
        "anchor": 0,
        "delta": (Blob(name="x.safetensors", size_bytes=10, hash="h"),),
        "snapshot": (),
        "size_bytes": 10,
        "full_bytes": 100,
        "changed": 5,
        "writer": "w",
    }
    return seal(Manifest(**{**fields, **changes}))


def test_a_manifest_round_trips_and_its_bytes_are_stable() -> None:
    one = manifest()
    data = encode_manifest(one)
    assert decode_manifest(data, where="here", policy="solver", version=3) == one
    assert encode_manifest(manifest()) == data


@given(st.data())
def test_any_changed_byte_of_a_manifest_is_found(drawn: st.DataObject) -> None:
    data = bytearray(encode_manifest(manifest()))
    at = drawn.draw(st.integers(0, len(data) - 1))
    data[at] ^= drawn.draw(st.integers(1, 255))
    with pytest.raises(DataError, match="here") as caught:
        decode_manifest(bytes(data), where="here", policy="solver", version=3)
    assert caught.value.kind in ("undecodable", "digest")


@pytest.mark.parametrize(("policy", "version"), [("verifier", 3), ("solver", 2)])
def test_anothers_manifest_is_refused(policy: str, version: int) -> None:
    with pytest.raises(DataError) as caught:
        decode_manifest(encode_manifest(manifest()), where="here", policy=policy, version=version)
    assert caught.value.kind == "digest"


@pytest.mark.parametrize(
    "changes",
    [
        {"version": -1, "base": -1, "anchor": 0},
        {"base": 3},
        {"base": -2},
        {"anchor": 4},
        {"anchor": -1},
        {"anchor": 3},
        {"kind": "anchor"},
        {"kind": "anchor", "anchor": 3},
        {"base": -1},
    ],
)
def test_a_manifest_that_contradicts_itself_is_not_made(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"version|kind|anchor|delta"):
        manifest(**changes)


@pytest.mark.parametrize("bad", [("../x.safetensors", 1), ("x.pickle", 1), ("x.safetensors", -1)])
def test_a_blob_outside_its_folder_is_refused(bad: tuple[str, int]) -> None:
    with pytest.raises(ValueError, match="not a blob"):
        Blob(name=bad[0], size_bytes=bad[1], hash="h")


def test_a_newer_format_is_refused() -> None:
    data = msgspec.json.decode(encode_manifest(manifest()))
    with pytest.raises(DataError) as caught:
        decode_manifest(msgspec.json.encode({**data, "format": 2}), where="here", policy="solver", version=3)
    assert caught.value.kind == "undecodable"


def test_the_root_digest_depends_on_order_and_layout() -> None:
    roots = {root_digest("l", ["a", "b"]), root_digest("l", ["b", "a"]), root_digest("m", ["a", "b"])}
    assert len(roots | {root_digest("l", ["a"])}) == 4
