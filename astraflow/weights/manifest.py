"""The manifest: the small object that makes a version exist, and the fence between a policy's trainers.

A version's blobs are uploaded first, under names nobody else uses; then its manifest is created, only if
absent. Whoever created it owns the version. Readers learn of versions from manifests alone.

Invariants: versions are gapless from 0 and never reused; incarnation, step and batch never fall along
them; equal weights have equal digests, whatever trainer, step or encoding they came by.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import blake3
import msgspec

from storage.errors import DataError

FORMAT: Literal[1] = 1


class Blob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One object of a version: its name in the version's folder, its size, and the xxh3-128 of its bytes."""

    name: str
    size_bytes: int
    hash: str

    def __post_init__(self) -> None:
        if "/" in self.name or not self.name.endswith(".safetensors") or self.size_bytes < 0:
            raise ValueError(f"{self.name!r} is not a blob of {self.size_bytes} bytes in the version's folder")


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One published version of a policy's weights.

    A ``delta`` has only the change from version ``base``; an ``anchor`` has a full snapshot, and usually the
    change too, so that a reader one behind never fetches the whole. Without a change ``base`` is -1.
    """

    policy: str
    version: int
    step: int  # optimizer steps done
    incarnation: int
    batch: int  # the last batch trained, -1 before the first
    skipped: dict[str, list[int]]  # batch number as text -> skipped groups, of the last few batches
    kind: Literal["anchor", "delta"]
    base: int  # version that the delta starts from, -1 if there is none
    base_digest: str  # its digest
    digest: str  # root over the layout and every block's words
    layout: str  # digest of the tensor table
    anchor: int  # newest version up to this one that has a snapshot
    delta: tuple[Blob, ...]  # empty although base >= 0: the weights are the base's
    snapshot: tuple[Blob, ...]  # empty unless kind is anchor
    size_bytes: int  # what a reader one behind fetches: the delta, or the snapshot if there is none
    full_bytes: int  # raw bytes of all weights
    changed: int  # words that differ from the base, all words of dense blocks among them; all without a base
    writer: str  # the publisher's own random id: a retry recognises itself
    format: Literal[1] = 1
    check: str = ""  # blake3 of this manifest with an empty check

    def __post_init__(self) -> None:
        if self.version < 0 or not -1 <= self.base < self.version or not 0 <= self.anchor <= self.version:
            raise ValueError(f"version {self.version} with base {self.base} and anchor {self.anchor}")
        anchored = self.kind == "anchor"
        if {anchored} != {bool(self.snapshot), self.anchor == self.version} or (self.base < 0 and not anchored):
            raise ValueError(f"a {self.kind} with base {self.base} and anchor {self.anchor}")

    @property
    def snapshot_bytes(self) -> int:
        """Bytes of the snapshot's blobs."""
        return sum(blob.size_bytes for blob in self.snapshot)


def root_digest(layout: str, blocks: Iterable[str]) -> str:
    """A version's digest: blake3 over the layout's digest and every block's, one hex line each."""
    lines = "\n".join((f"astraflow weights {FORMAT}", layout, *blocks, ""))
    return blake3.blake3(lines.encode()).hexdigest()


def seal(manifest: Manifest) -> Manifest:
    """The manifest with its ``check`` filled in."""
    empty = msgspec.structs.replace(manifest, check="")
    check = blake3.blake3(encode_manifest(empty)).hexdigest()
    return msgspec.structs.replace(manifest, check=check)


def encode_manifest(manifest: Manifest) -> bytes:
    """The stored bytes; the same manifest always gives the same bytes."""
    return msgspec.json.encode(manifest, order="deterministic")


def decode_manifest(data: bytes, *, where: str, policy: str, version: int) -> Manifest:
    """Parse the manifest stored as ``version`` of ``policy``.

    Raises ``DataError`` naming ``where``: kind ``undecodable``, or ``digest`` when it is damaged or another's.
    """
    try:
        manifest = msgspec.json.decode(data, type=Manifest)
    except (msgspec.DecodeError, ValueError) as error:
        raise DataError(
            f"not a manifest in format {FORMAT}: {error}",
            where=where,
            remedy="A newer trainer needs newer readers; otherwise the object is damaged",
            kind="undecodable",
        ) from error
    if seal(manifest) != manifest or (manifest.policy, manifest.version) != (policy, version):
        raise DataError(
            f"the manifest is damaged, or not that of {policy} version {version}",
            where=where,
            remedy="Restore the object from a mirror, or go on from a version above it",
            kind="digest",
        )
    return manifest
