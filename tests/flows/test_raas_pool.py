"""The pool's flow: a signal that comes when the pool has just left finds nothing to stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import astraflow.raas.pool as pool_module
import flows.raas_pool as flow_module


def test_a_signal_after_the_end_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    played: list[Any] = []

    async def run_pool(store: object, config: object, pool: str, *, participant: str, stop: object) -> None:
        played.append((pool, participant))

    def as_signalled_late(work: Callable[[], None], stop: Callable[[], None]) -> None:
        work()
        stop()

    monkeypatch.setattr(pool_module, "run_pool", run_pool)
    monkeypatch.setattr(flow_module, "begin_life", lambda role, name: f"{role}-{name}-1")
    monkeypatch.setattr(flow_module, "enter_run", lambda run, store: (None, None))
    monkeypatch.setattr(flow_module, "run_until_signal", as_signalled_late)
    flow_module.raas_pool.fn("run", "memory://x", "east")
    assert played == [("east", "pool-east-1")]
