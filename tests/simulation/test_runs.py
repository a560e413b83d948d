"""Whole runs over a bad store, seed after seed: they end, and every invariant holds in their logs.

``ASTRAFLOW_SEEDS=5000`` plays more of them, ``ASTRAFLOW_FIRST_SEED`` others.
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from tests.simulation.invariants import check_run
from tests.simulation.world import run_world

SEEDS = int(os.environ.get("ASTRAFLOW_SEEDS", "300"))
FIRST = int(os.environ.get("ASTRAFLOW_FIRST_SEED", "0"))
CHUNK = 50
pytestmark = [pytest.mark.soak] if SEEDS > 1000 else []


@pytest.fixture(scope="module")
def seen() -> Counter:
    """What happened over all seeds."""
    return Counter()


@pytest.mark.parametrize("first", range(FIRST, FIRST + SEEDS, CHUNK))
def test_every_run_ends_and_keeps_the_invariants(first: int, seen: Counter) -> None:
    for seed in range(first, min(first + CHUNK, FIRST + SEEDS)):
        try:
            world = run_world(seed)
            seen.update(check_run(world.base.client(), world.config))
        except Exception as error:
            error.add_note(f"seed {seed}")
            raise
        seen.update({f"death_{name}": count for name, count in world.deaths.items()})


@pytest.mark.skipif(SEEDS < 300, reason="too few seeds to meet everything")
def test_the_seeds_met_everything_that_the_protocol_speaks_of(seen: Counter) -> None:
    wanted = (
        "Batched Leased Admitted Expired Rejected LoadReported Paused Resumed DrainRequested Stopped short_batch "
        "expired_silent expired_lost expired_timeout expired_environment expired_drained expired_rejected "
        "expired_quarantined expired_left dropped_stale dropped_failed dropped_ended dropped_frozen dropped_skipped "
        "dropped_zero_advantage dropped_filter_failed dropped_overlong "
        "EvalStarted EvalLeased EvalExpired eval_complete eval_deadline eval_stopped "
        "leased_ahead paused_region paused_everywhere Scaled scaled_by_wish scaled_by_load death_let_go "
        "replayed lag_1 death_manager death_pool death_trainer death_fenced late_attempt_won"
    )
    assert not [name for name in wanted.split() if not seen[name]]


def test_a_seed_is_a_run() -> None:
    first, second = run_world(3), run_world(3)
    assert _facts(first) == _facts(second)


def _facts(world: object) -> list[bytes]:
    store = world.base.client()  # type: ignore[attr-defined]
    return [store.get(info.key) for info in store.list("run/outbox/")]
