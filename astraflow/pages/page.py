"""The live page of a run as Markdown: what is waited for, figures, curves, regions, pools, load, evaluations, events.

Prefect's page shows tables and ``data:`` images and drops scripts and inline SVG, so the curves are one image.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from astraflow.follow import RunFollower
from astraflow.pages.charts import run_picture
from astraflow.pages.evaluations import evaluations
from astraflow.pages.loads import COLUMNS, load_table
from astraflow.pages.regions import POOL_COLUMNS, REGION_COLUMNS, pools, regions
from astraflow.pages.rows import FigureRows, figure_rows
from astraflow.pages.svg import data_url
from astraflow.query.loads import newest_reports
from astraflow.query.run import Run

EVENTS = 30  # newest that are shown
REPORTS = 8  # of load, newest; all are in a table of their own
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
        "## Regions",
        "",
        *table(REGION_COLUMNS, regions(run, view)),
        "",
        "## Pools",
        "",
        *table(POOL_COLUMNS, pools(run, view)),
    ]
    if reports := newest_reports(run, REPORTS):
        lines += ["", "## Load reports, newest first", "", *table(COLUMNS, load_table(reports))]
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
