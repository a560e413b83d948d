"""Figures as text: curves as bars for a terminal, sizes and numbers for a person."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

_BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], width: int = 40, *, low: float = 0.0, high: float = 1.0) -> str:
    """The values as a line of bars at most ``width`` long; each bar is the mean of its stretch."""
    means = downsample(values, width)
    top = max([high, *means], default=high)
    bottom = min([low, *means], default=low)
    scale = (len(_BARS) - 1) / (top - bottom) if top > bottom else 0.0
    return "".join(_BARS[round((value - bottom) * scale)] for value in means)


def downsample(values: Sequence[float], count: int) -> list[float]:
    """At most ``count`` means of equal stretches of the values."""
    if len(values) <= count:
        return list(values)
    edges = [index * len(values) // count for index in range(count + 1)]
    return [sum(values[a:b]) / (b - a) for a, b in pairwise(edges)]


def chart(values: Sequence[float], *, width: int = 60, height: int = 10) -> str:
    """A reward curve as lines of text, with its axis: the values' stretch means against a scale from 0 to 1."""
    means = downsample(values, width)
    if not means:
        return "(no steps yet)"
    top = max(1.0, *means)
    rows = []
    for level in range(height, 0, -1):
        edge = top * level / height
        cells = "".join("█" if mean >= edge - top / height / 2 else " " for mean in means)
        rows.append(f"{edge:5.2f} ┤{cells.rstrip()}")
    rows.append(f"{0:5.2f} ┼" + "─" * len(means))
    rows.append(f"       step 1 … {len(values)}")
    return "\n".join(rows)


def flatten(figures: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Nested figures under dotted names; lists (curves) are left out."""
    flat: dict[str, object] = {}
    for key, value in figures.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        elif not isinstance(value, list | tuple):
            flat[prefix + key] = value
    return flat


def mean_tail(values: Sequence[float], count: int = 20) -> float | None:
    """The mean of the last ``count`` values, None if there are none."""
    tail = values[-count:]
    return sum(tail) / len(tail) if tail else None


def size(size_bytes: float) -> str:
    """Bytes for a person: ``3.2 MB``."""
    for unit in ("B", "kB", "MB", "GB"):
        if size_bytes < 1000:
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1000
    return f"{size_bytes:.1f} TB"


def metric(metrics: Mapping[str, float], *names: str) -> str:
    """The first metric there is of ``names``, for a table cell."""
    return next((f"{metrics[name]:.3g}" for name in names if name in metrics), "–")
