"""Which pictures a run has: reward, staleness, waiting, answer length and payload, a colour a policy.

Curves are downsampled: a picture has as many points as can be told apart, however long the run is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise

from astraflow.pages.svg import Chart, Line, picture
from astraflow.query.curves import Curve, PolicyCurves
from astraflow.report import size

COLORS = ("#0072b2", "#d55e00", "#009e73", "#b5478c", "#8c6d00", "#5b4fc4")  # told apart by the colour-blind too
DASHES = ("", "7 4", "2 3")  # where there are more policies than colours
POINTS = 200  # of a line
SMOOTH = 20  # steps of the moving mean
X_LABEL = "optimizer step"


def run_picture(curves: Mapping[str, PolicyCurves], *, max_staleness: int) -> str:
    """The five charts of a run as one SVG."""
    return picture(run_charts(curves, max_staleness=max_staleness), x_label=X_LABEL)


def run_charts(curves: Mapping[str, PolicyCurves], *, max_staleness: int) -> list[Chart]:
    """Reward first: it says whether the run learns."""
    looks = {policy: _look(index) for index, policy in enumerate(curves)}

    def lines(curve: Callable[[PolicyCurves], Curve]) -> list[Line]:
        """Each batch thin, the moving mean thick over it."""
        thin = [
            Line(downsample(curve(own)), looks[policy][0], width=1.1, opacity=0.35) for policy, own in curves.items()
        ]
        thick = [
            Line(downsample(smooth(curve(own))), looks[policy][0], policy, dash=looks[policy][1])
            for policy, own in curves.items()
        ]
        return [*thin, *thick]

    return [
        Chart(
            "Reward",
            f"thin: mean of each batch; thick: of the last {SMOOTH}",
            lines(lambda own: own.reward),
            low=0.0,
            high=1.0,
        ),
        Chart(
            "Staleness",
            "trainer steps, mean of a batch",
            lines(lambda own: own.lag_mean),
            low=0.0,
            high=float(max_staleness) or 1.0,
            note=f"allowed: {max_staleness}",
        ),
        Chart(
            "Waiting for data",
            "share of the trainer's time",
            lines(lambda own: own.wait_ratio),
            low=0.0,
            high=1.0,
            label=lambda share: f"{share:.0%}",
        ),
        Chart("Answer length", "tokens, mean of a batch", lines(lambda own: own.response_tokens), low=0.0),
        _payload(curves, looks),
    ]


def downsample(curve: Curve, count: int = POINTS) -> list[tuple[float, float]]:
    """At most ``count`` points: the means of equal stretches of the curve, at their middle."""
    if len(curve) <= count:
        return [(float(step), value) for step, value in curve]
    edges = [index * len(curve) // count for index in range(count + 1)]
    points = []
    for start, end in pairwise(edges):
        stretch = curve[start:end]
        points.append((sum(x for x, _ in stretch) / len(stretch), sum(y for _, y in stretch) / len(stretch)))
    return points


def smooth(curve: Curve, window: int = SMOOTH) -> Curve:
    """The mean of each point and those before it, at most ``window``."""
    total, means = 0.0, []
    for index, (step, value) in enumerate(curve):
        total += value
        if index >= window:
            total -= curve[index - window][1]
        means.append((step, total / min(index + 1, window)))
    return means


def _payload(curves: Mapping[str, PolicyCurves], looks: Mapping[str, tuple[str, str]]) -> Chart:
    """Bytes of each step's version; where full copies would be, thin and grey."""
    shipped = [
        Line(downsample(own.delta_bytes), looks[policy][0], policy, dash=looks[policy][1])
        for policy, own in curves.items()
    ]
    full = [
        Line(downsample(own.full_bytes), "#7b8794", "a full copy", width=1.5, dash="2 4")
        for own in curves.values()
        if own.full_bytes
    ]
    return Chart(
        "Weights shipped", "bytes a version, log; gap: no change", [*full, *shipped], is_log=True, label=_short_size
    )


def _short_size(size_bytes: float) -> str:
    return size(size_bytes).replace(".0 ", " ")


def _look(index: int) -> tuple[str, str]:
    return COLORS[index % len(COLORS)], DASHES[index // len(COLORS) % len(DASHES)]
