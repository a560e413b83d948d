"""A pool plays evaluations beside training: scored, said, handed back, and never committed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from astraflow.problems import data_hash, load_problems, problems_table
from astraflow.raas.leases import Lease, Leases
from astraflow.raas.scripted_engine import ScriptedEngine
from astraflow.records import (
    Committed,
    DrainRequested,
    EvalExpired,
    EvalFailed,
    EvalLeased,
    EvalReported,
    Evaluated,
    Stopped,
)
from storage.tables import write_table
from tests.raas.test_pool import POOL, Bench, always, tiny

pytestmark = pytest.mark.anyio
__all__ = ["tiny"]


def bench_with(folder: Path, workflow: str = "solve", **evaluation: Any) -> Bench:
    """A run with a held-out set of its own problems, in another order."""
    held = {"problems": {"source": "addition", "options": {"count": 7}}, "repeats": 3, **evaluation}
    problems = load_problems(Bench(folder).config.problems.model_copy(update={"options": {"count": 7}}), 9)
    held |= {"data_hash": data_hash(problems), "problem_count": 7}
    bench = Bench(folder, evaluations={"held": held}, workflow={"name": workflow})
    write_table(bench.truth, bench.keys.problems(held["data_hash"]), problems_table(problems))
    bench.held = problems  # type: ignore[attr-defined]
    return bench


def leased(*items: int, problem: int = 2, attempt: int = 1) -> EvalLeased:
    count = len(items)
    return EvalLeased(
        pool=POOL, evaluation="held", round=0, items=list(items), problems=[problem] * count, attempts=[attempt] * count
    )


async def test_items_are_scored_beside_groups(tiny: Path) -> None:
    bench = bench_with(tiny, temperature=0.0)
    engine = ScriptedEngine(always(bench.held[2].answer))  # type: ignore[attr-defined]
    async with bench.pool(engine):
        bench.lease(0, 1)
        bench.decide(leased(0), leased(1, problem=3))
        await bench.until(lambda: len(bench.facts(Evaluated)) == 2 and bench.facts(Committed))
    right, wrong = sorted(bench.facts(Evaluated), key=lambda fact: fact.item)
    assert (right.evaluation, right.item, right.attempt, right.scores) == ("held", 0, 1, [1.0] * 3)
    assert wrong.scores == [0.0] * 3
    assert right.low == right.high == {"solver": 0} and right.response_tokens == 12
    assert {group for fact in bench.facts(Committed) for group in fact.groups} == {0, 1}


async def test_a_part_of_the_reward_is_scored_where_it_is_named(tiny: Path) -> None:
    bench = bench_with(tiny, "multi_turn", part="score")
    missing = bench_with(tiny, "multi_turn", part="brevity")
    for made, expected in ((bench, [1.0] * 3), (missing, [0.0] * 3)):
        async with made.pool(ScriptedEngine(always(made.held[2].answer))):  # type: ignore[attr-defined]
            made.decide(leased(0))
            await made.until(lambda made=made: made.facts(Evaluated))
        assert made.facts(Evaluated)[0].scores == expected


async def test_what_cannot_be_played_is_handed_back(tiny: Path) -> None:
    bench = bench_with(tiny)
    async with bench.pool(ScriptedEngine(always("0"))):
        bench.decide(leased(0, problem=99))
        await bench.until(lambda: bench.facts(EvalFailed))
    (failed,) = bench.facts(EvalFailed)
    assert (failed.item, failed.attempt, failed.kind) == (0, 1, "problem")


async def test_a_drained_pool_hands_items_back(tiny: Path) -> None:
    bench = bench_with(tiny)
    async with bench.pool(ScriptedEngine(always("0"), delay_s=60)) as task:
        bench.decide(leased(0))
        await bench.until(lambda: bench.status().figures.get("groups"))
        bench.decide(DrainRequested(participants=[POOL], reason="x"))
        await task
    assert [(fact.item, fact.kind) for fact in bench.facts(EvalFailed)] == [(0, "drained")]


def test_leases_of_both_sorts_never_look_alike() -> None:
    leases = Leases(POOL)
    leases.fold([leased(0, 1), EvalLeased(pool="x", evaluation="held", round=0, items=[2], problems=[0], attempts=[1])])
    assert list(leases.waiting) == [Lease(-1, 2, 1, "held"), Lease(-2, 2, 1, "held")]
    assert [lease.item for lease in leases.waiting] == [0, 1]
    playing = leases.next()
    expired = EvalExpired(pool=POOL, items=[0, 1], attempts=[2, 1], reason="timeout")
    assert leases.fold([expired]) == [] and not leases.waiting
    report = EvalReported(
        evaluation="held", round=0, low={}, high={}, problems=0, missing=2, figures={}, reason="deadline"
    )
    assert leases.fold([report, Stopped(reason="")]) == [playing]
