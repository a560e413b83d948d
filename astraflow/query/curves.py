"""The curves of a run: what each consumed batch was, step by step, for pictures.

They are counted from the same rows as the figures (``query.figures``): the mean of a curve of rewards is no other
number than a figure's. A value that a step does not have (no rows, no time said) is left out of its curve.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from astraflow.query.fold import RunFold
from astraflow.query.tables import consumed_row

Curve = list[tuple[int, float]]
"""(step, value) pairs; steps rise."""


class PolicyCurves(msgspec.Struct, kw_only=True):
    """One policy's curves over its optimizer steps."""

    reward: Curve = []  # mean of the batch's rows
    lag_mean: Curve = []
    lag_max: Curve = []
    wait_ratio: Curve = []  # of this step's time
    response_tokens: Curve = []  # mean length of the batch's answers
    delta_bytes: Curve = []  # shipped for the step's versions
    full_bytes: Curve = []  # what full copies of them would be


def run_curves(fold: RunFold, policies: Iterable[str]) -> dict[str, PolicyCurves]:
    """The curves of each policy, in name order."""
    return {policy: _policy_curves(fold, policy) for policy in sorted(policies)}


def _policy_curves(fold: RunFold, policy: str) -> PolicyCurves:
    curves = PolicyCurves()
    for n in range(fold.consumed.get(policy, -1) + 1):
        row, step = consumed_row(fold, policy, n), n + 1
        _add(curves.reward, step, row["reward_mean"])
        _add(curves.lag_mean, step, row["lag_mean"])
        _add(curves.lag_max, step, row["lag_max"])
        if row["rows"]:
            _add(curves.response_tokens, step, row["response_tokens"] / row["rows"])
        time_s = (row["wait_s"] or 0.0) + (row["step_s"] or 0.0)
        if time_s > 0:
            _add(curves.wait_ratio, step, (row["wait_s"] or 0.0) / time_s)
    _add_payloads(curves, fold, policy)
    return curves


def _add_payloads(curves: PolicyCurves, fold: RunFold, policy: str) -> None:
    """Bytes by step: a trainer that comes again publishes another version of the same step."""
    shipped: dict[int, int] = {}
    full: dict[int, int] = {}
    for (owner, _), version in fold.versions.items():
        if owner == policy and version.delta_bytes is not None:
            shipped[version.step] = shipped.get(version.step, 0) + version.delta_bytes
            full[version.step] = full.get(version.step, 0) + (version.full_bytes or 0)
    curves.delta_bytes = [(step, float(count)) for step, count in sorted(shipped.items())]
    curves.full_bytes = [(step, float(count)) for step, count in sorted(full.items())]


def _add(curve: Curve, step: int, value: float | None) -> None:
    if value is not None:
        curve.append((step, float(value)))
