"""What a reader d versions behind downloads, beside d single deltas and a full pull: the curve over d.

    python tests/benchmarks/weight_chains.py [--trace DIR] [--rate 3e-6] [--versions 129] [--words 4000000] [--json]

Versions are published by the real publisher, with merges, and read by the real subscriber over a store in memory;
what counts is the bytes of the blobs that it fetched. Starts are spread, so that merges are met at all offsets.

Where the versions come from: ``DIR`` holds a recorded trace (``tests/benchmarks/weights.py`` says in what form), whose
length bounds d. Without one, bf16 weights with the spread of a real model are trained by AdamW (betas 0.9 and 0.999,
fp32 masters) on gradients drawn from a seed: noise that is fresh at each step plus a part that stays (``--persist``,
its share of the variance). Adam turns that into the steps a real run makes: as large as the learning rate at most,
and correlated over about ten steps. The recorded trace is four steps long: its merges of 2 to 4
are 0.88, 0.80 and 0.65 of their singles, those of drawn gradients 0.89, 0.83 and 0.74.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.numpy import load_file

from astraflow.weights.catch_up import plan_catch_up
from astraflow.weights.publisher import Publisher
from astraflow.weights.subscriber import Subscriber
from storage import open_store
from storage.keys import RunKeys
from storage.store import ObjectStore

KEYS = RunKeys("benchmark")
DISTANCES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 50, 64, 100, 128)
STARTS = 8  # at most, for each distance
Words = npt.NDArray[np.uint16]


def rounded(masters: npt.NDArray[np.float32]) -> Words:
    bits = masters.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def trained(rate: float, words: int, versions: int, persist: float, base: Words | None) -> Iterator[Words]:
    """AdamW with decoupled decay of 0, as ``torch.optim.AdamW`` computes it."""
    rng = np.random.default_rng(0)
    if base is None:
        masters = rng.normal(0, 0.04, words).astype(np.float32)
    else:
        masters = (base[:words].astype(np.uint32) << 16).view(np.float32).copy()
        masters += masters * rng.uniform(-(2**-9), 2**-9, masters.size).astype(np.float32)  # within a bf16's rounding
    scale = np.exp(rng.normal(0, 1, masters.size)).astype(np.float32)
    drift = (scale * rng.standard_normal(masters.size, np.float32) * np.sqrt(persist)).astype(np.float32)
    first, second = np.zeros_like(masters), np.zeros_like(masters)
    yield rounded(masters)
    for step in range(1, versions):
        gradient = drift + scale * rng.standard_normal(masters.size, np.float32) * np.float32(np.sqrt(1 - persist))
        first += np.float32(0.1) * (gradient - first)
        second += np.float32(0.001) * (gradient * gradient - second)
        update = (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + np.float32(1e-8))
        masters -= np.float32(rate) * update.astype(np.float32)
        yield rounded(masters)


def recorded(folder: Path, rate: str) -> Iterator[Words]:
    """All versions of a recorded trace, as one flat run in name order."""
    base = load_file(folder / f"lr{rate}-base.safetensors")
    changes = load_file(folder / f"lr{rate}-changes.safetensors")
    names, version = sorted(base), 0
    while True:
        yield np.concatenate([base[name].reshape(-1) for name in names])
        version += 1
        if not any(key.startswith(f"v{version}.") for key in changes):
            return
        for name in names:
            if f"v{version}.{name}.index" in changes:
                base[name].reshape(-1)[changes[f"v{version}.{name}.index"]] = changes[f"v{version}.{name}.bits"]


def publish(store: ObjectStore, versions: Iterator[Words], merge_every: tuple[int, ...]) -> int:
    """Publish them all and make every merge that is due; the number of versions."""
    out = Publisher(store, KEYS, "policy", anchor_every=64, merge_every=merge_every)
    count = 0
    for step, words in enumerate(versions):
        tensor = torch.from_numpy(words).view(torch.bfloat16)
        out.publish({"words": tensor}, step=step, incarnation=0, batch=step - 1)
        out.settle()
        count += 1
    return count


def curve(store: ObjectStore, versions: int) -> list[dict[str, Any]]:
    """For each distance, what the planned way costs of its singles and of a full pull: mean and worst over starts."""
    reader = Subscriber(store, KEYS, "policy")
    manifests = {version: reader.manifest(version) for version in range(versions)}
    rows = []
    for distance in (distance for distance in DISTANCES if distance < versions):
        starts = np.unique(np.linspace(0, versions - 1 - distance, STARTS).astype(int))
        shares, objects, of_full = [], [], []
        for start in map(int, starts):
            end = start + distance
            plan = plan_catch_up(manifests.__getitem__, end, start, merges=reader.merges(after=start))
            singles = sum(manifests[version].size_bytes for version in range(start + 1, end + 1))
            shares.append(plan.size_bytes / singles)
            objects.append(len(plan.deltas) + bool(plan.snapshot))
            of_full.append(plan.size_bytes / manifests[manifests[end].anchor].snapshot_bytes)
        rows.append(
            {
                "distance": distance,
                "of_singles_mean": float(np.mean(shares)),
                "of_singles_best": float(np.min(shares)),  # from a version where the longest merges begin
                "of_singles_worst": float(np.max(shares)),
                "of_snapshot": float(np.mean(of_full)),
                "objects_mean": float(np.mean(objects)),
            }
        )
    return rows


def check(store: ObjectStore, versions: int) -> None:
    """The bytes that are planned are the bytes that are fetched, and the weights that come are right."""
    reader = Subscriber(store, KEYS, "policy")
    reader.fetch(0)
    update = reader.fetch(versions - 1)
    fresh = Subscriber(store, KEYS, "policy").fetch(versions - 1)
    if not torch.equal(update.tensors["words"].view(torch.uint16), fresh.tensors["words"].view(torch.uint16)):
        raise SystemExit("two ways lead to different weights")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trace", type=Path, help="folder of a recorded trace")
    parser.add_argument("--base", type=Path, help="take the first weights of the drawn run from this trace")
    parser.add_argument("--rate", default="3e-6")
    parser.add_argument("--versions", type=int, default=129)
    parser.add_argument("--words", type=int, default=4_000_000)
    parser.add_argument("--persist", type=float, default=0.0, help="share of the gradient's variance that stays")
    parser.add_argument("--merge-every", default="8,64")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    merge_every = tuple(int(each) for each in options.merge_every.split(",") if each)
    if options.trace:
        versions = recorded(options.trace, options.rate)
    else:
        base = next(recorded(options.base, options.rate)) if options.base else None
        versions = trained(float(options.rate), options.words, options.versions, options.persist, base)
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(folder)
        count = publish(store, versions, merge_every)
        check(store, count)
        manifests = Subscriber(store, KEYS, "policy")
        changed = [manifests.manifest(version).changed for version in range(1, count)]
        found = {
            "rate": options.rate,
            "source": "trace" if options.trace else "drawn gradients",
            "versions": count,
            "merge_every": merge_every,
            "changed_share": float(np.mean(changed)) / (manifests.manifest(0).full_bytes // 2),
            "curve": curve(store, count),
        }
    if options.json:
        print(json.dumps(found, indent=2))
        return
    print(
        f"{count} versions at lr {options.rate} ({found['source']}), {found['changed_share']:.2%} changed a step, "
        f"merges of {options.merge_every or 'none'}"
    )
    print(f"{'behind':>6} {'of singles':>11} {'best':>6} {'worst':>6} {'of snapshot':>12} {'objects':>8}")
    for row in found["curve"]:  # type: ignore[attr-defined]
        print(
            f"{row['distance']:6} {row['of_singles_mean']:11.2f} {row['of_singles_best']:6.2f} "
            f"{row['of_singles_worst']:6.2f} "
            f"{row['of_snapshot']:12.3f} {row['objects_mean']:8.1f}"
        )


if __name__ == "__main__":
    main()
