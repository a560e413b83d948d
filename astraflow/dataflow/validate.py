"""Is a fact record fit to be folded? All of its facts, or none.

A record of a participant must never be able to stop the manager or to bend its state: everything that the fold
relies on is checked here, against the state before the record and what the record's own earlier facts add to it.
Late facts about groups that are terminal, and repeats of what is known, are no errors; they have no effect. Longer
than 300 lines so that everything that is asked of a record stands in one place.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np

from astraflow import records as r
from astraflow.dataflow.participants import Participant
from astraflow.dataflow.parts import Columns
from astraflow.dataflow.policy_queue import PolicyQueue
from astraflow.dataflow.scaling import LARGEST_REGION
from astraflow.dataflow.state import RunState
from storage.keys import RunKeys

LARGEST = 2**31 - 1
"""The largest number that a fact may carry: what the trajectory schema's columns hold."""
_TARGET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
WISHES = ("drain", "lost", "pause", "resume", "stop")


class _Refusal(Exception):
    """Why a record has no effect."""


@dataclass(slots=True)
class _Check:
    """One record under examination."""

    state: RunState
    participant: str
    teller: Participant
    role: str
    policies: list[str]
    region: str
    capacity: int
    learned: dict[tuple[str, int], tuple[int, str]] = field(default_factory=dict)


def refusal(state: RunState, participant: str, record: r.FactRecord) -> str:
    """The reason why ``record`` must be rejected; empty if it may be folded."""
    teller = state.participants[participant]
    check = _Check(state, participant, teller, teller.role, teller.policies, teller.region, teller.capacity)
    try:
        _need(record.participant == participant, f"it says it is {record.participant!r}'s")
        for fact in record.facts:
            _CHECKS[type(fact)](check, fact)
    except _Refusal as refused:
        return str(refused)[:500]
    return ""


def _need(is_met: bool, otherwise: str) -> None:
    if not is_met:
        raise _Refusal(otherwise)


def _queue(check: _Check, policy: str) -> PolicyQueue:
    queue = check.state.policies.get(policy)
    if queue is None:
        raise _Refusal(f"there is no policy {policy!r}")
    return queue


# --- pools -----------------------------------------------------------------------------------


def _pool_joined(check: _Check, fact: r.PoolJoined) -> None:
    data_hash = check.state.config.data_hash
    _need(check.role in ("", "pool"), "a trainer cannot join as a pool")
    _need(fact.protocol == r.PROTOCOL, f"protocol {fact.protocol} is not {r.PROTOCOL}")
    _need(not data_hash or fact.data_hash == data_hash, "the pool reads another data set")
    _need(1 <= fact.capacity <= LARGEST, f"capacity {fact.capacity} is not possible")
    for policy in fact.policies:
        _queue(check, policy)
    check.role, check.policies, check.region, check.capacity = "pool", fact.policies, fact.region, fact.capacity


def _leases_wanted(check: _Check, fact: r.LeasesWanted) -> None:
    _need(check.role == "pool", "only a pool that joined asks for leases")
    _need(0 <= fact.ahead <= check.capacity, f"{fact.ahead} leases ahead of {check.capacity} places are not possible")


def _applied(check: _Check, fact: r.Applied) -> None:
    queue = _queue(check, fact.policy)
    _need(check.role == "pool", "only a pool that joined applies versions")
    _need(fact.policy in check.policies, f"the pool does not serve {fact.policy!r}")
    _learn(check, queue, fact)


def _committed(check: _Check, fact: r.Committed) -> None:
    _need(check.role == "pool", "only a pool that joined commits")
    _need(len(fact.groups) == len(fact.attempts), "groups and attempts differ in number")
    _need(len(set(fact.groups)) == len(fact.groups), "a group is named twice")
    _leases(check, fact)
    size = check.state.flow.group_size
    episodes: dict[int, set[int]] = {}  # of groups that no single object has whole
    whole: set[int] = set()
    committed = set(fact.groups)
    seen: dict[str, set[int]] = {}
    for thing in fact.objects:
        groups = _parts_object(check, thing, committed, seen.setdefault(thing.policy, set()))
        if thing.episodes == list(range(size)) * len(groups) and thing.row_counts.count(size) == len(groups):
            whole |= groups  # one row an episode, in order: the usual case, at once
            continue
        for group, start, count in zip(thing.groups, thing.row_starts, thing.row_counts, strict=True):
            episodes.setdefault(group, set()).update(thing.episodes[start : start + count])
    _members(committed, whole, episodes, size)


def _members(committed: set[int], whole: set[int], episodes: dict[int, set[int]], size: int) -> None:
    """Every committed group has each of its episodes, and no others."""
    every = set(range(size))
    for group, members in episodes.items():
        if members != every and not (group in whole and members <= every):
            raise _Refusal(f"group {group} has {len(members)} of {size} episodes")
    missing = committed - whole - episodes.keys()
    _need(not missing, f"group {min(missing, default=0)} has 0 of {size} episodes")


def _leases(check: _Check, fact: r.Committed) -> None:
    opened, alone = check.state.leases.open, [check.participant]
    for group, attempt in zip(fact.groups, fact.attempts, strict=True):
        found = opened.get(group)
        if found is None or attempt != 1 or found.holders != alone:  # not the usual case
            _lease(check, group, attempt)


def _lease(check: _Check, group: int, attempt: int) -> None:
    book = check.state.leases
    found = book.open.get(group)
    if found is None:
        _need(0 <= group < book.next_group, f"group {group} was never leased")
    elif not found.was_held_by(check.participant, attempt):
        raise _Refusal(f"attempt {attempt} of group {group} is not its lease")


def _parts_object(check: _Check, thing: r.PartsObject, committed: set[int], seen: set[int]) -> set[int]:
    """The object's groups, if it may be folded."""
    queue = _queue(check, thing.policy)
    _columns(check, thing)
    _path(check, thing)
    groups = set(thing.groups)
    _need(len(groups) == len(thing.groups) and seen.isdisjoint(groups), f"two parts of {thing.policy!r} in a group")
    _need(groups <= committed, "a part of a group that is not committed here")
    seen |= groups
    for version in _versions(thing):
        _known(check, queue, thing.policy, version)
    return groups


def _versions(thing: r.PartsObject) -> set[int]:
    low, high = thing.version_min, thing.version_max
    is_one = low == high and low.count(low[0]) == len(low)  # the usual case, at once
    return {low[0]} if is_one else {*low, *high}


def _known(check: _Check, queue: PolicyQueue, policy: str, version: int) -> None:
    is_known = version in queue.versions or 0 <= version < queue.floor or (policy, version) in check.learned
    _need(is_known, f"version {version} of {policy!r} is not published")


def _columns(check: _Check, thing: r.PartsObject) -> None:
    rows = len(thing.episodes)
    columns = (
        thing.roles,
        thing.slots,
        thing.version_min,
        thing.version_max,
        thing.rewards,
        thing.prompt_tokens,
        thing.response_tokens,
    )
    _need(all(len(column) == rows for column in columns), "row columns differ in length")
    _need(len(thing.groups) == len(thing.row_starts) == len(thing.row_counts), "part columns differ in length")
    _need(rows > 0 and min(thing.row_counts, default=0) > 0, "an empty part")
    starts, counts = thing.row_starts, thing.row_counts
    if starts != [0, *accumulate(counts[:-1])]:
        order = sorted(range(len(starts)), key=starts.__getitem__)
        starts, counts = [starts[i] for i in order], [counts[i] for i in order]
    is_tiled = starts == [0, *accumulate(counts[:-1])] and sum(counts) == rows
    _need(is_tiled, "the parts do not cover the rows once each")
    low, high = thing.version_min, thing.version_max
    _need(low == high or all(map(operator.le, low, high)), "version_min above version_max")
    try:
        _values(thing, check.state.columns.of(thing))
    except OverflowError:
        raise _Refusal("a number that is not possible") from None


def _values(thing: r.PartsObject, columns: Columns) -> None:
    largest = max(columns.rewards.max(), -columns.rewards.min())  # nan, if there is one
    _need(bool(np.isfinite(largest)), "a reward is not finite")
    _need(largest <= r.LARGEST_REWARD, f"a reward beyond {r.LARGEST_REWARD:g}")
    for lengths in (np.array(thing.prompt_tokens, np.int64), columns.response_tokens):
        _need(lengths.min() >= 0 and lengths.max() <= LARGEST, "a length that is not possible")


def _stores(check: _Check) -> tuple[str | None, ...]:
    """Where the pool may write: a reader opens no store that the config does not name, nor another region's for it."""
    config = check.state.config
    region = config.regions.get(check.region)
    return "", config.store, region.store if region else None


def _path(check: _Check, thing: r.PartsObject) -> None:
    _need(thing.store in _stores(check), f"{thing.store!r} is neither the run's store nor that of its region")
    path = RunKeys(check.state.config.name).parse_trajectory(thing.path)
    if path is None:
        raise _Refusal(f"{thing.path!r} is no trajectory path of this run")
    _need(path.policy == thing.policy, f"{thing.path!r} is not a path of {thing.policy!r}")
    _need(path.stem.startswith(f"{check.participant}-"), f"{thing.path!r} is outside the pool's prefix")
    _need(path.version == min(_versions(thing)), f"{thing.path!r} is not under its oldest version")


def _failed(check: _Check, fact: r.Failed) -> None:
    _lease(check, fact.group, fact.attempt)


def _evaluated(check: _Check, fact: r.Evaluated) -> None:
    evaluation = check.state.config.evaluations.get(fact.evaluation)
    if evaluation is None:
        raise _Refusal(f"there is no evaluation {fact.evaluation!r}")
    book = check.state.ledger.evaluations
    _need(book.holds(fact.item, fact.attempt, check.participant), f"item {fact.item} is not its lease")
    _need(len(fact.scores) == evaluation.repeats, f"{len(fact.scores)} scores of {evaluation.repeats} plays")
    _need(all(abs(score) <= r.LARGEST_REWARD for score in fact.scores), "a score that is not finite, or too large")
    _need(0 <= fact.response_tokens <= LARGEST, "a length that is not possible")
    _need(fact.low.keys() == fact.high.keys(), "versions of different policies")
    for policy, version in [*fact.low.items(), *fact.high.items()]:
        _known(check, _queue(check, policy), policy, version)
    round_ = book.round_of(fact.item)
    if round_ is not None:
        _need(round_ is book.rounds.get(fact.evaluation), f"item {fact.item} is of another evaluation")
        is_new = all(version >= round_.versions.get(policy, 0) for policy, version in fact.low.items())
        _need(is_new, "it was played with older versions than its round's")


def _eval_failed(check: _Check, fact: r.EvalFailed) -> None:
    is_held = check.state.ledger.evaluations.holds(fact.item, fact.attempt, check.participant)
    _need(is_held, f"item {fact.item} is not its lease")


# --- trainers --------------------------------------------------------------------------------


def _trained(check: _Check, policy: str) -> PolicyQueue:
    queue = _queue(check, policy)
    _need(not queue.frozen, f"{policy!r} is frozen")
    is_its = check.role == "" or (check.role == "trainer" and policy in check.policies)
    _need(is_its, f"it is not a trainer of {policy!r}")
    return queue


def _trainer_joined(check: _Check, fact: r.TrainerJoined) -> None:
    _trained(check, fact.policy)
    _need(fact.protocol == r.PROTOCOL, f"protocol {fact.protocol} is not {r.PROTOCOL}")
    _incarnation(fact.incarnation)
    check.role, check.policies = "trainer", [fact.policy]


def _incarnation(incarnation: int) -> None:
    _need(0 <= incarnation <= LARGEST, f"incarnation {incarnation} is not possible")


def _published(check: _Check, fact: r.Published) -> None:
    _incarnation(fact.incarnation)
    _learn(check, _trained(check, fact.policy), fact)


def _learn(check: _Check, queue: PolicyQueue, fact: r.Applied | r.Published) -> None:
    policy, version, step, digest = fact.policy, fact.version, fact.step, fact.digest
    _need(0 <= version <= LARGEST and step >= 0, f"version {version} at step {step} is not possible")
    if version < queue.floor:
        return
    known = queue.versions.get(version)
    here = (known.step, known.digest) if known else check.learned.get((policy, version))
    if here is not None:
        _need(here == (step, digest), f"version {version} of {policy!r} is known with another step or digest")
        return
    _need(step <= (0 if queue.frozen else queue.formed), f"step {step} of {policy!r} is not possible yet")
    if version > queue.newest >= 0:
        _need(step >= queue.newest_step, f"step {step} of version {version} falls")
    elif queue.newest >= 0:
        _need(step <= queue.newest_step, f"step {step} of version {version} is above a later version's")
    check.learned[policy, version] = (step, digest)


def _consumed(check: _Check, fact: r.Consumed) -> None:
    queue = _trained(check, fact.policy)
    _need(0 <= fact.batch < queue.formed, f"batch {fact.batch} of {fact.policy!r} does not exist")
    _need(fact.step == fact.batch + 1, f"batch {fact.batch} cannot be step {fact.step}")
    _incarnation(fact.incarnation)
    is_sane = all(abs(value) <= LARGEST**2 for value in fact.metrics.values())  # false for nan and inf, too
    _need(is_sane and len(fact.metrics) <= 256, "metrics that are not finite, or too many")


def _ended(check: _Check, fact: r.Ended) -> None:
    _trained(check, fact.policy)


# --- anyone ----------------------------------------------------------------------------------


def _presence(check: _Check, fact: r.AnyFact) -> None:
    """Draining and leaving are everybody's right."""


def _wanted(check: _Check, fact: r.Wanted) -> None:
    _need(fact.what in WISHES, f"{fact.what!r} is not a wish; there are: {', '.join(WISHES)}")
    if fact.what in ("drain", "lost"):
        _need(_TARGET.fullmatch(fact.target) is not None, f"{fact.target!r} is no participant")
    if fact.what in ("pause", "resume") and fact.target:
        _queue(check, fact.target)
    if fact.region:
        _need(fact.what in ("pause", "resume"), f"to {fact.what} is no wish about a region")
        _need(not fact.target, "a pause is of a policy or of a region, not of both")
        _region(check, fact.region)


def _region(check: _Check, region: str) -> None:
    regions = check.state.config.pools_of_regions
    _need(region in regions, f"{region!r} is no region of a pool; there are: {', '.join(regions)}")


def _pools_wanted(check: _Check, fact: r.PoolsWanted) -> None:
    _region(check, fact.region)
    _need(fact.pools <= LARGEST_REGION, f"{fact.pools} pools are more than {LARGEST_REGION}")


_CHECKS: dict[type, Callable[[_Check, Any], None]] = {
    r.PoolJoined: _pool_joined,
    r.Applied: _applied,
    r.Committed: _committed,
    r.Failed: _failed,
    r.Evaluated: _evaluated,
    r.EvalFailed: _eval_failed,
    r.LeasesWanted: _leases_wanted,
    r.TrainerJoined: _trainer_joined,
    r.Published: _published,
    r.Consumed: _consumed,
    r.Ended: _ended,
    r.Draining: _presence,
    r.Left: _presence,
    r.Wanted: _wanted,
    r.PoolsWanted: _pools_wanted,
}
