"""What every part of one trainer's life needs: where it writes, under which name, and how it says what it does."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from astraflow.config import RunConfig, Trainer
from astraflow.participant import Beat, Outbox
from astraflow.trainer.team import ALONE, Team
from storage.errors import StoreError
from storage.keys import RunKeys
from storage.store import ObjectStore

T = TypeVar("T")
log = logging.getLogger("astraflow.trainer")

EVERY_STEP = ("waiting", "training")
PATIENCE_S = 120.0
"""How long an unreachable store is asked before the trainer ends (it can be started again at any time)."""


def finite(figures: Mapping[str, float]) -> dict[str, float]:
    """The figures that are numbers: JSON has no others, and the manager refuses a record with others."""
    return {name: value for name, value in figures.items() if math.isfinite(value)}


@dataclass(frozen=True, slots=True)
class Life:
    """One life of a policy's trainer. ``folder`` is a temporary folder for model files."""

    store: ObjectStore
    keys: RunKeys
    config: RunConfig
    policy: str
    settings: Trainer
    outbox: Outbox
    beat: Beat
    folder: Path
    team: Team = ALONE

    def say(self, state: str, **figures: float) -> None:
        """Show ``state`` and ``figures`` in the status object and the log."""
        figures = finite(figures)
        self.beat.set(state=state, waiting="", **figures)
        level = logging.DEBUG if state in EVERY_STEP else logging.INFO
        log.log(level, "%s: %s %s", self.policy, state, {name: round(v, 4) for name, v in figures.items()} or "")

    def show(self, **figures: float) -> None:
        """Show ``figures`` beside those that are in the status object, whatever the trainer is doing now."""
        self.beat.set(state=None, waiting=None, **finite(figures))

    def wait_for(self, what: str) -> None:
        """Show what is waited for, beside the state."""
        self.beat.set(waiting=what)

    def persist(
        self,
        call: Callable[[], T],
        what: str,
        *,
        patience_s: float = PATIENCE_S,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> T:
        """``call`` again while the store is unreachable, for ``patience_s``. Safe for calls that may be repeated."""
        deadline, wait_s = clock() + patience_s, 0.1
        while True:
            try:
                return call()
            except StoreError as error:
                if error.kind != "unreachable" or clock() + wait_s > deadline:
                    raise
                self.wait_for(f"a store is unreachable: {what}: {error.where}")
                sleep(wait_s)
                wait_s = min(10.0, wait_s * 2)
