"""``astraflow deploy``: a Prefect server is brought to what a file says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infra.commands.options import Json, print_json, say

if TYPE_CHECKING:
    from infra.applying import Change
    from infra.installation import Installation


def deploy(
    file: Annotated[Path, typer.Option("--file", metavar="FILE", help="What is to be there.")] = Path("deploy.toml"),
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would change; change nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Make work pools, queues, deployments with schedules, and automations as a file says; again, nothing changes."""
    import dataclasses

    from infra.deploy_file import read_deploy_file
    from infra.places import find_server

    wanted = read_deploy_file(file)
    find_server(runner=False).use()  # before prefect is imported
    from infra.installation import installation

    made = installation(wanted, file.absolute().parent)
    changes = _apply(made, is_dry=dry_run)
    if as_json:
        print_json(
            {
                "dry_run": dry_run,
                "changed": sum(change.action != "unchanged" for change in changes),
                "changes": [dataclasses.asdict(change) for change in changes],
                "workers": made.workers,
            }
        )
        return
    for line in lines(changes, is_dry=dry_run):
        say(line)
    for worker in made.workers:
        say(f"  worker: {worker}")


def lines(changes: list[Change], *, is_dry: bool) -> list[str]:
    """What a person reads: each change, and how much stayed as it was."""
    would = "would be " if is_dry else ""
    shown = [
        f"{change.kind} {change.name}: {would}{change.action}"
        + (f" ({', '.join(change.fields)})" if change.fields else "")
        for change in changes
        if change.action != "unchanged"
    ]
    counts = Counter(change.action for change in changes)
    if not shown:
        return [f"unchanged: all {len(changes)} things are as the file says"]
    return [*shown, f"{len(shown)} {would}changed, {counts['unchanged']} unchanged"]


def _apply(made: Installation, *, is_dry: bool) -> list[Change]:
    import asyncio

    from httpx import HTTPError
    from prefect.client.orchestration import get_client
    from prefect.exceptions import PrefectException

    from infra.applying import Applying
    from storage.errors import ServiceError
    from tasks.prefect_api import reaching_prefect

    async def work() -> list[Change]:
        async with get_client() as client:
            return await Applying(client, made, is_dry=is_dry).apply()

    try:
        with reaching_prefect("deploy"):
            return asyncio.run(work())
    except (PrefectException, HTTPError) as error:
        raise ServiceError(
            f"the Prefect server refused: {error}", where="deploy", remedy="What came before it is done", kind="refused"
        ) from error
