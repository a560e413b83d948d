"""The maintain flow: tidies up a store's runs, by a schedule or from Prefect's launch form."""

from __future__ import annotations

import dataclasses
from typing import Any

from prefect import flow, get_run_logger
from pydantic import Field

from flows.lifecycle import begin_life
from storage import open_store
from tasks.prefect_api import tag_flow_run


@flow(
    name="maintain",
    description="Copies small objects of closed versions together; of runs that have stopped, deletes what is over.",
    retries=0,
)
def maintain(
    store: str = Field(default=".astraflow/store", description="The store that holds the runs."),
    run: str = Field(default="", description="Only this run; empty: all of the store."),
    dry_run: bool = Field(default=False, description="Say what would be done; change nothing."),
) -> list[dict[str, Any]]:
    """Maintain one run or all of a store; returns what was done. Broken off, the next one finishes it."""
    from astraflow.maintenance import maintain as core

    begin_life("maintenance")
    opened = open_store(store)
    if run:
        tag_flow_run(f"run:{run}")
        reports = [core.maintain(opened, run, dry_run=dry_run)]
    else:
        reports = core.maintain_all(opened, dry_run=dry_run)
    log = get_run_logger()
    for report in reports:
        gone = ", ".join(f"{kind} {entry['objects']}" for kind, entry in report.gone.items() if entry["objects"])
        log.info("%s: %d versions copied; deleted: %s", report.run, len(report.copied), gone or "nothing")
        for what in report.damaged:
            log.warning("%s: not whole, left as it is: %s", report.run, what)
    return [dataclasses.asdict(report) for report in reports]
