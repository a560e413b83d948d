"""The book of evaluations: rounds under way, what was leased of them, and the scores that came back.

A round plays every problem of one evaluation once (``repeats`` plays a lease) with at least given versions. Its
leases stand apart from those of training: they are no load, have a quota of each pool's room, and are never batched.
Items are numbered over the whole run, so a late result names what it is of; a number that is not open is over.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from astraflow import records as r
from astraflow.config import Evaluation
from astraflow.dataflow.participants import Participant

QUOTA = 10
"""One in so many of a pool's places may play evaluations while it trains, but at least one."""


class Item(msgspec.Struct, array_like=True):
    """One problem of a round that was leased. ``holders[k - 1]`` is the participant of attempt k."""

    problem: int
    holders: list[str]

    @property
    def attempt(self) -> int:
        return len(self.holders)


class Round(msgspec.Struct):
    """One round of one evaluation."""

    number: int
    versions: dict[str, int]  # least version of each policy
    begun_at: float  # on the manager's clock
    reason: str
    next_problem: int = 0
    open: dict[int, Item] = {}
    leased: dict[int, float] = {}  # item -> when, oldest first
    waiting: list[int] = []  # items whose lease ended without a result
    scores: dict[int, list[float]] = {}  # by problem
    missing: int = 0  # problems that had all their attempts
    low: dict[str, int] = {}
    high: dict[str, int] = {}

    def is_complete(self, problem_count: int) -> bool:
        """Every problem has been scored or given up."""
        return len(self.scores) + self.missing >= problem_count

    def late(self, now: float, timeout_s: float) -> dict[str, list[int]]:
        """Items leased longer ago than ``timeout_s``, by holder."""
        found: dict[str, list[int]] = {}
        for item, leased_at in self.leased.items():
            if now - leased_at > timeout_s:
                found.setdefault(self.open[item].holders[-1], []).append(item)
        return found

    def choose(self, count: int, next_item: int, problem_count: int) -> tuple[list[int], list[int], list[int]]:
        """Items, problems and attempts to lease next: those that came back first. Changes nothing."""
        again = self.waiting[:count]
        fresh = min(count - len(again), problem_count - self.next_problem)
        items = [*again, *range(next_item, next_item + fresh)]
        problems = [self.open[item].problem for item in again]
        problems += range(self.next_problem, self.next_problem + fresh)
        return items, problems, [self.open[item].attempt + 1 for item in again] + [1] * fresh


class EvalBook(msgspec.Struct):
    """All evaluations. At most one round of each is under way."""

    next_item: int = 0
    rounds: dict[str, Round] = {}
    begun: dict[str, int] = {}  # rounds that ever began
    newest: dict[str, dict[str, int]] = {}  # versions of each evaluation's last round

    def start(self, name: str, number: int, versions: Mapping[str, int], reason: str, now: float) -> None:
        """A round begins."""
        self.rounds[name] = Round(number, dict(versions), now, reason)
        self.begun[name] = number + 1
        self.newest[name] = dict(versions)

    def lease(self, name: str, item: int, problem: int, holder: str, now: float) -> None:
        """Lease a new item, or one that came back."""
        round_ = self.rounds[name]
        if item == self.next_item:
            self.next_item += 1
            round_.next_problem += 1
            round_.open[item] = Item(problem, [])
        else:
            round_.waiting.remove(item)
        round_.open[item].holders.append(holder)
        round_.leased[item] = now

    def expire(self, item: int, attempt: int, max_attempts: int) -> None:
        """End an attempt without a result."""
        round_ = self.round_of(item)
        if round_ is None or round_.open[item].attempt != attempt or round_.leased.pop(item, None) is None:
            return
        if attempt >= max_attempts:
            del round_.open[item]
            round_.missing += 1
        else:
            round_.waiting.append(item)

    def score(self, item: int, scores: list[float], low: Mapping[str, int], high: Mapping[str, int]) -> str:
        """Take a result in and return who held the item; nothing happens (and "") if it is over."""
        round_ = self.round_of(item)
        if round_ is None:
            return ""
        found = round_.open.pop(item)
        round_.leased.pop(item, None)
        if item in round_.waiting:
            round_.waiting.remove(item)
        round_.scores[found.problem] = scores
        for policy, version in low.items():
            round_.low[policy] = min(version, round_.low.get(policy, version))
        for policy, version in high.items():
            round_.high[policy] = max(version, round_.high.get(policy, version))
        return found.holders[-1]

    def round_of(self, item: int) -> Round | None:
        """The round in which the item is open."""
        return next((round_ for round_ in self.rounds.values() if item in round_.open), None)

    def holds(self, item: int, attempt: int, participant: str) -> bool:
        """Whether this attempt was leased to this participant; an item that is over is anybody's."""
        round_ = self.round_of(item)
        if round_ is None:
            return 0 <= item < self.next_item
        holders = round_.open[item].holders
        return 1 <= attempt <= len(holders) and holders[attempt - 1] == participant

    def restart_timers(self) -> None:
        """A new epoch's clock begins at 0."""
        for round_ in self.rounds.values():
            round_.begun_at = 0.0
            round_.leased = dict.fromkeys(round_.leased, 0.0)


def due_reason(book: EvalBook, name: str, evaluation: Evaluation, newest: Mapping[str, int], *, at_end: bool) -> str:
    """Why a round of the evaluation is to begin now with versions ``newest``; empty if it is not."""
    if name in book.rounds or min(newest.values()) < 0:
        return ""
    last = book.newest.get(name)
    if at_end:
        return "end" if evaluation.at_end and last != newest else ""
    if last is None:
        if evaluation.at_start:
            return "start"
        last = dict.fromkeys(newest, 0)
    passed = max(newest[policy] - last.get(policy, 0) for policy in newest)
    return "version" if evaluation.every and passed >= evaluation.every else ""


EvalDecision = r.EvalStarted | r.EvalLeased | r.EvalExpired | r.EvalReported


def fold_evaluation(
    book: EvalBook, participants: Mapping[str, Participant], decision: EvalDecision, now: float, max_attempts: int
) -> None:
    """Fold one decision about evaluations into their book and into what participants hold."""
    match decision:
        case r.EvalStarted():
            book.start(decision.evaluation, decision.round, decision.versions, decision.reason, now)
        case r.EvalLeased():
            evals = participants[decision.pool].evals
            for item, problem, attempt in zip(decision.items, decision.problems, decision.attempts, strict=True):
                book.lease(decision.evaluation, item, problem, decision.pool, now)
                evals[item] = attempt
        case r.EvalExpired():
            for item, attempt in zip(decision.items, decision.attempts, strict=True):
                participants[decision.pool].evals.pop(item, None)
                book.expire(item, attempt, max_attempts)
        case r.EvalReported():
            for item, found in book.rounds.pop(decision.evaluation).open.items():
                participants[found.holders[-1]].evals.pop(item, None)
