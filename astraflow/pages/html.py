"""The report of a run: one HTML file that holds everything it shows and asks the network for nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from html import escape

from astraflow.follow import RunFollower
from astraflow.pages.charts import run_picture
from astraflow.pages.evaluations import evaluations
from astraflow.pages.loads import COLUMNS, load_table
from astraflow.pages.page import described
from astraflow.pages.regions import POOL_COLUMNS, REGION_COLUMNS, pools, regions
from astraflow.pages.rows import figure_rows
from astraflow.query.loads import newest_reports
from astraflow.query.run import Run
from astraflow.recipe import dump_toml

REPORTS = 100  # newest
STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif; max-width: 1100px; margin: 2rem auto;
  padding: 0 1rem; background: Canvas; color: CanvasText; }
h1 { font-size: 1.6rem; margin: 0 0 .3rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; }
p.about { margin: 0 0 1.5rem; opacity: .75; } svg { width: 100%; height: auto; display: block; margin: 1.5rem 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; } th, td { text-align: left; padding: .3rem .9rem .3rem 0; vertical-align: top;
  border-bottom: 1px solid color-mix(in srgb, CanvasText 15%, transparent); font-variant-numeric: tabular-nums; }
th { font-weight: 600; } tbody th { font-weight: 400; opacity: .75; }
pre { overflow-x: auto; padding: 1rem; border-radius: 6px; background: color-mix(in srgb, CanvasText 6%, transparent); }
"""


def report(run: Run) -> str:
    """The run as one HTML document: figures, curves, regions, pools, load, evaluations, config."""
    figures, config = run.figures(), run.config
    view = RunFollower(run.store, config)
    view.poll()
    rows = figure_rows(figures, config)
    cells = [dict(zip(("", *rows.columns), (label, *values), strict=True)) for label, values in rows.rows]
    about = (
        f"Workflow {config.workflow.name}, {config.problem_count:,} problems, {config.dataflow.group_size} episodes a "
        f"group, staleness ≤ {config.dataflow.max_staleness}. Store {config.store}. "
        f"Written {time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime())} UTC."
    )
    picture = run_picture(run.curves(), max_staleness=config.dataflow.max_staleness)
    title = escape(f"{config.name}: {described(figures.state, figures.reason)}")
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{title}</title><style>{STYLE}</style></head><body>",
            f'<h1>{title}</h1><p class="about">{escape(about)}</p>',
            _table(["", *rows.columns], cells, id="figures"),
            picture,
            "<h2>Regions</h2>",
            _table(REGION_COLUMNS, regions(run, view), id="regions"),
            "<h2>Pools</h2>",
            _table(POOL_COLUMNS, pools(run, view), id="pools"),
            *_loads(run),
            *_evaluations(run),
            f"<h2>Config</h2><pre>{escape(dump_toml(config))}</pre>",
            "</body></html>",
            "",
        ]
    )


def _loads(run: Run) -> list[str]:
    reports = load_table(newest_reports(run, REPORTS))
    return ["<h2>Load reports, newest first</h2>", _table(COLUMNS, reports, id="loads")] if reports else []


def _evaluations(run: Run) -> list[str]:
    shown = evaluations(run)
    return ["<h2>Evaluations</h2>", _table(list(shown[0]), shown, id="evaluations")] if shown else []


def _table(columns: Sequence[str], rows: Sequence[Mapping[str, str]], *, id: str) -> str:
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in columns)
    body = "".join(
        "<tr>"
        + f'<th scope="row">{escape(row[columns[0]])}</th>'
        + "".join(f"<td>{escape(row[column])}</td>" for column in columns[1:])
        + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table id="{id}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
