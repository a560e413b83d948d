"""``logs``: what the flow runs of a run said."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from infra.commands.options import Json, Last, RunName, Store, print_json

if TYPE_CHECKING:
    from infra.log_lines import Line, Lines
    from storage.store import ObjectStore

_COLORS = {"experiment": "blue", "manager": "cyan", "trainer": "green", "pool": "magenta"}
_LOUD = {"WARNING": "yellow", "ERROR": "red", "CRITICAL": "bold red"}
_EVERY_S = 1.0


def logs(
    run: RunName = None,
    flow: Annotated[
        str | None,
        typer.Option("--flow", help="experiment, manager, trainer, trainer-POLICY, pool, pool-NAME, mirror, operator."),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run is over.")] = False,
    files: Annotated[
        bool, typer.Option("--files", help="The processes' own output, as this machine's local stack kept it.")
    ] = False,
    last: Last = False,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Show what a run's flows logged: from Prefect, or from the local stack's files if its server is not there."""
    from infra.interrupts import leaving
    from infra.places import find_run, open_named

    opened = open_named(store)
    name = find_run(opened, run)
    console = Console()
    source = _source(opened, name, flow, console, files=files)
    lines = source.poll()
    if as_json and not follow:
        print_json([dataclasses.asdict(line) for line in lines])
        return
    with leaving("What was followed goes on." if follow else ""):
        _show(console, lines, as_json=as_json)
        if follow:
            _follow(console, source, opened, name, as_json=as_json)


def _source(opened: ObjectStore, run: str, flow: str | None, console: Console, *, files: bool) -> Lines:
    """Prefect's logs, or the files where that is wanted or no server answers."""
    from astraflow.recipe import load_run_config
    from infra.local_stack import stack_home
    from infra.log_lines import FileLines, PrefectLines
    from infra.places import find_server
    from storage.errors import ServiceError

    load_run_config(opened, run)  # a run that is not there is said so
    in_files = FileLines(opened, run, flow, stack_home() / "logs" / "flow-runs")
    if files:
        return in_files
    try:
        find_server(runner=False).use()
    except ServiceError as error:
        Console(stderr=True).print(Text(f"{error.what}: reading the files instead", "dim"))
        return in_files
    return PrefectLines(opened.url, run, flow)


def _follow(console: Console, source: Lines, opened: ObjectStore, run: str, *, as_json: bool) -> None:
    """Until the run has stopped and nothing more has come for a while; a server that is away is waited for."""
    from astraflow.follow import RunFollower
    from astraflow.recipe import load_run_config
    from storage.errors import ServiceError

    view = RunFollower(opened, load_run_config(opened, run))
    quiet = 0
    while quiet < 5:
        time.sleep(_EVERY_S)
        view.poll()
        try:
            lines = source.poll()
        except ServiceError:
            lines = []
        _show(console, lines, as_json=as_json)
        quiet = quiet + 1 if view.is_over and not lines else 0


def _show(console: Console, lines: list[Line], *, as_json: bool) -> None:
    for line in lines:
        if as_json:
            print(json.dumps(dataclasses.asdict(line), ensure_ascii=False), flush=True)  # noqa: T201
            continue
        role = line.flow.partition("-")[0]
        head = f"{line.time[11:19]} " if line.time else ""
        text = Text.assemble(
            (head, "dim"), (line.flow, _COLORS.get(role, "white")), " ", (line.text, _LOUD.get(line.level, ""))
        )
        console.print(text, soft_wrap=True)
