"""What waits for an engine's worker thread, and how who waits is told. The functions are for the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from astraflow.raas.engine import Generation, GenerationRequest, Progress

if TYPE_CHECKING:
    from astraflow.weights.update import WeightUpdate


@dataclass(slots=True, eq=False)
class Job:
    """A request on its way through the worker."""

    request: GenerationRequest
    future: asyncio.Future[Generation]
    submitted: float
    admitted: float = 0.0
    prefilled: float = 0.0
    restarts: int = 0
    cancelled: bool = False


@dataclass(slots=True, eq=False)
class Load:
    """Weights on their way in."""

    update: WeightUpdate
    future: asyncio.Future[None]


def resolve(results: Sequence[tuple[asyncio.Future[Any], object]]) -> None:
    """Give each future its value, unless it was cancelled."""
    for future, value in results:
        if not future.done():
            future.set_result(value)


def tell_progress(told: Sequence[tuple[Progress, int]]) -> None:
    """Tell each stream its newest token."""
    for progress, token in told:
        progress([token])


def fail(futures: Sequence[asyncio.Future[Any]], error: Exception) -> None:
    """Give all futures the error."""
    for future in futures:
        if not future.done():
            future.set_exception(error)
