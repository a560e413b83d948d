"""Bytes and speed of weight deltas, beside the encodings that other systems use, in one run.

    python tests/benchmarks/weights.py [--trace DIR] [--rate 3e-6] [--json]

``DIR`` holds a recorded trace: ``lr{rate}-base.safetensors`` (bf16 bit patterns as uint16) and
``lr{rate}-changes.safetensors`` (``v{k}.{tensor}.index`` and ``.bits`` of each later version);
``make_weight_trace.py`` makes one. Without a trace 8 million weights (normal, spread 0.04, as fp32 masters) and
2 steps of one learning rate are drawn from a seed, and cast to bf16.

Figures of each encoding over all steps of the trace:

- ``bytes_per_changed``, ``ratio``: payload bytes for each changed word; raw bytes over payload bytes.
- ``encode_gb_s``, ``apply_gb_s``: raw bytes of the weights a second of one core, without hashing.
- ``encode_vs_memcpy``, ``apply_vs_memcpy``: the same over ``memcpy``; with ``_hashed_``, with xxh3-128 of what the
  format hashes (the new words when encoding; the copy before and after when applying).
- ``peak_extra_mb``: the most memory beyond weights, base and copy while a model of 1 GB is encoded block by block
  and applied, payloads let go (ours by two threads, as it publishes).
- ``whole_path_mb``: the same for the whole of what a trainer and a reader do with such a model, through a folder:
  ``publish_delta``, ``publish_snapshot`` (a delta and an anchor), ``fetch_delta``, ``fetch_snapshot``.

Times are CPU time of the process, the best of rounds in which everything is measured in turn, so that whoever
else uses the machine disturbs all alike. Compare ratios of one run, not speeds of two.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import xxhash
from safetensors.numpy import load_file
from weight_encodings import ENCODINGS, Encoding

from astraflow.weights.classes import keys_of
from astraflow.weights.kernels import Words, changed_positions, compiled_for, find_changes
from astraflow.weights.layout import BLOCK_ELEMENTS
from astraflow.weights.parallel import WORKERS, in_order
from astraflow.weights.publisher import Publisher
from astraflow.weights.subscriber import Subscriber
from storage import open_store
from storage.keys import RunKeys
from storage.memory import MemoryStore

ROUNDS = 12
MODEL_WORDS = 500_000_000  # 1 GB of bf16
PEAK = Path("/proc/self/clear_refs")
OURS = ("default", "classes")


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


def best_seconds(base: Words, new: Words) -> dict[str, float]:
    """CPU seconds of one step by everything, measured in turn: the best of some rounds."""
    spare, copies, payloads = np.empty_like(base), {}, {}
    for name, encoding in ENCODINGS.items():
        payloads[name], copies[name] = encoding.encode(base, new), base.copy()
        encoding.apply(copies[name], payloads[name])
        if not np.array_equal(copies[name], new):
            raise SystemExit(f"{name} does not give back the weights")
    best: dict[str, float] = {}

    def timed(name: str, work: Callable[..., object], *given: Any) -> None:
        started = time.process_time()
        work(*given)
        best[name] = min(best.get(name, float("inf")), time.process_time() - started)

    for _ in range(ROUNDS):
        timed("memcpy", np.copyto, spare, new)
        timed("hash", xxhash.xxh3_128_digest, new.data)
        for name, encoding in ENCODINGS.items():
            np.copyto(copies[name], base)
            timed(f"{name} encode", encoding.encode, base, new)
            timed(f"{name} apply", encoding.apply, copies[name], payloads[name])
    return best


def speeds(versions: list[Words]) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    """Figures of each encoding, and those of memcpy and xxh3 in the same run."""
    steps = [best_seconds(base, new) for base, new in pairwise(versions)]
    spent = {name: sum(step[name] for step in steps) for name in steps[0]}
    raw_gb = sum(new.nbytes for new in versions[1:]) / 1e9
    found = {}
    for name in ENCODINGS:
        encode_s, apply_s = spent[f"{name} encode"], spent[f"{name} apply"]
        found[name] = {
            "encode_gb_s": raw_gb / encode_s,
            "apply_gb_s": raw_gb / apply_s,
            "encode_vs_memcpy": spent["memcpy"] / encode_s,
            "apply_vs_memcpy": spent["memcpy"] / apply_s,
            "encode_hashed_vs_memcpy": spent["memcpy"] / (encode_s + spent["hash"]),
            "apply_hashed_vs_memcpy": spent["memcpy"] / (apply_s + 2 * spent["hash"]),
        }
    return found, {"memcpy_gb_s": raw_gb / spent["memcpy"], "xxh3_128_gb_s": raw_gb / spent["hash"]}


def sizes(encoding: Encoding, versions: list[Words]) -> dict[str, float]:
    """Payload bytes for each changed word, and how often they go into the raw bytes."""
    pairs = list(pairwise(versions))
    size_bytes = sum(encoding.size_bytes(encoding.encode(base, new)) for base, new in pairs)
    changed = sum(int(np.count_nonzero(base != new)) for base, new in pairs)
    return {
        "bytes_per_changed": size_bytes / changed,
        "ratio": sum(new.nbytes for _, new in pairs) / size_bytes,
    }


def peak_extra_mb(versions: list[Words]) -> dict[str, float]:
    """Memory beyond a 1 GB model, its base and a copy, at the worst moment of encoding or applying it. Linux only."""
    if not PEAK.exists():
        return {}
    base, new = (np.resize(words, MODEL_WORDS) for words in versions[:2])
    copy = np.empty_like(base)
    spans = [slice(at, at + BLOCK_ELEMENTS) for at in range(0, MODEL_WORDS, BLOCK_ELEMENTS)]
    found = {}
    for name, encoding in ENCODINGS.items():
        np.copyto(copy, base)
        ctypes.CDLL(None).malloc_trim(0)  # what the last one let go does not hide what this one takes
        PEAK.write_text("5")  # the high-water mark is what is held now
        before_kb = resident_kb("VmRSS")
        payloads = in_order(
            lambda span, encoding=encoding: encoding.encode(base[span], new[span]),  # type: ignore[misc]
            spans,
            WORKERS if name in OURS else 1,
        )
        for span, payload in zip(spans, payloads, strict=True):
            encoding.apply(copy[span], payload)
        found[name] = (resident_kb("VmHWM") - before_kb) / 1024
        if not np.array_equal(copy, new):
            raise SystemExit(f"{name} does not give back the weights")
    return found


def whole_path_mb(versions: list[Words]) -> dict[str, float]:
    """Memory beyond weights, base and copy while a 1 GB model is published to a folder and fetched. Linux only."""
    if not PEAK.exists():
        return {}
    keys, found = RunKeys("benchmark"), {}
    words = np.resize(versions[0], MODEL_WORDS)
    tensors = as_model(words)

    def measured(name: str, work: Callable[[], object]) -> None:
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        PEAK.write_text("5")
        before_kb = resident_kb("VmRSS")
        work()
        found[name] = (resident_kb("VmHWM") - before_kb) / 1024

    with tempfile.TemporaryDirectory() as folder:
        store = open_store(folder)
        out = Publisher(store, keys, "policy", anchor_every=10**6)
        out.publish(tensors, step=0, incarnation=0, batch=-1)  # the base is taken here
        for step, name in enumerate(("publish_delta", "publish_snapshot"), 1):
            for at in range(0, MODEL_WORDS, versions[0].size):
                stretch = words[at : at + versions[0].size]
                stretch[:] = versions[step % len(versions)][: stretch.size]
            measured(
                name,
                lambda step=step: out.publish(  # type: ignore[misc]
                    tensors, step=step, incarnation=0, batch=step - 1, anchor=step == 2
                ),
            )
        # Another life, which has no base: only a snapshot leads to its version, into the copy that a reader has.
        words[::1000] ^= 1
        out = Publisher(store, keys, "policy", anchor_every=10**6)
        out.publish(tensors, step=3, incarnation=1, batch=2)
        reader = Subscriber(store, keys, "policy")
        reader.fetch(1)
        measured("fetch_delta", lambda: reader.fetch(2))
        measured("fetch_snapshot", lambda: reader.fetch(3))
    return found


def as_model(words: Words) -> dict[str, torch.Tensor]:
    """Views of ``words`` as tensors of the sizes that a model has: an embedding, and layers of large and small ones."""
    sizes = {"embed": words.size // 20, "layer": words.size // 24, "norm": 4096}
    tensors, at = {}, 0
    names = ["embed", *(f"{kind}.{number:03d}" for number in range(22) for kind in ("layer", "norm")), "rest"]
    for name in names:
        stop = min(words.size, at + sizes.get(name.partition(".")[0], words.size))
        tensors[name] = torch.from_numpy(words[at:stop]).view(torch.bfloat16)
        at = stop
    return tensors


def resident_kb(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))


def entropy_bits(shares: npt.NDArray[np.float64]) -> float:
    shares = shares[(shares > 0) & (shares < 1)]
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


def bound_given_exponent(pairs: list[tuple[Words, Words]]) -> float:
    """The same for a coder that knows, for each exponent of the base, how many words change and by which steps."""
    bits, changed = 0.0, 0
    for base, new in pairs:
        at = changed_positions(base, new)
        steps, keys = find_changes(base, new)[1], keys_of(base)
        there, moved = np.bincount(keys, minlength=256), np.bincount(keys[at], minlength=256)
        for key in np.flatnonzero(moved):
            share = moved[key] / there[key]
            counts = np.unique(steps[keys[at] == key], return_counts=True)[1]
            bits += there[key] * entropy_bits(np.array([share, 1 - share])) + moved[key] * entropy_bits(
                counts / counts.sum()
            )
        changed += at.size
    return bits / 8 / changed


def published_bytes(versions: list[Words], coding: Any) -> float:
    """Bytes per changed word of whole versions in a store: blobs with their tables, and manifests."""
    keys = RunKeys("benchmark")
    store = MemoryStore()
    publisher = Publisher(store, keys, "policy", anchor_every=64, coding=coding)
    size_bytes = changed = 0
    for step, words in enumerate(versions):
        weights = {"words": torch.from_numpy(words).view(torch.bfloat16)}
        manifest = publisher.publish(weights, step=step, incarnation=0, batch=step - 1)
        if step:
            changed += manifest.changed
            size_bytes += sum(info.size_bytes for info in store.list(keys.version("policy", manifest.version)))
    return size_bytes / changed


def link_where_classes_pay(rows: dict[str, dict[str, float]]) -> float:
    """Mbit/s below which ``classes`` brings a version to a reader sooner, when nothing overlaps.

    Bytes saved a raw byte over the seconds spent more a raw byte, encoding and applying.
    """
    plain, classes = (rows[name] for name in OURS)
    saved_bytes = 1 / plain["ratio"] - 1 / classes["ratio"]
    more_s = sum(1 / classes[key] - 1 / plain[key] for key in ("encode_gb_s", "apply_gb_s")) / 1e9
    return 8 * saved_bytes / more_s / 1e6


def report(versions: list[Words], rate: str, source: str) -> dict[str, Any]:
    pairs = list(pairwise(versions))
    figures, machine = speeds(versions)
    peaks = peak_extra_mb(versions)
    rows: dict[str, dict[str, float]] = {
        name: sizes(encoding, versions) | figures[name] | {"peak_extra_mb": peaks.get(name, float("nan"))}
        for name, encoding in ENCODINGS.items()
    }
    for name in OURS:
        rows[name]["published_bytes_per_changed"] = published_bytes(versions, name)
    bound = bernoulli_bytes(pairs)
    return {
        "source": source,
        "rate": rate,
        "words": versions[0].size,
        "steps": len(pairs),
        "changed_share": float(np.mean([np.mean(base != new) for base, new in pairs])),
        "compiled": compiled_for(versions[0].size) is not None,
        **machine,
        "bernoulli_bytes_per_changed": bound,
        "bound_given_exponent_bytes_per_changed": bound_given_exponent(pairs),
        "default_vs_bernoulli": rows["default"]["bytes_per_changed"] / bound,
        "classes_pay_below_mbit_s": link_where_classes_pay(rows),
        "whole_path_mb": whole_path_mb(versions),
        "encodings": rows,
    }


COLUMNS = (
    "bytes_per_changed",
    "ratio",
    "encode_gb_s",
    "apply_gb_s",
    "encode_vs_memcpy",
    "apply_vs_memcpy",
    "encode_hashed_vs_memcpy",
    "apply_hashed_vs_memcpy",
    "peak_extra_mb",
)


def as_text(found: dict[str, Any]) -> Iterator[str]:
    yield (
        f"{found['words']:,} bf16 words, {found['steps']} steps at {found['rate']} ({found['source']}), "
        f"{found['changed_share']:.2%} changed; memcpy {found['memcpy_gb_s']:.1f} GB/s, "
        f"xxh3-128 {found['xxh3_128_gb_s']:.1f} GB/s"
    )
    yield (
        f"bounds in bytes per changed word: Bernoulli {found['bernoulli_bytes_per_changed']:.3f}, given the base's "
        f"exponent {found['bound_given_exponent_bytes_per_changed']:.3f}; "
        f"classes pay below {found['classes_pay_below_mbit_s']:.0f} Mbit/s"
    )
    peaks = ", ".join(f"{name} {peak:.0f}" for name, peak in found["whole_path_mb"].items())
    yield f"MB beyond weights, base and copy, the whole path for a 1 GB model: {peaks}"
    yield f"{'':20}" + "".join(f"{name.replace('_vs_memcpy', '/memcpy'):>24}" for name in COLUMNS)
    for name, row in found["encodings"].items():
        yield f"{name:20}" + "".join(f"{row[column]:24.3f}" for column in COLUMNS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, help="folder of a recorded trace; without it weights are drawn")
    parser.add_argument("--rate", default="3e-6", help="learning rate: names the trace, or sizes the drawn steps")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    versions = list(from_trace(options.trace, options.rate) if options.trace else synthetic(options.rate))
    found = report(versions, options.rate, "trace" if options.trace else "drawn")
    print(json.dumps(found, indent=2) if options.json else "\n".join(as_text(found)))


if __name__ == "__main__":
    main()
