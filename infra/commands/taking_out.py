"""``export`` and ``show``: a policy's weights as a folder, a trajectory for the eye."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infra.commands.options import Json, Last, RunOption, Store, ToFolder, print_json, run_url, say

if TYPE_CHECKING:
    from storage.keys import RunKeys
    from storage.store import ObjectStore


def export(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's name.")],
    policy: Annotated[str, typer.Argument(metavar="POLICY", help="The policy's name.")],
    to: ToFolder,
    version: Annotated[int | None, typer.Option("--version", min=0, help="Left out: the newest.")] = None,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Write a version of a policy as a Hugging Face folder that transformers (or any engine) loads."""
    from astraflow.recipe import load_run_config
    from infra.places import open_named
    from storage.errors import ConfigError
    from storage.keys import RunKeys

    opened = open_named(store)
    policies = load_run_config(opened, run).policies
    if policy not in policies:
        raise ConfigError(
            f"the run {run} has no policy {policy!r}",
            where="POLICY",
            remedy=f"There are: {', '.join(sorted(policies))}",
            kind="policy",
        )
    write_out(opened, RunKeys(run), policy, to, version, as_json=as_json)


def write_out(store: ObjectStore, keys: RunKeys, policy: str, to: Path, version: int | None, *, as_json: bool) -> None:
    """Export a version and say what was written; ``astraflow weights export`` does the same by a version's number."""
    from infra.interrupts import leaving

    with leaving(f"{to} was not written."):
        from astraflow.weights.export import export_policy

        done = export_policy(store, keys, policy, to, version=version)
    if as_json:
        print_json(dataclasses.asdict(done))
    else:
        say(f"{done.folder}: version {done.version} of {done.policy} (step {done.step}): {', '.join(done.files)}")


def show(
    trajectory: Annotated[
        str, typer.Argument(metavar="TRAJECTORY", help="A trajectory_id, as in a query: 12-1-0-solver-0.")
    ],
    run: RunOption = None,
    last: Last = False,
    tokens: Annotated[bool, typer.Option("--tokens", help="A line a token.")] = False,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Show one trajectory: its turns by role, tokens, loss mask, versions, log-probs and rewards."""
    from rich.console import Console

    from astraflow import open_run
    from astraflow.query.shown import find_trajectory
    from infra.trajectory_view import page

    shown = find_trajectory(open_run(run_url(run, store)), trajectory)
    if as_json:
        print_json(dataclasses.asdict(shown))
    else:
        Console().print(page(shown, tokens=tokens))
