"""A loaded batch as bytes, from rank 0 to the other ranks of its trainer. Not stored anywhere."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np

from astraflow.trainer.reader import LoadedBatch, Part, Sequence

_ARRAYS: tuple[tuple[str, Any], ...] = (
    ("prompt_ids", np.int32),
    ("response_ids", np.int32),
    ("logprobs", np.float32),
    ("loss_mask", np.bool_),
    ("lags", np.int64),
)
_SCALARS = ("pool", "reward", "temperature", "role", "slot", "top_p", "top_k", "min_p")


class _Row(msgspec.Struct, array_like=True):
    arrays: list[bytes]
    scalars: tuple[str, float, float, str, int, float, int, float]


class _Batch(msgspec.Struct, array_like=True):
    n: int
    groups: list[int]
    parts: list[list[_Row]]
    skipped: dict[int, str]


def encode_batch(batch: LoadedBatch) -> bytes:
    """The batch as msgpack."""
    parts = [[_row(sequence) for sequence in part.sequences] for part in batch.parts]
    wire = _Batch(batch.n, [part.group for part in batch.parts], parts, batch.skipped)
    return msgspec.msgpack.encode(wire)


def decode_batch(data: bytes) -> LoadedBatch:
    """The same batch again."""
    wire = msgspec.msgpack.decode(data, type=_Batch)
    parts = [Part(group, [_sequence(row) for row in rows]) for group, rows in zip(wire.groups, wire.parts, strict=True)]
    return LoadedBatch(wire.n, parts, wire.skipped)


def _row(sequence: Sequence) -> _Row:
    arrays = [np.ascontiguousarray(getattr(sequence, name), dtype=kind).tobytes() for name, kind in _ARRAYS]
    scalars: Any = tuple(getattr(sequence, name) for name in _SCALARS)
    return _Row(arrays, scalars)


def _sequence(row: _Row) -> Sequence:
    fields: dict[str, Any] = dict(zip(_SCALARS, row.scalars, strict=True))
    for (name, kind), data in zip(_ARRAYS, row.arrays, strict=True):
        fields[name] = np.frombuffer(data, dtype=kind)
    return Sequence(**fields)
