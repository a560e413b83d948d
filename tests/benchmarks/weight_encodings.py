"""The encodings that ``weights.py`` lays side by side: ours, and those that other systems send weights with.

Each turns a base and new words into a payload, and a payload and a copy of the base into the new words.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import zstandard

from astraflow.weights.codec import decode_block, encode_block
from astraflow.weights.kernels import Words


@dataclass(frozen=True)
class Encoding:
    """``apply(copy, payload)`` turns the base in ``copy`` into the new words."""

    encode: Callable[[Words, Words], Any]
    apply: Callable[[Words, Any], None]
    size_bytes: Callable[[Any], int]


def apply_ours(copy: Words, block: Any) -> None:
    decode_block(
        block.kind, block.changed, block.streams, size=copy.size, word=copy.dtype, where="benchmark", base=copy
    ).write(copy)


def encode_pairs(base: Words, new: Words) -> tuple[Any, Words]:
    at = np.flatnonzero(base != new).astype(np.int32)
    return at, new[at]


def apply_pairs(copy: Words, payload: tuple[Any, Words]) -> None:
    copy[payload[0]] = payload[1]


def encode_gaps(base: Words, new: Words) -> tuple[bytes, bytes]:
    """u16 gaps (longer ones are split by repeating the value that stands there) and values, zstd level 1."""
    at = np.flatnonzero(base != new)
    gaps = np.diff(at, prepend=0)
    if gaps.max(initial=0) > 0xFFFF:
        stops = [np.arange(0xFFFF, gap, 0xFFFF) + start - gap for start, gap in zip(at, gaps, strict=True)]
        at = np.union1d(at, np.concatenate(stops))
        gaps = np.diff(at, prepend=0)
    pack = zstandard.ZstdCompressor(level=1).compress
    return pack(gaps.astype(np.uint16).tobytes()), pack(new[at].tobytes())


def apply_gaps(copy: Words, payload: tuple[bytes, bytes]) -> None:
    gaps, values = (np.frombuffer(zstandard.ZstdDecompressor().decompress(data), np.uint16) for data in payload)
    copy[np.cumsum(gaps, dtype=np.int64)] = values


def encode_xor(base: Words, new: Words) -> bytes:
    return zstandard.ZstdCompressor(level=1).compress((base ^ new).tobytes())


def apply_xor(copy: Words, payload: bytes) -> None:
    copy ^= np.frombuffer(zstandard.ZstdDecompressor().decompress(payload), np.uint16)


ENCODINGS = {
    "default": Encoding(encode_block, apply_ours, lambda block: int(block.size_bytes)),
    "classes": Encoding(
        lambda base, new: encode_block(base, new, "classes"), apply_ours, lambda block: int(block.size_bytes)
    ),
    "int32_bf16": Encoding(encode_pairs, apply_pairs, lambda pair: int(pair[0].nbytes + pair[1].nbytes)),
    "u16_gap_bf16_zstd1": Encoding(encode_gaps, apply_gaps, lambda pair: len(pair[0]) + len(pair[1])),
    "xor_zstd1": Encoding(encode_xor, apply_xor, len),
}
