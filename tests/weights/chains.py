"""Chains of versions for tests: words that walk, some livelier than others."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from astraflow.weights.publisher import Publisher
from storage.keys import RunKeys
from storage.store import ObjectStore

KEYS = RunKeys("run")
SIZE = 20_000
BLOCK = 4096


def publisher(store: ObjectStore, merge_every: tuple[int, ...] = (4, 16), anchor_every: int = 1000) -> Publisher:
    return Publisher(
        store,
        KEYS,
        "solver",
        anchor_every=anchor_every,
        merge_every=merge_every,
        block_elements=BLOCK,
        blob_bytes=2**20,
    )


def walk(length: int, share: float = 0.01) -> list[torch.Tensor]:
    """Versions of one tensor: each step moves some words by one, half of the time those that moved last."""
    rng: Any = np.random.default_rng(0)
    words = rng.integers(0x3E00, 0x3F80, SIZE).astype(np.uint16)
    lively = rng.permutation(SIZE)[: int(2 * share * SIZE)]
    versions = []
    for _ in range(length):
        versions.append(torch.from_numpy(words.copy()).view(torch.bfloat16))
        words[rng.choice(lively, int(share * SIZE), replace=False)] += 1
    return versions


def chain(
    store: ObjectStore, length: int, *, merge_every: tuple[int, ...] = (4, 16), anchor_every: int = 1000
) -> list[torch.Tensor]:
    """Publish a walk, and wait for its merges."""
    out, versions = publisher(store, merge_every, anchor_every), walk(length)
    for step, tensor in enumerate(versions):
        out.publish({"a": tensor}, step=step, incarnation=0, batch=step - 1)
    assert out.settle(60)
    return versions
