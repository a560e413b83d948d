"""``status`` and ``report``: what a run comes to, in the terminal and as a file."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from infra.commands.options import Json, Last, RunName, Store, print_json, run_url, say

if TYPE_CHECKING:
    from astraflow.follow import RunFollower
    from astraflow.query import Run

PAGE_S, PLAIN_S = 2.0, 15.0  # between two looks, on a terminal and elsewhere


def status(
    run: RunName = None,
    last: Last = False,
    watch: Annotated[bool, typer.Option("--watch", help="Keep showing it until the run is over.")] = False,
    every_s: Annotated[
        float | None, typer.Option("--every", min=0.1, help="Seconds between two looks (2; 15 where no terminal is).")
    ] = None,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Show the figures of a run: rewards, lags, waiting, what weights cost to ship, errors, evaluations."""
    from astraflow import open_run
    from astraflow.pages import evaluations as pages
    from infra.display import rows, summary

    opened = open_run(run_url(run, store))
    if watch:
        _watch(opened, every_s, as_json=as_json)
        return
    figures: dict[str, Any] = json.loads(opened.figures().to_json())
    if as_json:
        print_json(figures | {"evaluations": pages.rounds(opened)})
        return
    console = Console()
    summary(console, figures)
    if shown := pages.evaluations(opened):
        console.print()
        rows(console, list(shown[0]), shown)
    if figures["state"] != "stopped":
        from astraflow.pages.regions import REGION_COLUMNS, regions
        from infra.display import participants

        view = _view(opened)
        rows(console, REGION_COLUMNS, regions(opened, view))
        console.print(participants(view))
        for line in view.waiting():
            console.print(Text(f"waits  {line}"))


def report(
    run: RunName = None,
    last: Last = False,
    to: Annotated[Path | None, typer.Option("--to", metavar="FILE", help="Where to; default: RUN.html here.")] = None,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Write one HTML file with a run's figures, curves, pools and config; it opens without a network."""
    from astraflow import open_run
    from astraflow.pages import html
    from storage.errors import ConfigError

    opened = open_run(run_url(run, store))
    file = to or Path(f"{opened.keys.run}.html")
    text = html.report(opened)
    try:
        file.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"the report cannot be written: {error}", where=str(file), remedy="Name another file with --to", kind="file"
        ) from error
    if as_json:
        print_json({"run": opened.keys.run, "file": str(file.absolute()), "size_bytes": len(text.encode())})
    else:
        say(f"Written: {file}")


def _watch(run: Run, every_s: float | None, *, as_json: bool) -> None:
    """Show the run's page until it is over: drawn anew on a terminal, else one after another; JSON is a line each."""
    from rich.live import Live

    from infra.display import watched

    console, view = Console(), _view(run)
    wait_s = every_s or (PAGE_S if console.is_terminal else PLAIN_S)
    live = Live(console=console, auto_refresh=False) if console.is_terminal and not as_json else None
    with live or contextlib.nullcontext():
        while True:
            figures = run.refresh().figures()
            view.poll()
            if as_json:
                print(figures.to_json(), flush=True)  # noqa: T201
            elif live is not None:
                live.update(watched(run, figures, view), refresh=True)
            else:
                console.print(watched(run, figures, view))
            if figures.state == "stopped":
                return
            time.sleep(wait_s)


def _view(run: Run) -> RunFollower:
    from astraflow.follow import RunFollower

    view = RunFollower(run.store, run.config)
    view.poll()
    return view
