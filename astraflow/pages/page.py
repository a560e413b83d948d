"""The live page of a run as Markdown: figures, curves, pools, evaluations, what is waited for, events.

Prefect's page shows tables and ``data:`` images and drops scripts and inline SVG, so the curves are one image.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from astraflow.follow import RunFollower
from astraflow.pages.charts import run_picture
from astraflow.pages.evaluations import evaluations
from astraflow.pages.rows import FigureRows, figure_rows
from astraflow.pages.svg import data_url
from astraflow.query.run import Run

EVENTS = 30  # newest that are shown
ROUNDS = 20  # of evaluations, newest
WAITS = 6


def page(run: Run, view: RunFollower, *, state: str = "", events: Sequence[str] = ()) -> str:
    """The page as the run is now; ``state`` says more than the store knows, as of an experiment that failed."""
    figures = run.figures()
    config = run.config
    lines = [
        f"# {config.name}: {state or described(figures.state, figures.reason)}",
        "",
        f"Workflow `{config.workflow.name}`, {config.problem_count:,} problems, "
        f"{config.dataflow.group_size} episodes a group, staleness ≤ {config.dataflow.max_staleness}. "
        f"Store `{config.store}`. As of {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime())} UTC; "
        "reload for newer figures.",
        "",
        *_waiting(view),
        *figures_table(figure_rows(figures, config)),
        "",
        f"![Curves of the run]({data_url(run_picture(run.curves(), max_staleness=config.dataflow.max_staleness))})",
        "",
        "## Pools",
        "",
        *table(list(POOL_COLUMNS), pools(run, view)),
    ]
    if shown := evaluations(run, newest=ROUNDS):
        lines += ["", "## Evaluations", "", *table(list(shown[0]), shown)]
    if events:
        lines += ["", "## Events", "", *(f"- {' '.join(event.split())}" for event in events[-EVENTS:])]
    return "\n".join(lines) + "\n"


def described(state: str, reason: str) -> str:
    """``stopped (all policies have ended)``."""
    return f"{state} ({reason})" if reason else state


def figures_table(figures: FigureRows) -> list[str]:
    """The figures as a Markdown table."""
    rows = [dict(zip(("figure", *figures.columns), (label, *cells), strict=True)) for label, cells in figures.rows]
    return table(["figure", *figures.columns], rows)


POOL_COLUMNS = ("pool", "region", "state", "tokens/s", "weights", "leased", "admitted", "failed", "expired", "capacity")


def pools(run: Run, view: RunFollower) -> list[dict[str, str]]:
    """One row a life of a pool, those that live first: counts are groups of the store, the rate is its own word."""
    rows = []
    for row in run.table("pools").to_pylist():
        status = view.statuses.get(row["participant"])
        rate = status.figures.get("tokens_per_s") if status and row["state"] == "live" else None
        numbers = {name: f"{row[name]:,}" for name in ("capacity", "leased", "admitted", "failed", "expired")}
        rows.append(
            {
                "pool": row["participant"],
                "region": row["region"],
                "state": row["state"],
                "tokens/s": "–" if rate is None else f"{rate:,.0f}",
                "weights": ", ".join(f"{policy} v{version}" for policy, version in row["applied"]) or "–",
            }
            | numbers
        )
    return sorted(rows, key=lambda row: row["state"] != "live")


def table(columns: Sequence[str], rows: Sequence[Mapping[str, str]]) -> list[str]:
    """A Markdown table; a bar or a line's end in a cell would end it."""
    return [
        "| " + " | ".join(columns) + " |",
        "|" + "---|" * len(columns),
        *("| " + " | ".join(_cell(row[column]) for column in columns) + " |" for row in rows),
    ]


def _waiting(view: RunFollower) -> list[str]:
    """What is waited for, a quoted paragraph each."""
    return [line for text in view.waiting()[:WAITS] for line in (f"> waits: {text}", "")]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ") or " "
