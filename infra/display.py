"""A run in the terminal: a page that is redrawn, plain lines where there is no terminal, tables at the end.

What a run holds (names, reasons, texts of a model) is shown as it is: it is never read as Rich's markup.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from astraflow.follow import PolicyProgress, RunFollower
from astraflow.pages.evaluations import evaluations
from astraflow.pages.page import ROUNDS, described
from astraflow.pages.regions import REGION_COLUMNS, regions
from astraflow.pages.rows import clock, figure_rows
from astraflow.query import Run
from astraflow.query.figures import RunFigures
from astraflow.records import Status
from astraflow.report import flatten, mean_tail, metric, size, sparkline


def page(view: RunFollower, state: str, seconds: float) -> RenderableType:
    """The live page: policies with their curves, participants, and what is waited for."""
    policies = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("policy", "step", "reward", "curve", "lag", "wait", "shipped", "of full"):
        policies.add_column(column, no_wrap=True)
    for progress in view.policies.values():
        policies.add_row(*_texts(_policy_cells(progress)))
    parts: list[RenderableType] = [
        Text.assemble((view.config.name, "bold cyan"), f"  {state}  {clock(seconds)}"),
        policies,
        participants(view),
    ]
    parts += [Text(f"waits  {line}", style="yellow") for line in view.waiting()[:4]]
    return Group(*parts)


def watched(run: Run, figures: RunFigures, view: RunFollower) -> RenderableType:
    """The same figures and curves as the run's live page, for a terminal."""
    shown = figure_rows(figures, run.config)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("figure", style="dim", no_wrap=True)
    for column in shown.columns:
        table.add_column(Text(column))
    for label, cells in shown.rows:
        table.add_row(*_texts((label, *cells)))
    curves = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("curve", *figures.policies):
        curves.add_column(column, no_wrap=True)
    width = max(12, 60 // max(1, len(figures.policies)))
    for label, name in (("reward", "reward"), ("staleness", "lag_mean"), ("waiting", "wait_ratio")):
        values = [[value for _, value in getattr(own, name)] for own in run.curves().values()]
        high = float(run.config.dataflow.max_staleness) if name == "lag_mean" else 1.0
        curves.add_row(label, *(sparkline(points, width, high=high) or "–" for points in values))
    state = described(figures.state, figures.reason)
    people = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("participant", "state", "tokens/s", "waits for"):
        people.add_column(column, no_wrap=column == "participant")
    for role in ("manager", "trainer", "pool"):
        for status in view.of_role(role):
            rate = tokens_per_s(status) if status.state != "left" else ""
            people.add_row(*_texts((status.participant, status.state, rate, status.waiting or "–")))
    head = Text.assemble((figures.run, "bold cyan"), f"  {state}  {time.strftime('%H:%M:%S')}")
    rounds = evaluations(run, newest=ROUNDS)
    shown_rounds: list[RenderableType] = [Text(), plain(list(rounds[0]), rounds)] if rounds else []
    return Group(head, table, curves, plain(REGION_COLUMNS, regions(run, view)), people, *shown_rounds)


def participants(view: RunFollower) -> Table:
    """Manager, trainers and pools with their own words."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("participant", "state", "tokens/s", "figures"):
        table.add_column(column, no_wrap=column != "figures", overflow="ellipsis")
    for role in ("manager", "trainer", "pool"):
        for status in view.of_role(role):
            table.add_row(*_texts((status.participant, status.state, tokens_per_s(status), _figures(status))))
    return table


def line(view: RunFollower, seconds: float) -> str:
    """One plain line about where the run is."""
    words = [clock(seconds)]
    for progress in view.policies.values():
        reward = mean_tail(progress.curve)
        words.append(
            f"{progress.policy} step {progress.step}/{progress.steps_total}"
            f" reward {'–' if reward is None else f'{reward:.3f}'}"
            f" lag {metric(progress.metrics, 'lag_mean')}"
            f" shipped {size(progress.delta_bytes)} of {size(progress.full_bytes)}"
        )
    pools = [status for status in view.of_role("pool") if status.state != "left"]
    words.append(f"pools {len(pools)}")
    if not view.steps:
        words += view.waiting()[:2]
    return "  ".join(words)


def summary(console: Console, figures: Mapping[str, Any]) -> None:
    """The final figures: the run's, then a column a policy, with the reward curves."""
    policies: Mapping[str, Mapping[str, Any]] = figures.get("policies", {})
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("figure")
    table.add_column(str(figures.get("run", "run")), justify="right")
    for policy in policies:
        table.add_column(policy, justify="right")
    own = flatten({key: value for key, value in figures.items() if key not in ("policies", "run")})
    each = {policy: flatten(values) for policy, values in policies.items()}
    names = [*own, *(name for values in each.values() for name in values if name not in own)]
    for name in dict.fromkeys(names):
        cells = (_cell(name, values.get(name)) for values in (own, *each.values()))
        table.add_row(*_texts((name, *cells)))
    console.print(table)
    for policy, values in policies.items():
        if values.get("rewards"):
            console.print(Text(f"reward of {policy}  {sparkline(values['rewards'], 60)}"))


def rows(console: Console, columns: Sequence[str], data: Sequence[Mapping[str, Any]]) -> None:
    """A plain table of query results; not cut where the output is no terminal."""
    console.print(plain(columns, data))


def plain(columns: Sequence[str], data: Sequence[Mapping[str, Any]]) -> Table:
    """Rows as they are, a column each."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(Text(column), overflow="fold")
    for row in data:
        table.add_row(*_texts(_cell("", row[column]) for column in columns))
    return table


def tokens_per_s(status: Status) -> str:
    """A pool's rate, if it says one."""
    return metric(status.figures, "tokens_per_s") if status.role == "pool" else ""


def _policy_cells(progress: PolicyProgress) -> list[str]:
    reward = mean_tail(progress.curve)
    ratio = progress.wait_ratio
    return [
        progress.policy,
        f"{progress.step}/{progress.steps_total}",
        "–" if reward is None else f"{reward:.3f}",
        sparkline(progress.curve, 30) or "–",
        metric(progress.metrics, "lag_mean"),
        "–" if ratio is None else f"{ratio:.0%}",
        size(progress.delta_bytes),
        size(progress.full_bytes),
    ]


def _figures(status: Status) -> str:
    shown = {key: value for key, value in sorted(status.figures.items()) if key != "tokens_per_s"}
    return "  ".join(f"{key} {value:.4g}" for key, value in shown.items())


def _texts(cells: Iterable[str]) -> list[Text]:
    """Cells as they are: text in a table would be markup."""
    return [Text(cell) for cell in cells]


def _cell(name: str, value: object) -> str:
    if value is None:
        return "–"
    if name.endswith("_bytes") and isinstance(value, int):
        return size(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)
