"""Bytes and speed of weight deltas, beside the encodings that other systems use, in one run.

    python tests/benchmarks/weights.py [--trace DIR] [--rate 3e-6] [--json]

``DIR`` holds a recorded trace: ``lr{rate}-base.safetensors`` (bf16 bit patterns as uint16) and
``lr{rate}-changes.safetensors`` (``v{k}.{tensor}.index`` and ``.bits`` of each later version). Without one,
weights and Adam-sized steps are drawn from a seed. Speeds are the best of some rounds, in GB of raw
weights a second; compare them with memcpy of the same run, not with another machine's.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import xxhash
import zstandard
from safetensors.numpy import load_file

from astraflow.weights.codec import decode_block, encode_block
from astraflow.weights.kernels import Words, find_changes
from astraflow.weights.publisher import Publisher
from storage.keys import RunKeys
from storage.memory import MemoryStore

ROUNDS = 5


@dataclass(frozen=True)
class Encoding:
    """``apply(copy, payload)`` turns the base in ``copy`` into the new words."""

    name: str
    encode: Callable[[Words, Words], Any]
    apply: Callable[[Words, Any], None]
    size_bytes: Callable[[Any], int]


@dataclass(frozen=True)
class Row:
    """One encoding's figures over all steps of the trace."""

    name: str
    bytes_per_changed: float
    ratio: float
    encode_gb_s: float
    apply_gb_s: float
    encode_to_memcpy: float
    apply_to_memcpy: float


def from_trace(folder: Path, rate: str) -> Iterator[Words]:
    """All versions of a recorded trace, as one flat run in name order."""
    base = load_file(folder / f"lr{rate}-base.safetensors")
    changes = load_file(folder / f"lr{rate}-changes.safetensors")
    names = sorted(base)
    version = 0
    while True:
        yield np.concatenate([base[name].reshape(-1) for name in names])
        version += 1
        if not any(key.startswith(f"v{version}.") for key in changes):
            return
        for name in names:
            if f"v{version}.{name}.index" in changes:
                base[name].reshape(-1)[changes[f"v{version}.{name}.index"]] = changes[f"v{version}.{name}.bits"]


def synthetic(rate: str, size: int = 8_000_000, steps: int = 2) -> Iterator[Words]:
    """fp32 masters with a normal spread of 0.04 and steps of one learning rate, cast to bf16."""
    rng = np.random.default_rng(0)
    masters = rng.normal(0, 0.04, size).astype(np.float32)
    for _ in range(steps + 1):
        bits = masters.view(np.uint32)
        yield ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
        masters += (float(rate) * rng.normal(0, 0.6, size)).astype(np.float32)


def apply_ours(copy: Words, block: Any) -> None:
    decode_block(block.kind, block.changed, block.streams, size=copy.size, word=copy.dtype, where="benchmark").write(
        copy
    )


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


ENCODINGS = (
    Encoding("astraflow (gaps + steps, pcodec)", encode_block, apply_ours, lambda block: int(block.size_bytes)),
    Encoding("int32 + bf16", encode_pairs, apply_pairs, lambda pair: int(pair[0].nbytes + pair[1].nbytes)),
    Encoding("u16 gaps + bf16, zstd-1", encode_gaps, apply_gaps, lambda pair: len(pair[0]) + len(pair[1])),
    Encoding("XOR, zstd-1", encode_xor, apply_xor, len),
)


def best_s(work: Callable[[], object]) -> float:
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def measure(encoding: Encoding, versions: list[Words], memcpy_gb_s: float) -> Row:
    size_bytes, changed, encode_s, apply_s, raw = 0, 0, 0.0, 0.0, 0
    for base, new in pairwise(versions):
        payload = encoding.encode(base, new)
        copy = base.copy()
        encoding.apply(copy, payload)
        if not np.array_equal(copy, new):
            raise SystemExit(f"{encoding.name} does not give back the weights")
        size_bytes += encoding.size_bytes(payload)
        changed += int(np.count_nonzero(base != new))
        raw += new.nbytes
        encode_s += best_s(lambda base=base, new=new: encoding.encode(base, new))  # type: ignore[misc]
        apply_s += best_s(lambda copy=copy, payload=payload: encoding.apply(copy, payload))  # type: ignore[misc]
    encode_gb_s, apply_gb_s = raw / encode_s / 1e9, raw / apply_s / 1e9
    return Row(
        encoding.name,
        size_bytes / changed,
        raw / size_bytes,
        encode_gb_s,
        apply_gb_s,
        encode_gb_s / memcpy_gb_s,
        apply_gb_s / memcpy_gb_s,
    )


def entropy_bits(shares: npt.NDArray[np.float64]) -> float:
    return float(-(shares * np.log2(shares)).sum())


def bernoulli_bytes(pairs: list[tuple[Words, Words]]) -> float:
    """Bytes per changed word of a perfect coder that takes places and steps as independent draws.

    A reader knows the base too, and small weights change more often: coders that use that can go below.
    """
    changed = sum(int(np.count_nonzero(base != new)) for base, new in pairs)
    share = changed / sum(base.size for base, _ in pairs)
    steps = np.concatenate([find_changes(base, new)[1] for base, new in pairs])
    counts = np.unique(steps, return_counts=True)[1]
    return (entropy_bits(np.array([share, 1 - share])) / share + entropy_bits(counts / changed)) / 8


def published_bytes(versions: list[Words]) -> float:
    """Bytes per changed word of whole versions in a store: blobs with their tables, and manifests."""
    keys = RunKeys("benchmark")
    store = MemoryStore()
    publisher = Publisher(store, keys, "policy", anchor_every=64)
    size_bytes = changed = 0
    for step, words in enumerate(versions):
        weights = {"words": torch.from_numpy(words).view(torch.bfloat16)}
        manifest = publisher.publish(weights, step=step, incarnation=0, batch=step - 1)
        if step:
            changed += manifest.changed
            size_bytes += sum(info.size_bytes for info in store.list(keys.version("policy", manifest.version)))
    return size_bytes / changed


def report(versions: list[Words], rate: str, source: str) -> dict[str, Any]:
    pairs = list(pairwise(versions))
    density = float(np.mean([np.mean(base != new) for base, new in pairs]))
    spare = np.empty_like(versions[0])
    memcpy_gb_s = spare.nbytes / best_s(lambda: np.copyto(spare, versions[0])) / 1e9
    xxh3_gb_s = spare.nbytes / best_s(lambda: xxhash.xxh3_128_hexdigest(versions[0].data)) / 1e9
    return {
        "source": source,
        "rate": rate,
        "words": versions[0].size,
        "steps": len(pairs),
        "changed_share": density,
        "memcpy_gb_s": memcpy_gb_s,
        "xxh3_128_gb_s": xxh3_gb_s,
        "bernoulli_bytes_per_changed": bernoulli_bytes(pairs),
        "published_bytes_per_changed": published_bytes(versions),
        "encodings": [asdict(measure(encoding, versions, memcpy_gb_s)) for encoding in ENCODINGS],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, help="folder of a recorded trace; without it weights are drawn")
    parser.add_argument("--rate", default="3e-6", help="learning rate: names the trace, or sizes the drawn steps")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    versions = list(from_trace(options.trace, options.rate) if options.trace else synthetic(options.rate))
    found = report(versions, options.rate, "trace" if options.trace else "drawn")
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(
        f"{found['words']:,} bf16 words, {found['steps']} steps at {options.rate} ({found['source']}), "
        f"{found['changed_share']:.2%} changed; memcpy {found['memcpy_gb_s']:.1f} GB/s, "
        f"xxh3-128 {found['xxh3_128_gb_s']:.1f} GB/s; "
        f"bytes per changed word: Bernoulli bound {found['bernoulli_bytes_per_changed']:.3f}, "
        f"as published with tables and manifest {found['published_bytes_per_changed']:.3f}"
    )
    print(f"{'encoding':34} {'bytes/changed':>13} {'ratio':>7} {'encode GB/s':>12} {'apply GB/s':>11}")
    for row in found["encodings"]:
        print(
            f"{row['name']:34} {row['bytes_per_changed']:13.3f} {row['ratio']:7.0f} "
            f"{row['encode_gb_s']:12.2f} {row['apply_gb_s']:11.2f}"
        )


if __name__ == "__main__":
    main()
