"""Looking at a policy's published weights: what there is, whether it is whole, and what two versions differ in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch

from astraflow.weights.container import digest_blob
from astraflow.weights.kernels import Words, to_order
from astraflow.weights.layout import words_of
from astraflow.weights.manifest import Blob, Manifest
from astraflow.weights.merged import Merge
from astraflow.weights.subscriber import Subscriber
from astraflow.weights.update import WeightUpdate
from storage.errors import DataError, NotFound
from storage.keys import RunKeys
from storage.store import ObjectStore


@dataclass(frozen=True, slots=True)
class VersionRow:
    """One version, or one merged delta that ends at it."""

    version: int
    base: int  # -1: a snapshot only
    step: int
    kind: str  # delta, anchor, merge, or damaged: a manifest that can not be read
    size_bytes: int  # what a reader at ``base`` fetches
    snapshot_bytes: int
    full_bytes: int
    changed: int
    bytes_per_changed: float | None
    incarnation: int
    digest: str


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as its manifest says."""

    where: str
    kind: str  # gone, or what is wrong with it
    what: str


@dataclass(frozen=True, slots=True)
class TensorDiff:
    """How one tensor differs between two versions. Steps are counted in units in the last place."""

    tensor: str
    words: int
    changed: int
    share: float
    one_step: float | None  # share of the changes that are one unit
    largest_step: int


def history(store: ObjectStore, keys: RunKeys, policy: str) -> list[VersionRow]:
    """All versions and merges, by version; a version whose manifest is damaged is there too, with its number only."""
    reader = Subscriber(store, keys, policy)
    rows = []
    for version in range(reader.newest() + 1):
        try:
            rows.append(_row(reader.manifest(version)))
        except (DataError, NotFound):
            rows.append(VersionRow(version, -1, -1, "damaged", 0, 0, 0, 0, None, -1, ""))
    versions = list(rows)
    rows += [_merge_row(merge, versions[merge.version]) for merge in reader.merges().all() if merge.version < len(rows)]
    return sorted(rows, key=lambda row: (row.version, row.kind == "merge", -row.base))


def verify(store: ObjectStore, keys: RunKeys, policy: str) -> Iterator[Finding]:
    """Read everything: each blob's bytes, then each version's weights along its own delta.

    Yields what is wrong as it is found; nothing for a policy that is whole.
    """
    reader = Subscriber(store, keys, policy)
    newest = reader.newest()
    for version in range(newest + 1):
        try:
            manifest = reader.manifest(version)
        except (DataError, NotFound) as error:
            yield _finding(error)
            continue
        for blob in (*manifest.delta, *manifest.snapshot):
            yield from _check_blob(store, keys.version(policy, version) + blob.name, blob)
    merges = reader.merges()
    for span in merges.spans():
        try:
            merge = merges.read(span)
        except (DataError, NotFound) as error:
            yield _finding(error)
            continue
        for blob in merge.blobs:
            yield from _check_blob(store, keys.merged(policy) + blob.name, blob)
    for version in range(newest + 1):
        try:
            reader.fetch(version)
        except (DataError, NotFound) as error:
            kind = "gone" if error.kind == "not_found" else "lost"  # given up by a collection, or damaged
            yield Finding(keys.manifest(policy, version), kind, f"version {version} can't be had: {error.what}")


def compare(store: ObjectStore, keys: RunKeys, policy: str, one: int, other: int) -> list[TensorDiff]:
    """What differs from version ``one`` to ``other``, a row a tensor. Raises ``DataError`` if their tables differ."""
    reader = Subscriber(store, keys, policy)
    before = {name: words_of(tensor).copy() for name, tensor in stored_tensors(reader.fetch(one)).items()}
    after = stored_tensors(reader.fetch(other))
    if {name: words.size for name, words in before.items()} != {name: each.numel() for name, each in after.items()}:
        raise DataError(
            f"versions {one} and {other} have different tensors",
            where=keys.weights(policy),
            remedy="A resumed or changed model: `astraflow weights show` lists both",
            kind="layout",
        )
    return [_diff(name, before[name], words_of(after[name])) for name in before]


def stored_tensors(update: WeightUpdate) -> dict[str, torch.Tensor]:
    """Each stored tensor once, under the first of its names."""
    seen: dict[int, str] = {}
    found: dict[str, torch.Tensor] = {}
    for name, tensor in sorted(update.tensors.items()):
        if tensor.numel() and seen.setdefault(tensor.data_ptr(), name) == name:
            found[name] = tensor
    return found


def _diff(name: str, before: Words, after: Words) -> TensorDiff:
    at = np.flatnonzero(before != after)
    steps = np.abs(to_order(after[at]).astype(np.int64) - to_order(before[at]).astype(np.int64))
    return TensorDiff(
        tensor=name,
        words=before.size,
        changed=at.size,
        share=at.size / max(1, before.size),
        one_step=float(np.mean(steps == 1)) if at.size else None,
        largest_step=int(steps.max(initial=0)),
    )


def _row(manifest: Manifest) -> VersionRow:
    return VersionRow(
        version=manifest.version,
        base=manifest.base,
        step=manifest.step,
        kind=manifest.kind,
        size_bytes=manifest.size_bytes,
        snapshot_bytes=manifest.snapshot_bytes,
        full_bytes=manifest.full_bytes,
        changed=manifest.changed,
        bytes_per_changed=_ratio(manifest.size_bytes, manifest.changed),
        incarnation=manifest.incarnation,
        digest=manifest.digest,
    )


def _merge_row(merge: Merge, target: VersionRow) -> VersionRow:
    return replace(
        target,
        base=merge.base,
        kind="merge",
        size_bytes=merge.size_bytes,
        snapshot_bytes=0,
        changed=merge.changed,
        bytes_per_changed=_ratio(merge.size_bytes, merge.changed),
        digest=merge.digest,
    )


def _ratio(size_bytes: int, changed: int) -> float | None:
    return size_bytes / changed if changed else None


def _check_blob(store: ObjectStore, key: str, blob: Blob) -> Iterator[Finding]:
    try:
        data = store.get(key)
    except NotFound as error:
        yield _finding(error, key)
        return
    if len(data) != blob.size_bytes or digest_blob(data) != blob.hash:
        yield Finding(key, "digest", f"its {len(data)} bytes are not the {blob.size_bytes} that its manifest names")


def _finding(error: DataError | NotFound, where: str = "") -> Finding:
    kind = "gone" if isinstance(error, NotFound) else error.kind
    return Finding(where or error.where, kind, error.what)
