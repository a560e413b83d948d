"""The figures of a run: whether it learns, how stale its data is, what its weights cost to move, what went wrong.

Every figure is counted from what the store holds. Rewards and lags are of the rows that consumed batches trained on
(warm-up steps are no batches, skipped parts are not trained on); a row's lag is that of its oldest token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from astraflow.config import RunConfig
from astraflow.query.fold import RunFold
from astraflow.query.tables import consumed_row, known_versions, read_manifests
from astraflow.records import EVERYWHERE
from storage.keys import RunKeys
from storage.store import ObjectStore

EDGE_BATCHES = 20
"""How many batches the first and the last reward are the mean of."""


class PolicyFigures(msgspec.Struct, kw_only=True):
    """One policy. ``rewards`` has the mean reward of each consumed batch that had rows, in order."""

    reward_first20: float | None = None
    reward_last20: float | None = None
    reward_gain: float | None = None  # last − first
    steps: int = 0
    rows_trained: int = 0
    tokens_trained: int = 0  # response tokens
    tokens_per_s: float | None = None
    lag_mean: float | None = None
    lag_max: int | None = None
    wait_s: float = 0.0
    step_s: float = 0.0
    wait_ratio: float | None = None
    versions: int = 0
    delta_bytes: int = 0
    full_bytes: int = 0
    parts: dict[str, int] = {}
    drops: dict[str, int] = {}
    paused: str | None = None  # why no leases are given for it
    ended: str | None = None  # why, once the policy's trainer has ended
    rewards: list[float] = []


class RunFigures(msgspec.Struct, kw_only=True):
    """The whole run. Sums and maxima are over its policies; rewards are the mean of theirs."""

    run: str
    state: str  # created, running, paused, draining, stopped
    reason: str = ""
    seconds: float = 0.0  # that managers have worked, by their own clocks
    epochs: int = 0
    decisions: int = 0
    steps: int = 0
    reward_first20: float | None = None
    reward_last20: float | None = None
    reward_gain: float | None = None
    lag_mean: float | None = None
    lag_max: int | None = None
    wait_ratio: float | None = None
    delta_bytes: int = 0
    full_bytes: int = 0
    tokens_trained: int = 0
    tokens_per_s: float | None = None
    errors: dict[str, int] = {}  # failed groups, by kind
    rejected: dict[str, int] = {}  # outbox records, by reason
    drops: dict[str, int] = {}  # parts, by reason
    pools: dict[str, int] = {}  # lives of pools, by state
    pools_wanted: dict[str, int] = {}  # by region, as the decisions say
    pools_held: list[str] = []  # regions whose number is a person's word
    regions_paused: dict[str, str] = {}  # why, by region: its pools get no leases
    pools_advised: int | None = None  # of the run, by load reports since the last change; none where nobody asks
    policies: dict[str, PolicyFigures] = {}

    def to_json(self) -> str:
        """The figures as one JSON object."""
        return msgspec.json.encode(self).decode()

    def to_dict(self) -> dict[str, Any]:
        """The figures as plain values."""
        figures: dict[str, Any] = msgspec.to_builtins(self)
        return figures


def run_figures(store: ObjectStore, keys: RunKeys, fold: RunFold, config: RunConfig) -> RunFigures:
    """Count the figures of the trained policies and of the run."""
    each = {policy: _policy_figures(fold, policy) for policy in config.trained}
    _add_versions(store, keys, fold, each)
    paused = fold.paused.get("", fold.scaling.paused.get(EVERYWHERE)) if fold.state == "running" else None
    figures = RunFigures(
        run=keys.run,
        state=fold.state if paused is None else "paused",
        reason=fold.reason if paused is None else paused,
        seconds=fold.seconds,
        epochs=len(fold.seconds_of_epoch),
        decisions=len(fold.decisions),
        errors=dict(sorted(fold.failures.items())),
        rejected=dict(sorted(fold.rejections.items())),
        drops=_sum(policy.drops for policy in each.values()),
        pools=dict(sorted(Counter(pool.state for pool in fold.pools.values()).items())),
        pools_wanted=fold.scaling.counts(config),
        pools_held=list(fold.scaling.held),
        regions_paused=fold.scaling.regions_paused,
        pools_advised=max(fold.scaling.advised.values(), default=None),
        policies=each,
    )
    _add_totals(figures, list(each.values()))
    figures.tokens_per_s = _ratio(figures.tokens_trained, figures.seconds)
    for policy in each.values():
        policy.tokens_per_s = _ratio(policy.tokens_trained, figures.seconds)
    return figures


def _policy_figures(fold: RunFold, policy: str) -> PolicyFigures:
    """One pass over the policy's consumed batches; parts are counted as they move."""
    figures = PolicyFigures(
        steps=fold.consumed.get(policy, -1) + 1, ended=fold.ended.get(policy), paused=fold.paused.get(policy)
    )
    lag_sum = 0.0
    lag_rows = 0
    for n in range(figures.steps):
        row = consumed_row(fold, policy, n)
        figures.rows_trained += row["rows"]
        figures.tokens_trained += row["response_tokens"]
        figures.wait_s += row["wait_s"] or 0.0
        figures.step_s += row["step_s"] or 0.0
        if row["reward_mean"] is not None:
            figures.rewards.append(row["reward_mean"])
        if row["lag_max"] is not None:
            figures.lag_max = max(row["lag_max"], figures.lag_max or 0)
            lag_sum += row["lag_mean"] * row["rows"]
            lag_rows += row["rows"]
    figures.lag_mean = lag_sum / lag_rows if lag_rows else None
    figures.wait_ratio = _ratio(figures.wait_s, figures.wait_s + figures.step_s)
    figures.reward_first20 = _mean(figures.rewards[:EDGE_BATCHES])
    figures.reward_last20 = _mean(figures.rewards[-EDGE_BATCHES:])
    figures.reward_gain = _difference(figures.reward_last20, figures.reward_first20)
    figures.parts = _of_policy(fold.states, policy)
    figures.drops = _of_policy(fold.drops, policy)
    return figures


def _add_versions(store: ObjectStore, keys: RunKeys, fold: RunFold, each: dict[str, PolicyFigures]) -> None:
    """What was shipped and what full copies would have been; manifests speak for versions whose trainer died first."""
    silent = []
    for policy, version in known_versions(fold):
        if policy not in each:
            continue
        each[policy].versions += 1
        said = fold.versions.get((policy, version))
        if said is None or said.delta_bytes is None:
            silent.append((policy, version))
        else:
            each[policy].delta_bytes += said.delta_bytes
            each[policy].full_bytes += said.full_bytes or 0
    for head in read_manifests(store, keys, silent):
        each[head.policy].delta_bytes += head.size_bytes
        each[head.policy].full_bytes += head.full_bytes


def _add_totals(figures: RunFigures, policies: Sequence[PolicyFigures]) -> None:
    figures.steps = sum(policy.steps for policy in policies)
    figures.delta_bytes = sum(policy.delta_bytes for policy in policies)
    figures.full_bytes = sum(policy.full_bytes for policy in policies)
    figures.tokens_trained = sum(policy.tokens_trained for policy in policies)
    wait_s = sum(policy.wait_s for policy in policies)
    figures.wait_ratio = _ratio(wait_s, wait_s + sum(policy.step_s for policy in policies))
    figures.lag_max = max((policy.lag_max for policy in policies if policy.lag_max is not None), default=None)
    weighed = [(policy.lag_mean, policy.rows_trained) for policy in policies if policy.lag_mean is not None]
    rows = sum(count for _, count in weighed)
    figures.lag_mean = sum(lag * count for lag, count in weighed) / rows if rows else None
    figures.reward_first20 = _mean([p.reward_first20 for p in policies if p.reward_first20 is not None])
    figures.reward_last20 = _mean([p.reward_last20 for p in policies if p.reward_last20 is not None])
    figures.reward_gain = _difference(figures.reward_last20, figures.reward_first20)


def _of_policy(counts: Counter[tuple[str, str]], policy: str) -> dict[str, int]:
    return {what: count for (of, what), count in sorted(counts.items()) if of == policy and count}


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None


def _difference(a: float | None, b: float | None) -> float | None:
    return a - b if a is not None and b is not None else None


def _sum(counts: Iterable[dict[str, int]]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return dict(sorted(total.items()))
