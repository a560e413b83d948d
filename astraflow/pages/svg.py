"""Line charts as SVG text: axes, units, legend, own background, so that they read the same on any page and theme.

No script, no style sheet, no font of its own: the text may stand in HTML or in a ``data:`` URL.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from astraflow.pages.axes import Axis, linear_axis, log_axis

INK, FAINT, GRID, PAPER, EDGE = "#1f2933", "#5b6773", "#e3e7eb", "#ffffff", "#cbd2d9"
FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
TITLE_PX, UNIT_PX, TICK_PX = 15, 12, 11.5
LEFT, RIGHT, TOP, BOTTOM = 62, 18, 40, 40  # of a panel, around its plot


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart; ``name`` is its legend, empty for none."""

    points: Sequence[tuple[float, float]]
    color: str
    name: str = ""
    width: float = 2.0
    opacity: float = 1.0
    dash: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """One panel. ``low`` and ``high`` are values that its vertical axis must hold; a log axis takes positive values."""

    title: str
    unit: str
    lines: Sequence[Line]
    low: float | None = None
    high: float | None = None
    is_log: bool = False
    label: Callable[[float], str] | None = None  # of the vertical axis's ticks
    note: str = ""  # at the right of the title


@dataclass(frozen=True, slots=True)
class Panel:
    """Where a chart is drawn."""

    x: float
    y: float
    width: float
    height: float


def picture(charts: Sequence[Chart], *, x_label: str, width: int = 860, heights: tuple[int, int] = (280, 230)) -> str:
    """One SVG: the first chart over the whole width, the others two a row below it, one legend above all."""
    gap, head = 12, 46
    panels = [Panel(gap, head, width - 2 * gap, heights[0])]
    half = (width - 3 * gap) / 2
    for index in range(len(charts) - 1):
        row, column = divmod(index, 2)
        panels.append(
            Panel(gap + column * (half + gap), head + heights[0] + gap + row * (heights[1] + gap), half, heights[1])
        )
    height = panels[len(charts) - 1].y + panels[len(charts) - 1].height + gap
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:g}" width="{width}" '
        f'height="{height:g}" role="img" font-family="{escape(FONT)}">',
        f'<rect width="{width}" height="{height:g}" rx="8" fill="{PAPER}" stroke="{EDGE}"/>',
        *_legend(charts, gap + 8, 28),
    ]
    for chart, panel in zip(charts, panels, strict=False):
        parts += _panel(chart, panel, x_label)
    return "".join([*parts, "</svg>"])


def data_url(svg: str) -> str:
    """The picture as a URL that needs no request."""
    return "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()


def _legend(charts: Sequence[Chart], x: float, y: float) -> list[str]:
    """Every named line once, by name."""
    parts: list[str] = []
    named = {line.name: line for chart in charts for line in chart.lines if line.name}
    for name, line in named.items():
        parts.append(
            f'<line x1="{x:g}" x2="{x + 26:g}" y1="{y - 5:g}" y2="{y - 5:g}" stroke="{line.color}" '
            f'stroke-width="3"{_dash(line)}/>'
        )
        parts.append(_text(x + 33, y, name, size=14, color=INK))
        x += 33 + 8.2 * len(name) + 26
    return parts


def _panel(chart: Chart, panel: Panel, x_label: str) -> list[str]:
    plot = Panel(panel.x + LEFT, panel.y + TOP, panel.width - LEFT - RIGHT, panel.height - TOP - BOTTOM)
    title = f'<tspan font-weight="600" font-size="{TITLE_PX}" fill="{INK}">{escape(chart.title)}</tspan>'
    unit = f'<tspan dx="8" font-size="{UNIT_PX}" fill="{FAINT}">{escape(chart.unit)}</tspan>'
    parts = [f'<text x="{panel.x + 8:g}" y="{panel.y + 24:g}">{title}{unit}</text>']
    if chart.note:
        parts.append(_text(panel.x + panel.width - RIGHT, panel.y + 24, chart.note, size=UNIT_PX, anchor="end"))
    points = [point for line in chart.lines for point in line.points]
    if not points:
        middle = (plot.x + plot.width / 2, plot.y + plot.height / 2)
        return [*parts, _frame(plot), _text(*middle, "no steps yet", size=UNIT_PX, anchor="middle")]
    x_axis = linear_axis(0.0, max(x for x, _ in points), count=int(plot.width / 60), whole=True, tight=True)
    y_axis = _vertical(chart, [y for _, y in points])
    place_x = _place(x_axis, plot.x, plot.x + plot.width)
    place_y = _place(y_axis, plot.y + plot.height, plot.y)
    label = chart.label or y_axis.label
    for tick in y_axis.ticks:
        y = place_y(tick)
        parts.append(f'<line x1="{plot.x:g}" x2="{plot.x + plot.width:g}" y1="{y:.1f}" y2="{y:.1f}" stroke="{GRID}"/>')
        parts.append(_text(plot.x - 7, y + 4, label(tick), size=TICK_PX, anchor="end"))
    for tick in x_axis.ticks:
        parts.append(_text(place_x(tick), plot.y + plot.height + 17, x_axis.label(tick), size=TICK_PX, anchor="middle"))
    parts.append(_text(plot.x + plot.width, plot.y + plot.height + 33, x_label, size=TICK_PX, anchor="end"))
    parts.append(_frame(plot))
    return [*parts, *(_line(line, place_x, place_y, is_log=chart.is_log) for line in chart.lines)]


def _vertical(chart: Chart, values: list[float]) -> Axis:
    if chart.is_log:
        return log_axis([value for value in values if value > 0])
    held = [*values, *(value for value in (chart.low, chart.high) if value is not None)]
    return linear_axis(min(held), max(held), count=5)


def _line(line: Line, place_x: Callable[[float], float], place_y: Callable[[float], float], *, is_log: bool) -> str:
    """The line, broken where a value cannot be drawn: a logarithmic axis has no place for a zero."""
    look = f'stroke="{line.color}" stroke-opacity="{line.opacity:g}"'
    parts = []
    for stretch in _stretches(line.points, lambda y: math.isfinite(y) and (y > 0 or not is_log)):
        if len(stretch) == 1:
            x, y = stretch[0]
            parts.append(f'<circle cx="{place_x(x):.1f}" cy="{place_y(y):.1f}" r="2.5" fill="{line.color}" {look}/>')
            continue
        path = " ".join(f"{place_x(x):.1f},{place_y(y):.1f}" for x, y in stretch)
        parts.append(
            f'<polyline fill="none" stroke-width="{line.width:g}" stroke-linejoin="round" {look}{_dash(line)} '
            f'points="{path}"/>'
        )
    return "".join(parts)


def _stretches(
    points: Sequence[tuple[float, float]], is_drawn: Callable[[float], bool]
) -> list[list[tuple[float, float]]]:
    """Runs of neighbouring points that can be drawn."""
    groups = groupby(points, key=lambda point: is_drawn(point[1]))
    return [list(group) for drawn, group in groups if drawn]


def _place(axis: Axis, start: float, end: float) -> Callable[[float], float]:
    """Where a value of the axis stands between two pixels."""
    scale = math.log10 if axis.is_log else float
    low, high = scale(axis.low), scale(axis.high)

    def place(value: float) -> float:
        return start + (end - start) * (scale(value) - low) / (high - low)

    return place


def _frame(plot: Panel) -> str:
    right, bottom = plot.x + plot.width, plot.y + plot.height
    return f'<path d="M{plot.x:g} {plot.y:g}V{bottom:g}H{right:g}" fill="none" stroke="{FAINT}"/>'


def _text(x: float, y: float, text: str, *, size: float, color: str = FAINT, anchor: str = "start") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill="{color}" text-anchor="{anchor}"'
    return f"<text {place}>{escape(text)}</text>"


def _dash(line: Line) -> str:
    return f' stroke-dasharray="{line.dash}"' if line.dash else ""
