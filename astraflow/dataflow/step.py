"""One step of the manager: what it has seen in, decisions out. Reads top to bottom.

Longer than 300 lines so that the whole order of decisions stands in one place.

``step`` is the only place that decides. Each decision is applied at once, so later stages see it; the state after
``step`` is the fold of the record that the caller then appends. It knows no store and no real clock: the same
state, records, observations and ``now`` give the same decisions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from astraflow import records as r
from astraflow.dataflow.admission import is_awaited, is_told, lease_need, pools_with_room, weights
from astraflow.dataflow.batching import (
    fresh_wanted,
    kept_groups,
    make_batch,
    stale_groups,
    surplus_groups,
    unfit_groups,
)
from astraflow.dataflow.evaluating import eval_due, eval_leases, eval_report
from astraflow.dataflow.parts import Arrival
from astraflow.dataflow.scaling import load_report, scaled_by_wish, spare_pools, standstill
from astraflow.dataflow.state import RunState
from astraflow.dataflow.validate import refusal

QUARANTINE_AT = 5
"""Rejected records of one participant after which it is not heard any more."""


@dataclass(frozen=True, slots=True)
class Incoming:
    """One object of an outbox: the record, or why it could not be decoded."""

    participant: str
    seq: int
    record: r.FactRecord | None
    error: str = ""


@dataclass(slots=True)
class Turn:
    """A step under way: the state and what was decided so far."""

    state: RunState
    watch: Callable[[r.AnyDecision], None] | None = None
    decisions: list[r.AnyDecision] = field(default_factory=list)

    def decide(self, decision: r.AnyDecision) -> None:
        """Apply and record."""
        if self.watch is not None:
            self.watch(decision)
        self.state.apply(decision)
        self.decisions.append(decision)

    def drop(self, policy: str, groups: Sequence[int], reason: str) -> None:
        """Drop parts of these groups, if there are any."""
        if groups:
            self.decide(r.Dropped(policy=policy, groups=list(groups), reason=reason))


def step(
    state: RunState,
    records: Sequence[Incoming],
    observations: Mapping[str, int],
    now: float,
    *,
    watch: Callable[[r.AnyDecision], None] | None = None,
) -> list[r.AnyDecision]:
    """Fold ``records`` (by participant, each in order) and decide. Cursors move in ``state``.

    ``watch`` sees each decision before it is applied (leases behind it).
    """
    turn = Turn(state, watch)
    state.begin(now)
    state.observe(observations)
    _absorb(turn, records)
    _admit(turn)
    _drop_skipped(turn)
    _fulfil_wishes(turn)
    _end_leases(turn)
    _give_up_failed(turn)
    _drop_ended(turn)
    _form_batches(turn)
    _drop_surplus(turn)
    _pause_barren(turn)
    _evaluate(turn)
    _lease(turn)
    _report_load(turn)
    _stand_still(turn)
    _end_run(turn)
    state.settle()
    return turn.decisions


# --- what came in ------------------------------------------------------------------------------


def _absorb(turn: Turn, records: Sequence[Incoming]) -> None:
    """Take in what is fit, reject what is not. Nobody is heard after quarantine or after leaving."""
    state = turn.state
    for incoming in records:
        teller = state.participants[incoming.participant]
        if teller.quarantined or teller.left:
            continue
        teller.cursor = incoming.seq + 1
        record = incoming.record
        error = incoming.error or (refusal(state, incoming.participant, record) if record else "undecodable")
        if record is not None and not error:
            state.absorb(incoming.participant, record)
            continue
        turn.decide(
            r.Rejected(
                participant=incoming.participant,
                seq=incoming.seq,
                reason=error,
                quarantined=teller.rejects + 1 >= QUARANTINE_AT,
            )
        )
        if record is not None:
            _end_rejected(turn, incoming.participant, record)


def _end_rejected(turn: Turn, name: str, record: r.FactRecord) -> None:
    """The pool is done with the groups it committed wrongly: their leases need not run until their timeout."""
    held = turn.state.participants[name].held
    committed = [fact for fact in record.facts if isinstance(fact, r.Committed)]
    named = {pair for fact in committed for pair in zip(fact.groups, fact.attempts, strict=False)}
    _expire(turn, name, [group for group, attempt in held.items() if (group, attempt) in named], "rejected")


def _admit(turn: Turn) -> None:
    """The first attempt of an open group wins; its parts are looked at once, policy by policy."""
    state = turn.state
    winners: dict[str, list[tuple[int, Arrival]]] = {}
    opened = state.leases.open
    for group, arrivals in state.arrivals.items():
        if group in opened:
            first = arrivals[0]
            winners.setdefault(first.participant, []).append((group, first))
    for participant, won in winners.items():
        turn.decide(
            r.Admitted(
                groups=[group for group, _ in won],
                attempts=[arrival.attempt for _, arrival in won],
                participant=participant,
            )
        )
        for policy in state.names:
            _sift(turn, policy, won)


def _sift(turn: Turn, policy: str, won: Sequence[tuple[int, Arrival]]) -> None:
    """Drop what of the newly admitted parts will never be trained on."""
    for reason, groups in unfit_groups(turn.state, policy, won).items():
        turn.drop(policy, groups, reason)


def _drop_skipped(turn: Turn) -> None:
    """What a trainer could not use is over; its problem is leased again."""
    for policy, queue in turn.state.policies.items():
        turn.drop(policy, list(queue.skipped), "skipped")


def _fulfil_wishes(turn: Turn) -> None:
    state = turn.state
    for wish in list(state.wishes):
        if wish.what == "stop" and not state.draining:
            turn.decide(r.DrainRequested(participants=[], reason=wish.reason or "stop was wanted"))
        elif wish.what == "drain":  # said again to one that is leaving: whoever wished waits for this
            turn.decide(r.DrainRequested(participants=[wish.target], reason=wish.reason))
        elif wish.what == "pause":
            turn.decide(r.Paused(policy=wish.target, region=wish.region, reason=wish.reason or "pause was wanted"))
        elif wish.what == "resume":
            turn.decide(r.Resumed(policy=wish.target, region=wish.region))
    for pools in state.pool_wishes:
        if not state.draining:
            turn.decide(scaled_by_wish(state, pools))


# --- leases that end without a result --------------------------------------------------------------


def _end_leases(turn: Turn) -> None:
    """Handed back, left, lost, silent, or too old."""
    state = turn.state
    back: dict[tuple[str, str], list[int]] = {}
    for handback in state.handbacks:
        if state.participants[handback.participant].held.get(handback.group) == handback.attempt:
            back.setdefault((handback.participant, handback.kind), []).append(handback.group)
    for (name, kind), groups in back.items():
        _expire(turn, name, groups, kind)
    for name, participant in state.participants.items():
        if participant.held and participant.is_gone(state.now, state.flow.silence_s):
            _expire(turn, name, list(participant.held), participant.why_gone)
    late: dict[str, list[int]] = {}
    for group in state.leases.expired(state.now, state.flow.group_timeout_s):
        late.setdefault(state.leases.open[group].holders[-1], []).append(group)
    for name, groups in late.items():
        _expire(turn, name, groups, "timeout")


def _expire(turn: Turn, name: str, groups: Sequence[int], reason: str) -> None:
    held = turn.state.participants[name].held
    groups = [group for group in dict.fromkeys(groups) if group in held]
    if groups:
        attempts = [held[group] for group in groups]
        turn.decide(r.Expired(pool=name, groups=groups, attempts=attempts, reason=reason))


def _give_up_failed(turn: Turn) -> None:
    """Groups that had all their attempts."""
    waiting = turn.state.leases.waiting
    failed = [group for group, attempt in waiting.items() if attempt >= turn.state.flow.max_attempts]
    for policy in turn.state.names:
        turn.drop(policy, failed, "failed")


# --- batches -----------------------------------------------------------------------------------


def _drop_ended(turn: Turn) -> None:
    """A policy whose trainer has ended will use nothing more."""
    for policy, queue in turn.state.policies.items():
        if queue.ended:
            turn.drop(policy, kept_groups(queue), "ended")


def _form_batches(turn: Turn) -> None:
    """One batch trains while ``prefetch`` more are ready, each judged at its own step of use."""
    state = turn.state
    ahead = min(state.flow.prefetch, state.flow.max_staleness)
    for policy, size in state.batch_size.items():
        queue = state.policies[policy]
        while queue.is_live and not state.draining:
            turn.drop(policy, stale_groups(state, policy), "stale")
            fresh = fresh_wanted(state, policy, size)
            if queue.formed >= state.steps[policy] or queue.unconsumed > ahead or fresh == 0:
                break
            turn.decide(make_batch(state, policy, fresh))
            if queue.paused and queue.pause_reason.startswith(BARREN):
                turn.decide(r.Resumed(policy=policy))


def _drop_surplus(turn: Turn) -> None:
    """More ready parts than staleness lets anyone use: the oldest go."""
    for policy in turn.state.batch_size:
        turn.drop(policy, surplus_groups(turn.state, policy), "surplus")


BARREN = "dynamic sampling filtered"


def _pause_barren(turn: Turn) -> None:
    """Nothing of very much was kept: no more is drawn until somebody resumes, or a part in flight is kept."""
    state = turn.state
    for policy, size in state.batch_size.items():
        queue = state.policies[policy]
        is_barren = queue.filtered >= state.flow.max_redraw * size and not queue.ready
        if queue.is_live and is_barren and not queue.paused and not queue.unconsumed:
            turn.decide(r.Paused(policy=policy, reason=f"{BARREN} {queue.filtered} of {queue.drawn} parts"))


# --- leases ------------------------------------------------------------------------------------


def _lease(turn: Turn) -> None:
    """Give groups to pools with room, by room and speed, while some live policy (or all of them) can use more."""
    state = turn.state
    if state.ledger.paused or state.draining:
        return
    able = pools_with_room(state)
    shares = weights(able)
    left = sum(shares)
    for (name, participant), share in zip(able, shares, strict=True):
        need = lease_need(state, participant)
        count = min(participant.room, need if share >= left else math.ceil(need * share / left))
        left -= share
        if count > 0:
            _grant(turn, name, count)
    for name, participant in able:  # what the shares leave over goes to the quickest that has room
        count = min(participant.room, lease_need(state, participant))
        if count > 0:
            _grant(turn, name, count)


def _grant(turn: Turn, name: str, count: int) -> None:
    """Lease ``count`` groups: those that came back first, then new ones."""
    state = turn.state
    again = dict(itertools.islice(state.leases.waiting.items(), count))
    if again:
        problems = [state.leases.open[group].problem for group in again]
        attempts = [attempt + 1 for attempt in again.values()]
        turn.decide(r.Leased(pool=name, groups=list(again), problems=problems, attempts=attempts))
    fresh = count - len(again)
    if fresh <= 0:
        return
    first = state.leases.next_group
    problems = state.lease_new(name, fresh)
    leased = r.Leased(pool=name, groups=list(range(first, first + fresh)), problems=problems, attempts=[1] * fresh)
    turn.decisions.append(leased)
    if turn.watch is not None:
        turn.watch(leased)


# --- evaluations ---------------------------------------------------------------------------------


def _evaluate(turn: Turn) -> None:
    """Rounds beside training: their leases end, they are reported, begun, and leased within their quota."""
    state, config = turn.state, turn.state.config
    if not config.evaluations:
        return
    _end_eval_leases(turn)
    for name, evaluation in config.evaluations.items():
        round_ = state.ledger.evaluations.rounds.get(name)
        if round_ is not None and round_.is_complete(evaluation.problem_count):
            turn.decide(eval_report(state, name, "complete"))
        elif round_ is not None and state.now - round_.begun_at > evaluation.timeout_s:
            turn.decide(eval_report(state, name, "deadline"))
        if state.draining or state.ledger.paused:
            continue
        started = eval_due(state, name)
        if started is not None:
            turn.decide(started)
        for lease in eval_leases(state, name):
            turn.decide(lease)


def _end_eval_leases(turn: Turn) -> None:
    state = turn.state
    book, flow = state.ledger.evaluations, state.flow
    for back in state.eval_handbacks:
        _expire_evals(turn, back.participant, [back.group], back.kind, attempt=back.attempt)
    for name, participant in state.participants.items():
        if participant.evals and participant.is_gone(state.now, flow.silence_s):
            _expire_evals(turn, name, list(participant.evals), participant.why_gone)
    for round_ in book.rounds.values():
        for name, items in round_.late(state.now, flow.group_timeout_s).items():
            _expire_evals(turn, name, items, "timeout")


def _expire_evals(turn: Turn, name: str, items: Sequence[int], reason: str, *, attempt: int | None = None) -> None:
    held = turn.state.participants[name].evals
    items = [item for item in items if item in held and attempt in (None, held[item])]
    if items:
        attempts = [held[item] for item in items]
        turn.decide(r.EvalExpired(pool=name, items=items, attempts=attempts, reason=reason))


# --- reports and the end ------------------------------------------------------------------------


def _report_load(turn: Turn) -> None:
    state = turn.state
    for policy in state.batch_size:
        queue = state.policies[policy]
        if queue.consumed - queue.window.step >= state.flow.report_every:
            for decision in load_report(state, policy):
                turn.decide(decision)
    spare = spare_pools(state)
    if spare:
        turn.decide(r.DrainRequested(participants=spare, reason="all that is still needed is being played"))


def _stand_still(turn: Turn) -> None:
    """Behind everything that moves the number of pools of a region."""
    still = standstill(turn.state)
    if still is not None:
        turn.decide(still)


def _end_run(turn: Turn) -> None:
    """All policies ended, or a stop was wanted: everyone drains, and when all are gone the run is over."""
    state = turn.state
    if not state.draining and state.all_ended and not state.ledger.evaluations.rounds:
        turn.decide(r.DrainRequested(participants=[], reason="all policies have ended"))
    if not state.draining:
        return
    late = [
        name for name, participant in state.participants.items() if participant.role and not is_told(state, participant)
    ]
    if late:
        turn.decide(r.DrainRequested(participants=late, reason=state.ledger.drain_reason))
    if any(is_awaited(state, participant) for participant in state.participants.values()):
        return
    for name in list(state.ledger.evaluations.rounds):
        turn.decide(eval_report(state, name, "stopped"))
    for policy, queue in state.policies.items():
        turn.drop(policy, [*state.leases.open, *kept_groups(queue)], "ended")
    turn.decide(r.Stopped(reason=state.ledger.drain_reason))
