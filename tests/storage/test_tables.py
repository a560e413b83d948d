"""Tables come back as they were, are refused when their bytes changed, and lie in the file as planned."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import DataError, NotFound
from storage.memory import MemoryStore
from storage.tables import encode_table, hash_bytes, read_table, write_table

SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("number", pa.int64()),
        ("tokens", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float32())),
        ("mask", pa.list_(pa.bool_())),
        ("turns", pa.list_(pa.struct([("role", pa.string()), ("start", pa.int32()), ("score", pa.float64())]))),
        ("reward", pa.float32()),
        ("parts", pa.map_(pa.string(), pa.float32())),
        ("fixed", pa.list_(pa.float32(), 2)),
        ("large", pa.large_list(pa.int32())),
        ("when", pa.timestamp("us", tz="UTC")),
        ("raw", pa.binary()),
    ]
)
floats = st.floats(width=32, allow_nan=False)
rows = st.fixed_dictionaries(
    {
        "id": st.text(max_size=8),
        "number": st.integers(-(2**63), 2**63 - 1),
        "tokens": st.lists(st.integers(0, 2**31 - 1), max_size=5),
        "logprobs": st.lists(floats, max_size=5),
        "mask": st.lists(st.booleans(), max_size=5),
        "turns": st.lists(
            st.fixed_dictionaries({"role": st.text(max_size=3), "start": st.integers(0, 9), "score": floats}),
            max_size=2,
        ),
        "reward": st.none() | floats,
        "parts": st.lists(st.tuples(st.text(max_size=3), floats), max_size=2, unique_by=lambda pair: pair[0]),
        "fixed": st.lists(floats, min_size=2, max_size=2),
        "large": st.lists(st.integers(0, 9), max_size=3),
        "when": st.just(datetime(2026, 1, 2, tzinfo=UTC)),
        "raw": st.binary(max_size=4),
    }
)


@settings(max_examples=50, deadline=None)
@given(st.lists(rows, max_size=6))
def test_round_trip(content: list[dict[str, object]]) -> None:
    store, table = MemoryStore(), pa.Table.from_pylist(content, SCHEMA)
    written = write_table(store, "t.parquet", table)
    assert read_table(store, "t.parquet", written.hash).equals(table)
    assert read_table(store, "t.parquet").schema.equals(SCHEMA)
    assert written.size_bytes == len(store.get("t.parquet"))
    assert written.hash == hash_bytes(store.get("t.parquet"))
    assert encode_table(table) == store.get("t.parquet"), "the same table gives the same bytes"


def test_some_columns_in_the_order_asked_for() -> None:
    store = MemoryStore()
    write_table(store, "t.parquet", pa.table({"a": [1], "b": [2.0], "c": ["x"]}))
    assert read_table(store, "t.parquet", columns=["c", "a"]).to_pydict() == {"c": ["x"], "a": [1]}
    assert read_table(store, "t.parquet", columns=[]).num_columns == 0


def test_changed_bytes_are_refused() -> None:
    store = MemoryStore()
    written = write_table(store, "t.parquet", pa.table({"a": [1, 2, 3]}))
    data = bytearray(store.get("t.parquet"))
    data[len(data) // 2] ^= 1
    store.put("t.parquet", bytes(data))
    with pytest.raises(DataError) as caught:
        read_table(store, "t.parquet", written.hash)
    assert caught.value.kind == "digest"
    assert caught.value.where == f"{store.url}/t.parquet"


@pytest.mark.parametrize("data", [b"", b"PAR1", b"not parquet at all", b"PAR1" + b"\0" * 40 + b"PAR1"])
def test_what_is_no_table_is_undecodable(data: bytes) -> None:
    store = MemoryStore()
    store.put("t.parquet", data)
    with pytest.raises(DataError) as caught:
        read_table(store, "t.parquet", hash_bytes(data))
    assert caught.value.kind == "undecodable"


def test_a_missing_column_is_undecodable() -> None:
    store = MemoryStore()
    write_table(store, "t.parquet", pa.table({"a": [1]}))
    with pytest.raises(DataError) as caught:
        read_table(store, "t.parquet", columns=["a", "b"])
    assert caught.value.kind == "undecodable"
    assert "b" in caught.value.what


def test_a_missing_object_is_not_found() -> None:
    with pytest.raises(NotFound):
        read_table(MemoryStore(), "t.parquet", "00")


def test_encodings() -> None:
    content = pa.Table.from_pylist(
        [{"id": "x", "tokens": [1, 2], "logprobs": [0.5], "reward": 1.0, "number": 3}], SCHEMA
    )
    group = pq.read_metadata(pa.BufferReader(encode_table(content))).row_group(0)
    columns = {group.column(index).path_in_schema: group.column(index) for index in range(group.num_columns)}
    assert {column.compression for column in columns.values()} == {"ZSTD"}
    for path in ("logprobs.list.element", "reward", "turns.list.element.score", "parts.key_value.value"):
        assert "BYTE_STREAM_SPLIT" in columns[path].encodings, path
    for path in ("id", "number", "turns.list.element.role"):
        assert columns[path].has_dictionary_page, path
    for path in ("tokens.list.element", "large.list.element", "mask.list.element", "logprobs.list.element"):
        assert not columns[path].has_dictionary_page, path


def test_digest_is_a_known_one() -> None:
    assert hash_bytes(b"") == "99aa06d3014798d86001c324468d497f"
