"""``astraflow maintain``: tidying up one run, or all of a store."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from infra.commands.options import Json, Last, Store, named_run, print_json, say

if TYPE_CHECKING:
    from astraflow.maintenance.maintain import Report


def maintain(
    run: Annotated[str | None, typer.Argument(metavar="[RUN]", help="The run's name.")] = None,
    last: Last = False,
    every: Annotated[bool, typer.Option("--all", help="Every run of the store.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done; change nothing.")] = False,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Copy many small objects of closed versions into few; of a run that has stopped, delete what nobody can need."""
    from astraflow.maintenance.maintain import maintain as tidy
    from astraflow.maintenance.maintain import maintain_all
    from infra.places import open_named
    from storage.errors import ConfigError

    if every and (run or last):
        raise ConfigError("--all names every run", where="command line", remedy="Leave the run out", kind="usage")
    if every:
        reports = maintain_all(open_named(store), dry_run=dry_run)
    else:
        opened, name = named_run(run, store, last=last)
        reports = [tidy(opened, name, dry_run=dry_run)]
    if as_json:
        found = [dataclasses.asdict(report) for report in reports]
        print_json(found if every else found[0])
        return
    for report in reports:
        for line in lines(report):
            say(line)


def lines(report: Report) -> list[str]:
    """What a person reads of a maintenance."""
    would = "would be " if report.is_dry else ""
    shown = [_copied(entry, would) for entry in report.copied]
    shown += [
        f"{kind}: {entry['objects']} objects of {entry['bytes']:,} bytes {would}deleted"
        for kind, entry in report.gone.items()
        if entry["objects"]
    ]
    shown += [f"not whole, left as it is: {what}" for what in report.damaged]
    state = "has stopped" if report.is_over else "goes on: only closed versions are copied, nothing is deleted"
    return [f"{report.run} {state}", *(f"  {line}" for line in shown or ["nothing to do"])]


def _copied(entry: dict[str, object], would: str) -> str:
    what = f"policy {entry['policy']}, version {entry['version']}: {entry['objects']} objects"
    after = f" of {entry['bytes_after']:,}" if "bytes_after" in entry else ""
    return f"{what} of {entry['bytes_before']:,} bytes {would}copied into one{after}"
