"""Which round of an evaluation begins, who plays it, and what it came to: questions that change nothing.

A pool plays evaluations only with versions that it has applied, and only in a few of its places while it trains; once
all policies have ended it has nothing else to do. An evaluation is never load, so it delays no batch but by the places
it takes.
"""

from __future__ import annotations

from collections.abc import Iterator

from astraflow import records as r
from astraflow.dataflow.admission import may_play
from astraflow.dataflow.evaluation import QUOTA, due_reason
from astraflow.dataflow.participants import Participant
from astraflow.dataflow.scores import summary
from astraflow.dataflow.state import RunState


def eval_due(state: RunState, name: str) -> r.EvalStarted | None:
    """The round that is to begin now, if one is."""
    book = state.ledger.evaluations
    newest = {policy: queue.newest for policy, queue in state.policies.items()}
    reason = due_reason(book, name, state.config.evaluations[name], newest, at_end=state.all_ended)
    if not reason:
        return None
    return r.EvalStarted(evaluation=name, round=book.begun.get(name, 0), versions=newest, reason=reason)


def eval_leases(state: RunState, name: str) -> Iterator[r.EvalLeased]:
    """Leases of the evaluation's round, pool by pool; each must be applied before the next is asked for."""
    book, count = state.ledger.evaluations, state.config.evaluations[name].problem_count
    for pool, participant in sorted(state.participants.items()):
        round_ = book.rounds.get(name)
        if round_ is None or (not round_.waiting and round_.next_problem >= count):
            return
        if not _may_play(state, participant, round_.versions):
            continue
        items, problems, attempts = round_.choose(_places(state, participant), book.next_item, count)
        if items:
            yield r.EvalLeased(
                pool=pool, evaluation=name, round=round_.number, items=items, problems=problems, attempts=attempts
            )


def _may_play(state: RunState, pool: Participant, versions: dict[str, int]) -> bool:
    return may_play(state, pool) and all(
        pool.applied[policy].version >= version for policy, version in versions.items()
    )


def _places(state: RunState, pool: Participant) -> int:
    quota = pool.capacity if state.all_ended else max(1, pool.capacity // QUOTA)
    return max(0, min(pool.room, quota - len(pool.evals)))


def eval_report(state: RunState, name: str, reason: str) -> r.EvalReported:
    """What the round under way came to."""
    evaluation, round_ = state.config.evaluations[name], state.ledger.evaluations.rounds[name]
    return r.EvalReported(
        evaluation=name,
        round=round_.number,
        low=dict(round_.low),
        high=dict(round_.high),
        problems=len(round_.scores),
        missing=evaluation.problem_count - len(round_.scores),
        figures=summary(list(round_.scores.values()), evaluation.repeats, evaluation.pass_score),
        reason=reason,
    )
