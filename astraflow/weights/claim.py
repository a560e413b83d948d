"""What a trainer claims by a version beside its weights, and what it means to find another's in its place.

Invariant: incarnation, step and batch never fall along a policy's versions.
"""

from __future__ import annotations

from dataclasses import dataclass

from astraflow.weights.manifest import Manifest
from storage.errors import AstraFlowError, DataError, Fenced


class VersionTaken(AstraFlowError):
    """An older trainer published the version we were about to: read ``head`` again, catch up, publish above it.

    No failure but a turn in a trainer's start, which alone can meet it; so it stands beside the errors that people see.
    """


@dataclass(frozen=True, slots=True)
class Claim:
    """How far a version's trainer had come, and in which life."""

    step: int
    incarnation: int
    batch: int
    skipped: dict[str, list[int]]


def check_order(head: Manifest | None, claim: Claim, *, where: str) -> None:
    """Refuse what would make incarnation, step or batch fall below those of ``head``: ``Fenced`` or ``DataError``."""
    if head is None:
        return
    if head.incarnation > claim.incarnation:
        raise fenced(head, claim.incarnation, where=where)
    if head.step > claim.step or head.batch > claim.batch:
        raise DataError(
            f"step {claim.step} after batch {claim.batch} is behind version {head.version}, "
            f"which has step {head.step} after batch {head.batch}",
            where=where,
            remedy="Train the recorded batches again up to the head manifest's before publishing",
            kind="behind",
        )


def is_own_attempt(found: Manifest, wanted: Manifest) -> bool:
    """True if ``found`` is an earlier attempt of the same life at the same weights, however those were encoded."""
    fields = ("writer", "version", "step", "incarnation", "batch", "skipped", "digest")
    return all(getattr(found, field) == getattr(wanted, field) for field in fields)


def taken_by(found: Manifest, wanted: Manifest, *, where: str) -> Fenced | VersionTaken:
    """What it means that another's manifest stands where ``wanted`` was to be created."""
    if found.incarnation > wanted.incarnation or (
        found.incarnation == wanted.incarnation and found.writer != wanted.writer
    ):
        return fenced(found, wanted.incarnation, where=where)
    return VersionTaken(
        f"incarnation {found.incarnation} published version {found.version} first",
        where=where,
        remedy="Read the head manifest again, train up to its batch, and publish above it",
        kind="taken",
    )


def fenced(found: Manifest, incarnation: int, *, where: str) -> Fenced:
    """The error of a trainer that meets a later life of its policy."""
    return Fenced(
        f"version {found.version} of {found.policy} has incarnation {found.incarnation}, this one {incarnation}",
        where=where,
        remedy="Another trainer of this policy has taken over: this one ends",
        kind="incarnation",
    )
