"""What commands share: the options that name a store and a run, and how they speak."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

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


def run_url(run: str | None, store: str | None) -> str:
    """The URL of the run that is meant."""
    from infra.places import find_run, open_named

    opened = open_named(store)
    return f"{opened.url}/{find_run(opened, run)}"


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
