"""Steering a run from the command line: the wishes of ``astraflow.wishes``, which stay when the wait is interrupted."""

from __future__ import annotations

from astraflow import wishes
from astraflow.wishes import STOP_TIMEOUT_S, WISH_TIMEOUT_S
from infra.interrupts import leaving
from storage.store import ObjectStore


def stop(store: ObjectStore, run: str, *, reason: str, timeout_s: float = STOP_TIMEOUT_S) -> str:
    """``wishes.stop``; interrupted, it says what it leaves."""
    with leaving(_note("stop", run)):
        return wishes.stop(store, run, reason=reason, timeout_s=timeout_s)


def pause(
    store: ObjectStore, run: str, policy: str, *, region: str = "", reason: str, timeout_s: float = WISH_TIMEOUT_S
) -> None:
    """``wishes.pause``; interrupted, it says what it leaves."""
    with leaving(_note("pause", run)):
        wishes.pause(store, run, policy, region=region, reason=reason, timeout_s=timeout_s)


def resume(store: ObjectStore, run: str, policy: str, *, region: str = "", timeout_s: float = WISH_TIMEOUT_S) -> None:
    """``wishes.resume``; interrupted, it says what it leaves."""
    with leaving(_note("resume", run)):
        wishes.resume(store, run, policy, region=region, timeout_s=timeout_s)


def scale(
    store: ObjectStore, run: str, region: str, pools: int | None, *, reason: str, timeout_s: float = WISH_TIMEOUT_S
) -> dict[str, int]:
    """``wishes.scale``; interrupted, it says what it leaves."""
    with leaving(_note("scale", run)):
        return wishes.scale(store, run, region, pools, reason=reason, timeout_s=timeout_s)


def _note(what: str, run: str) -> str:
    return f"The wish to {what} {run} stays: its manager will hear it."
