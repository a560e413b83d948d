"""Why: the life of one group, trajectory or batch, told from a run's logs.

The story follows the decisions in order, with the facts each was made on; like every reader it decides nothing, so what
it says happened is what every process of the run read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from astraflow import records as r
from astraflow.query.fold import PartView
from astraflow.query.logs import RunLogReader, SeenDecision
from astraflow.query.run import Run
from storage.errors import ConfigError

_TRAJECTORY = re.compile(r"^(\d+)-(\d+)-(\d+)-(.+)-(\d+)$")
_BATCH = re.compile(r"^(?P<policy>[a-z0-9][a-z0-9_-]*)/(?P<n>\d+)$")

REASONS = {
    "absent": "the episodes had no trajectory of this policy",
    "ended": "the policy's trainer had ended, or the run was over",
    "failed": "all its attempts had failed",
    "filter_error": "the filter raised an error on it",
    "filter_failed": "an episode of it broke before it had sampled a token",
    "frozen": "the policy is not trained",
    "overlong": "an answer of it was longer than the filter allows",
    "skipped": "the trainer could not use it; its problem was leased again",
    "stale": "it was too old for the next batch; its problem was leased again",
    "surplus": "more parts were ready than staleness lets anyone use, and it was the oldest",
    "zero_advantage": "all its rewards were equal, so it would teach nothing",
}
"""What the manager's and the built-in filters' reasons mean."""


TOLD = ("loss", "reward_mean", "reward_std", "lag_mean", "lag_max", "grad_norm", "step_refused", "wait_s", "step_s")
"""What is told of a batch's training; the table ``steps`` has everything."""


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened: in which decision record, and when by that manager's clock."""

    seq: int
    epoch: int
    now: float
    text: str


@dataclass(slots=True)
class Story:
    """The life of ``subject``; ``outcome`` is how it ended, or stands."""

    subject: str
    outcome: str = ""
    events: list[Event] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def why(run: Run, what: str) -> Story:
    """The story of a group (``17``), a trajectory (``17-1-0-solver-0``) or a batch (``solver/3``).

    Raises ``ConfigError`` if the text names none, or the run has no such thing.
    """
    if what.isdecimal():
        return _group(run, int(what), f"group {int(what)}")
    if (found := _TRAJECTORY.match(what)) is not None:
        return _trajectory(run, what, *(int(found[i]) for i in (1, 2, 3)), role=found[4], slot=int(found[5]))
    if (found := _BATCH.match(what)) is not None:
        return _batch(run, found["policy"], int(found["n"]))
    raise ConfigError(
        f"{what!r} names nothing of a run",
        where="what",
        remedy="Name a group (17), a trajectory (17-1-0-solver-0) or a batch (solver/3)",
        kind="why",
    )


# --- groups ------------------------------------------------------------------------------------


def _group(run: Run, group: int, subject: str) -> Story:
    story = Story(subject)
    for seen in RunLogReader(run.store, run.keys).advance():
        texts = [*_of_facts(run, seen, group), *_of_decisions(run, seen, group)]
        story.events += [Event(seen.seq, seen.record.epoch, seen.record.now, text) for text in texts]
    if not story.events:
        raise _unknown(run, f"group {group}")
    parts = [part for part in run.fold.parts.values() if part.group == group]
    story.outcome = "; ".join(_outcome(part) for part in parts) or "it has no part"
    return story


def _of_facts(run: Run, seen: SeenDecision, group: int) -> Iterator[str]:
    for facts in seen.facts:
        for fact in facts.record.facts:
            match fact:
                case r.Committed() if group in fact.groups:
                    attempt = fact.attempts[fact.groups.index(group)]
                    yield f"{facts.participant} committed attempt {attempt}: {_contents(fact, group)}"
                case r.Failed(group=named) if named == group:
                    said = f" ({fact.message})" if fact.message else ""
                    yield f"{facts.participant} handed attempt {fact.attempt} back: {fact.kind}{said}"
                case r.Consumed() if group in fact.skipped:
                    at = fact.skipped.index(group)
                    reason = fact.reasons[at] if at < len(fact.reasons) else "no reason given"
                    yield f"{fact.policy}'s trainer skipped its part of batch {fact.batch}: {reason}"
                case r.Consumed() if _holds(run, fact, group):
                    yield f"{facts.participant} trained batch {fact.batch} with {fact.policy}'s part: step {fact.step}"


def _holds(run: Run, fact: r.Consumed, group: int) -> bool:
    batch = run.fold.batches.get((fact.policy, fact.batch))
    return batch is not None and group in batch.decision.groups


def _contents(fact: r.Committed, group: int) -> str:
    texts = []
    for thing in fact.objects:
        if group not in thing.groups:
            continue
        at = thing.groups.index(group)
        rows = slice(thing.row_starts[at], thing.row_starts[at] + thing.row_counts[at])
        texts.append(
            f"{thing.policy}: {thing.row_counts[at]} rows of "
            f"{_span(thing.version_min[rows], thing.version_max[rows])}, rewards {_rewards(thing.rewards[rows])}"
        )
    return "; ".join(texts) or "no rows"


def _of_decisions(run: Run, seen: SeenDecision, group: int) -> Iterator[str]:
    for decision in seen.record.decisions:
        match decision:
            case r.Leased() if group in decision.groups:
                at = decision.groups.index(group)
                yield f"leased to {decision.pool}: problem {decision.problems[at]}, attempt {decision.attempts[at]}"
            case r.Expired() if group in decision.groups:
                attempt = decision.attempts[decision.groups.index(group)]
                yield f"attempt {attempt} at {decision.pool} is over: {decision.reason}"
            case r.Admitted() if group in decision.groups:
                attempt = decision.attempts[decision.groups.index(group)]
                yield f"admitted: attempt {attempt} of {decision.participant}; any other is void"
            case r.Dropped() if group in decision.groups:
                yield f"{decision.policy}'s part was dropped as {_reason(decision.reason)}"
            case r.Batched() if group in decision.groups:
                yield _batched(run, decision, group)


def _batched(run: Run, decision: r.Batched, group: int) -> str:
    at = decision.groups.index(group)
    lag = _lag(run, decision.policy, decision.n, decision.versions[at])
    part = run.fold.parts.get((decision.policy, group))
    again = "again, by replay," if part is not None and part.batch != decision.n else ""
    return f"{decision.policy}'s part went {again or ''} into batch {decision.n} with lag {lag}".replace("  ", " ")


def _outcome(part: PartView) -> str:
    match part.state:
        case "dropped":
            return f"{part.policy}: dropped as {part.reason}"
        case "consumed":
            times = f", {part.uses} times" if part.uses > 1 else ""
            return f"{part.policy}: trained on in batch {part.batch}{times}"
        case "batched":
            return f"{part.policy}: in batch {part.batch}, which its trainer has not done yet"
        case "ready":
            return f"{part.policy}: ready for a batch"
        case _:
            return f"{part.policy}: attempt {part.attempt} at {part.participant} is open"


# --- trajectories ------------------------------------------------------------------------------


def _trajectory(run: Run, name: str, group: int, attempt: int, episode: int, *, role: str, slot: int) -> Story:
    story = _group(run, group, f"trajectory {name}")
    for part in run.fold.parts.values():
        thing = part.object
        if part.group != group or thing is None:
            continue
        if part.attempt != attempt:
            story.outcome = f"void: attempt {part.attempt} of its group was admitted. {story.outcome}"
            return story
        for row in range(*part.rows.indices(len(thing.episodes))):
            if (thing.episodes[row], thing.roles[row], thing.slots[row]) == (episode, role, slot):
                versions = _span(thing.version_min[row : row + 1], thing.version_max[row : row + 1])
                story.outcome = (
                    f"{_outcome(part)}; it has reward {thing.rewards[row]:g}, {thing.response_tokens[row]} tokens of "
                    f"{versions}, and lies in {thing.path}"
                )
                return story
    if any(part.group == group and part.object is not None for part in run.fold.parts.values()):
        raise _unknown(run, f"trajectory {name}")
    return story


# --- batches -----------------------------------------------------------------------------------


def _batch(run: Run, policy: str, n: int) -> Story:
    batch = run.fold.batches.get((policy, n))
    if batch is None:
        raise _unknown(run, f"batch {policy}/{n}")
    story = Story(f"batch {n} of {policy}")
    for seen in RunLogReader(run.store, run.keys).advance():
        texts = []
        for facts in seen.facts:
            texts += [text for fact in facts.record.facts for text in _of_trainer(facts.participant, fact, policy, n)]
        if seen.seq == batch.seq:
            texts += _formed(run, batch.decision)
        story.events += [Event(seen.seq, seen.record.epoch, seen.record.now, text) for text in texts]
    skipped = f", without {len(batch.skipped)} skipped parts" if batch.skipped else ""
    story.outcome = f"trained at step {n + 1}{skipped}" if batch.consumed else "its trainer has not done it yet"
    return story


def _of_trainer(participant: str, fact: r.AnyFact, policy: str, n: int) -> Iterator[str]:
    match fact:
        case r.Consumed(policy=named, batch=batch) if named == policy and batch == n:
            known = (name for name in TOLD if name in fact.metrics)
            figures = ", ".join(f"{name} {fact.metrics[name]:.4g}" for name in known)
            yield f"{participant} trained it: {figures or 'no figures'}"
            for group, reason in zip(fact.skipped, fact.reasons, strict=False):
                yield f"{participant} skipped group {group}: {reason}"
        case r.Published(policy=named, step=step) if named == policy and step == n + 1:
            yield f"{participant} published version {fact.version} made with it"


def _formed(run: Run, decision: r.Batched) -> Iterator[str]:
    yield f"formed of {len(decision.groups)} parts in {len(decision.paths)} objects"
    for at, group in enumerate(decision.groups):
        part = run.fold.parts.get((decision.policy, group))
        lag = _lag(run, decision.policy, decision.n, decision.versions[at])
        if part is None or part.object is None:
            yield f"group {group}: lag {lag}"
            continue
        replay = " (replayed)" if part.batch != decision.n else ""
        yield (
            f"group {group}{replay}: problem {part.problem} at {part.participant}, lag {lag}, "
            f"rewards {_rewards(part.object.rewards[part.rows])}"
        )


# --- words -------------------------------------------------------------------------------------


def _reason(reason: str) -> str:
    return f"{reason}: {REASONS[reason]}" if reason in REASONS else f"{reason}: the filter of that name"


def _lag(run: Run, policy: str, n: int, version: int) -> str:
    known = run.fold.versions.get((policy, version))
    return f"{n - known.step} (version {version})" if known is not None else f"unknown (version {version})"


def _span(low: Sequence[int], high: Sequence[int]) -> str:
    first, last = min(low), max(high)
    return f"version {first}" if first == last else f"versions {first} to {last}"


def _rewards(rewards: Sequence[float]) -> str:
    mean = sum(rewards) / len(rewards)
    return f"{min(rewards):g} to {max(rewards):g}, mean {mean:.3g}"


def _unknown(run: Run, what: str) -> ConfigError:
    return ConfigError(
        f"the run has no {what}",
        where=run.keys.run,
        remedy='`astraflow query "SELECT policy, group_id, state, batch FROM parts"` lists groups and batches',
        kind="why",
    )
