"""One block of weights as bytes: what changed against a base (``sparse``), or all of it (``dense``).

A published step at RL learning rates leaves 98–99.8 % of bf16 words as they were, and 9 of 10 changes
are one unit in the last place. So a block is kept as two streams of small integers, the gaps between
changes and the signed steps, each packed by pcodec; decoding is a cumsum and an addition in place. When
that would be larger than 0.6 of the raw block, the words themselves are stored as byte planes under zstd.
For slow links the same two streams can be kept for each class of the base's magnitude (``classes``): a third
smaller, some times slower.

Invariant: decoding looks at every stream before it returns, and nothing is written until ``write``; a
stream that does not fit its block is a ``DataError`` (kind ``codec``), never a wrong weight.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from io import BytesIO
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
import xxhash
import zstandard
from pcodec import ChunkConfig, DeltaSpec, ModeSpec, standalone

from astraflow.weights.classes import ClassedChanges, places_of, split_changes
from astraflow.weights.kernels import (
    Gaps,
    Positions,
    Words,
    apply_steps,
    find_changes,
    gaps_of,
    join_planes,
    plane_slices,
    positions_of,
)
from storage.errors import DataError

DENSE_ABOVE = 0.6  # of the raw block: a sparse form larger than this is not worth its decoding
_SAMPLE_BYTES = 2**21  # of a plane: if packing them saves next to nothing, the plane is stored as it is
_ZSTD_LEVEL = 1  # the exponent plane packs well at any level, the mantissa plane at none

Coding: TypeAlias = Literal["default", "classes"]

_Unsigned = npt.NDArray[np.unsignedinteger[Any]]


class Kind(StrEnum):
    """How a block is stored. ``same`` blocks have no streams and stand in no container."""

    SAME = "same"
    SPARSE = "sparse"
    CLASSES = "classes"  # sparse, by class of the base's magnitude: decodes only beside its base
    DENSE = "dense"


class Codec(StrEnum):
    """How one stream of integers is packed."""

    PCO = "pco"  # pcodec standalone: level 8, classic mode, no delta
    ZSTD = "zstd"  # one frame with its content size, of bytes
    RAW = "raw"  # little-endian as it is


@dataclass(frozen=True, slots=True)
class EncodedBlock:
    """A block's kind, its number of changed words, and its packed streams in order."""

    kind: Kind
    changed: int
    streams: tuple[tuple[Codec, bytes], ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of all streams."""
        return sum(len(data) for _, data in self.streams)


SAME = EncodedBlock(Kind.SAME, 0, ())


@dataclass(frozen=True, slots=True)
class SparseChange:
    """Decoded steps: ``positions`` [C] rising within the block, ``steps`` [C] zigzag."""

    positions: Positions
    steps: Words

    def write(self, words: Words) -> None:
        """Step ``words`` [N] in place."""
        apply_steps(words, self.positions, self.steps)

    def touches(self, words: Words, start: int, stop: int) -> bool:
        """True if a word in [start, stop) will change."""
        first, last = np.searchsorted(self.positions, (start, stop))
        return bool(last > first)


@dataclass(frozen=True, slots=True)
class DenseChange:
    """A decoded whole block: words [N], as their byte planes, that replace what is there."""

    planes: tuple[npt.NDArray[np.uint8], ...]

    @classmethod
    def of(cls, words: Words) -> DenseChange:
        """The change to ``words`` [N], which must stay as they are."""
        by_byte = words.view(np.uint8).reshape(words.size, words.dtype.itemsize)
        return cls(tuple(by_byte.T))

    def words(self, word: np.dtype[Any]) -> Words:
        """A new array of what is written [N]."""
        new = np.empty(self.planes[0].size, word)
        self.write(new)
        return new

    def write(self, words: Words) -> None:
        """Overwrite ``words`` [N]."""
        join_planes(self.planes, words)

    def touches(self, words: Words, start: int, stop: int) -> bool:
        """True if a word in [start, stop) will change."""
        there = DenseChange.of(words).planes
        pairs = zip(there, self.planes, strict=True)
        return any(not np.array_equal(before[start:stop], after[start:stop]) for before, after in pairs)


Change = SparseChange | DenseChange


def digest_words(words: Words) -> str:
    """xxh3-128 of a block's little-endian bytes, as hex."""
    return xxhash.xxh3_128_hexdigest(words.data)


def encode_dense(*parts: Words) -> EncodedBlock:
    """A block that needs no base, given as one array or as ``parts`` of it in order: byte planes, zstd or raw.

    No plane is ever copied whole but into its stream, so that it takes little more than what it returns.
    """
    size = sum(part.size for part in parts)
    planes = range(parts[0].dtype.itemsize)
    return EncodedBlock(Kind.DENSE, size, tuple(_packed_plane(parts, byte, size) for byte in planes))


def _packed_plane(parts: Sequence[Words], byte: int, size: int) -> tuple[Codec, bytes]:
    """One byte of every word: zstd, or raw where that gains nothing, which mostly shows at once."""
    packer = zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compressobj(size=size)
    packed, taken = BytesIO(), 0
    for piece in plane_slices(parts, byte):
        packed.write(packer.compress(piece))
        taken += len(piece)
        if taken >= _SAMPLE_BYTES and taken - packed.tell() < _SAMPLE_BYTES // 8:  # the packer holds some back
            break
    else:
        packed.write(packer.flush())
        if packed.tell() < size:
            return Codec.ZSTD, packed.getvalue()
    del packed
    raw = BytesIO()
    raw.writelines(plane_slices(parts, byte))
    return Codec.RAW, raw.getvalue()


def encode_block(base: Words, new: Words, coding: Coding = "default") -> EncodedBlock:
    """The change from ``base`` to ``new`` (both [N], one word size) in its smallest kind.

    With ``classes`` a block of enough changes is coded by classes of its base, not as ``sparse``.
    """
    classed = split_changes(base, new) if coding == "classes" else None
    sparse = _packed_classes(classed) if classed else _packed(*find_changes(base, new))
    if sparse.size_bytes <= DENSE_ABOVE * new.nbytes:
        return sparse
    dense = encode_dense(new)
    return dense if dense.size_bytes < sparse.size_bytes else sparse


def encode_sparse(positions: Positions, steps: Words) -> EncodedBlock:
    """Steps [C] (zigzag) at rising ``positions`` [C] of a block as they are, however many."""
    return _packed(gaps_of(positions), steps)


def _packed(gaps: Gaps, steps: Words) -> EncodedBlock:
    if gaps.size == 0:
        return SAME
    return EncodedBlock(Kind.SPARSE, gaps.size, (_pack(gaps), _pack(_widened(steps))))


def _packed_classes(changes: ClassedChanges) -> EncodedBlock:
    heads = [(Codec.RAW, changes.starts.tobytes()), (Codec.RAW, changes.counts.tobytes())]
    pairs = [(_pack(gaps), _pack(_widened(steps))) for gaps, steps in changes.streams()]
    return EncodedBlock(Kind.CLASSES, changes.gaps.size, (*heads, *(stream for pair in pairs for stream in pair)))


def decode_block(
    kind: Kind,
    changed: int,
    streams: Sequence[tuple[Codec, bytes]],
    *,
    size: int,
    word: np.dtype[Any],
    where: str,
    base: Words | None = None,
) -> Change:
    """Unpack a block of ``size`` words of type ``word`` that is not ``same``; nothing is written yet.

    A ``classes`` block needs ``base`` [size], the words before the change: ``DataError`` (kind ``base``) without them.
    Raises ``DataError`` (kind ``codec``) naming ``where`` when a stream is damaged or does not fit the block.
    """
    try:
        if kind is Kind.CLASSES:
            return _decode_classes(changed, streams, word, base_needed(base, where))
        unpack = _decode_sparse if kind is Kind.SPARSE else _decode_dense
        return unpack(changed, streams, size, word)
    except (ValueError, RuntimeError, zstandard.ZstdError) as error:
        raise DataError(
            f"a {kind} block does not decode: {error}",
            where=where,
            remedy="The blob is damaged or of another format: the reader starts again from an anchor",
            kind="codec",
        ) from error


def _decode_sparse(changed: int, streams: Sequence[tuple[Codec, bytes]], size: int, word: np.dtype[Any]) -> Change:
    if len(streams) != 2 or not 0 < changed <= size:
        raise ValueError(f"{len(streams)} streams of {changed} changes for {size} words")
    gaps = _unpack(*streams[0], changed, np.dtype(np.uint32))
    steps = _unpack(*streams[1], changed, _wide(word))
    positions = positions_of(gaps, size)
    if positions[-1] >= size:
        raise ValueError(f"position {positions[-1]} is outside the block's {size} words")
    return SparseChange(positions, _narrowed(steps, word))


def _decode_classes(changed: int, streams: Sequence[tuple[Codec, bytes]], word: np.dtype[Any], base: Words) -> Change:
    classes = len(streams) // 2 - 1
    if not 0 < classes <= 256 or len(streams) % 2 or not 0 < changed <= base.size:
        raise ValueError(f"{len(streams)} streams of {changed} changes for {base.size} words")
    starts = _unpack(*streams[0], classes, np.dtype(np.uint8))
    counts = _unpack(*streams[1], classes, np.dtype(np.uint32))
    if int(counts.sum(dtype=np.uint64)) != changed:
        raise ValueError(f"the classes hold {int(counts.sum(dtype=np.uint64))} changes and not {changed}")
    pairs = list(zip(counts.tolist(), streams[2::2], streams[3::2], strict=True))
    gaps = np.concatenate([_unpack(*packed, count, np.dtype(np.uint32)) for count, packed, _ in pairs])
    steps = np.concatenate([_unpack(*packed, count, _wide(word)) for count, _, packed in pairs])
    return SparseChange(*places_of(ClassedChanges(starts, counts, gaps, _narrowed(steps, word)), base))


def base_needed(base: Words | None, where: str) -> Words:
    """``base``, or ``DataError`` of kind ``base`` where there is none."""
    if base is None:
        raise DataError(
            "this block can not be read without the words before the change",
            where=where,
            remedy="Give its base, or reach the version from a snapshot",
            kind="base",
        )
    return base


def _decode_dense(changed: int, streams: Sequence[tuple[Codec, bytes]], size: int, word: np.dtype[Any]) -> Change:
    if len(streams) != word.itemsize or changed != size:
        raise ValueError(f"{len(streams)} planes and {changed} changes for {size} words of {word.itemsize} bytes")
    return DenseChange(tuple(_unpack(codec, data, size, np.dtype(np.uint8)) for codec, data in streams))


def _wide(word: np.dtype[Any]) -> np.dtype[Any]:
    """Steps of bytes travel as u16: pcodec's byte streams are an extension that not every reader has."""
    return np.dtype(np.uint16) if word.itemsize == 1 else word


def _widened(steps: Words) -> Words:
    return steps.astype(_wide(steps.dtype), copy=False)


def _narrowed(steps: Words, word: np.dtype[Any]) -> Words:
    if steps.dtype != word and int(steps.max()) >> (8 * word.itemsize):
        raise ValueError("a step is wider than its word")
    return steps.astype(word, copy=False)


def _pack(numbers: _Unsigned) -> tuple[Codec, bytes]:
    config = ChunkConfig(compression_level=8, mode_spec=ModeSpec.classic(), delta_spec=DeltaSpec.no_op())
    return Codec.PCO, standalone.simple_compress(numbers, config)


def _unpack(codec: Codec, data: bytes, count: int, kind: np.dtype[Any]) -> Any:
    return _UNPACK[codec](data, count, kind)


def _unpack_pco(data: bytes, count: int, kind: np.dtype[Any]) -> Any:
    numbers = np.empty(count, kind)
    progress = standalone.simple_decompress_into(data, numbers)
    if progress.n_processed != count or not progress.finished:
        raise ValueError(f"a pcodec stream holds other than {count} numbers")
    return numbers


def _unpack_zstd(data: bytes, count: int, kind: np.dtype[Any]) -> Any:
    if zstandard.frame_content_size(data) != count * kind.itemsize:  # looked at before memory is taken
        raise ValueError(f"a zstd stream holds other than {count * kind.itemsize} bytes")
    return np.frombuffer(zstandard.ZstdDecompressor().decompress(data), kind)


def _unpack_raw(data: bytes, count: int, kind: np.dtype[Any]) -> Any:
    if len(data) != count * kind.itemsize:
        raise ValueError(f"a raw stream holds other than {count * kind.itemsize} bytes")
    return np.frombuffer(data, kind)


_UNPACK: dict[Codec, Callable[[bytes, int, np.dtype[Any]], Any]] = {
    Codec.PCO: _unpack_pco,
    Codec.ZSTD: _unpack_zstd,
    Codec.RAW: _unpack_raw,
}
