"""Axes with round ticks: linear ones in steps of 1, 2 or 5, logarithmic ones in decades (or 1, 2, 5 of them)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Axis:
    """From ``low`` to ``high``, with the values that are written at it."""

    low: float
    high: float
    ticks: tuple[float, ...]
    is_log: bool = False

    def label(self, tick: float) -> str:
        """A tick with as many decimals as the step between ticks needs."""
        if len(self.ticks) < 2 or self.is_log:
            return f"{tick:g}"
        step = self.ticks[1] - self.ticks[0]
        return f"{tick:.{max(0, -math.floor(math.log10(step) + 1e-9))}f}"


def linear_axis(low: float, high: float, *, count: int, whole: bool = False, tight: bool = False) -> Axis:
    """An axis that holds ``low`` and ``high`` with about ``count`` round ticks.

    ``whole`` allows no steps below 1; ``tight`` ends where the values end instead of at a tick.
    """
    if high - low <= 1e-9 * max(abs(low), abs(high), 1e-3):
        margin = 1.0 if whole else abs(low) * 0.1 or 1.0
        low, high = (low, low + margin) if whole or low >= 0 else (low - margin, low + margin)
    step = _round_step((high - low) / count)
    if whole:
        step = max(1.0, step)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = [float(f"{index * step:.12g}") for index in range(first, last + 1)]
    if tight:
        return Axis(low, high, tuple(tick for tick in ticks if low <= tick <= high))
    return Axis(ticks[0], ticks[-1], tuple(ticks))


def log_axis(values: Sequence[float]) -> Axis:
    """A logarithmic axis that holds the positive ``values``."""
    if not values:
        return Axis(1.0, 10.0, (1.0, 10.0), is_log=True)
    decades = range(math.floor(math.log10(min(values))) - 1, math.ceil(math.log10(max(values))) + 1)
    for factors in ((1.0,), (1.0, 2.0, 5.0)):
        ticks = sorted(10.0**decade * factor for decade in decades for factor in factors)
        low = max(tick for tick in ticks if tick <= min(values) * (1 + 1e-9))
        high = min((tick for tick in ticks if tick >= max(values) * (1 - 1e-9) and tick > low), default=low * 10)
        kept = tuple(tick for tick in ticks if low <= tick <= high)
        if len(kept) >= 4:
            break
    stride = math.ceil(len(kept) / 7)
    return Axis(low, high, kept[::stride], is_log=True)


def _round_step(step: float) -> float:
    """The nearest of 1, 2, 5 times a power of ten that is not below ``step``."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= step * (1 - 1e-9))
