"""What commands share: the options that name a store and a run, and how they speak."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from storage.store import ObjectStore

EPILOG = (
    "Exit codes: 0 done; 1 other error; 2 wrong input (recipe, option, name); 3 object store; "
    "4 Prefect server or runner; 5 fenced; 6 wrong data; 7 engine; 8 deadline passed; 130 interrupted. "
    "Environment: ASTRAFLOW_STORE (default .astraflow/store), ASTRAFLOW_HOME (default .astraflow), "
    "ASTRAFLOW_DEBUG=1 (tracebacks), PREFECT_API_URL, AWS_*, and PREFECT_SERVER_DATABASE_CONNECTION_URL for `up` "
    "(PostgreSQL, from about ten flow runs at once)."
)

Store = Annotated[
    str | None,
    typer.Option("--store", help="Folder, file:// or s3://bucket/prefix. Default: ASTRAFLOW_STORE, .astraflow/store."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Last = Annotated[bool, typer.Option("--last", help="The newest run of the store.")]
RunName = Annotated[str | None, typer.Argument(metavar="[RUN]", help="The run's name; left out: the newest run.")]
RunOption = Annotated[str | None, typer.Option("--run", help="The run's name; left out: the newest run.")]
ToFolder = Annotated[Path, typer.Option("--to", metavar="FOLDER", help="A new folder.")]


def run_url(run: str | None, store: str | None) -> str:
    """The URL of the run that is meant."""
    from infra.places import find_run, open_named

    opened = open_named(store)
    return f"{opened.url}/{find_run(opened, run)}"


def named_run(run: str | None, store: str | None, *, last: bool) -> tuple[ObjectStore, str]:
    """The store and the run for a command that changes something: it never takes the newest run unasked."""
    from infra.places import find_run, open_named
    from storage.errors import ConfigError

    if run is None and not last:
        raise ConfigError("no run is named", where="command line", remedy="Name it, or say --last", kind="usage")
    opened = open_named(store)
    return opened, find_run(opened, run)


def print_json(value: object) -> None:
    """Data for a program, on stdout."""
    print(json.dumps(value, indent=2, default=str, ensure_ascii=False))  # noqa: T201


def say(text: str) -> None:
    """One line for a person, on stdout."""
    print(text)  # noqa: T201


def note(text: str) -> None:
    """What takes long now, for a person who waits at a terminal."""
    if sys.stderr.isatty():
        print(text, file=sys.stderr)  # noqa: T201
