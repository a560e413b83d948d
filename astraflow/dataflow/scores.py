"""What the scores of an evaluation come to: avg@k and pass@k with 95 % confidence intervals.

A problem is one observation, however often it is played. ``avg@k`` is the mean over problems of the mean score of k
plays, with the normal interval of a mean. ``pass@j`` (j ≤ k) is the chance that one of j plays passes, estimated
without bias from k plays (arXiv 2107.03374, eq. 1), with Wilson's interval, which keeps a width when all pass.
Only the four operations and square roots: the same scores give the same figures on every platform.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

Z = 1.96
"""Quantile of the normal distribution for 95 %."""


def summary(scores: Collection[Sequence[float]], repeats: int, pass_score: float) -> dict[str, float]:
    """Figures of one round, from the scores of each problem's plays; empty without any."""
    if not scores:
        return {}
    figures: dict[str, float] = {}
    averages = [sum(plays) / len(plays) for plays in scores]
    figures |= _with_interval(f"avg@{repeats}", *_normal(averages))
    passes = [(len(plays), sum(score >= pass_score for score in plays)) for plays in scores]
    for j in _powers(repeats):
        estimates = [pass_at(j, plays, passed) for plays, passed in passes if plays >= j]
        if estimates:
            figures |= _with_interval(f"pass@{j}", *_wilson(sum(estimates) / len(estimates), len(estimates)))
    return figures


def pass_at(j: int, plays: int, passed: int) -> float:
    """The chance that of ``j`` plays drawn from ``plays``, of which ``passed`` pass, at least one passes."""
    none = 1.0
    for i in range(plays - passed + 1, plays + 1):
        none *= 1 - j / i if i > j else 0.0
    return 1.0 - none


def _powers(repeats: int) -> Iterable[int]:
    """1, 2, 4, … and ``repeats`` itself."""
    j = 1
    while j < repeats:
        yield j
        j *= 2
    yield repeats


def _with_interval(name: str, value: float, low: float, high: float) -> dict[str, float]:
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def _normal(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean and its interval; the range of the values where there are too few."""
    count = len(values)
    mean = sum(values) / count
    if count < 2:
        return mean, mean, mean
    variance = sum((value - mean) * (value - mean) for value in values) / (count - 1)
    half = Z * math.sqrt(variance / count)
    return mean, mean - half, mean + half


def _wilson(share: float, count: int) -> tuple[float, float, float]:
    scale = 1 + Z * Z / count
    middle = (share + Z * Z / (2 * count)) / scale
    half = Z * math.sqrt(share * (1 - share) / count + Z * Z / (4 * count * count)) / scale
    return share, max(0.0, middle - half), min(1.0, middle + half)
