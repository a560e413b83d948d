"""Keeping a region's hours: a run has the pools of its config there while a window is open, and none while it is not.

What is said is a wish that the run's manager decides on and records, as a person's would be, so the experiment starts
or drains pools, and a restart of either comes to the same. A number above 0 that a person asked for is left alone.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from astraflow import wishes
from astraflow.query.listing import runs
from astraflow.recipe import load_run_config
from astraflow.scale_view import ScaleView
from storage.errors import ConfigError, DataError, DeadlineError
from storage.store import ObjectStore

log = logging.getLogger("astraflow.regions")

CLOSED = "the region's hours are over"
OPEN = "the region's hours have begun"


@dataclass(frozen=True, slots=True)
class Kept:
    """What was done for one run: ``opened``, ``closed``, ``as it was``, or why nothing could be."""

    run: str
    action: str


def keep_hours(store: ObjectStore, region: str, *, is_open: bool, timeout_s: float = 60.0) -> list[Kept]:
    """Bring every running run that has pools in ``region`` to what the hour asks for."""
    kept = []
    for entry in runs(store):
        if entry.state != "running":
            continue
        try:
            action = _keep(store, entry.run, region, is_open=is_open, timeout_s=timeout_s)
        except (ConfigError, DataError, DeadlineError) as error:  # one run's trouble is not the others'
            log.warning("%s: %s", entry.run, error)
            action = str(error)
        if action:
            kept.append(Kept(entry.run, action))
    return kept


def _keep(store: ObjectStore, run: str, region: str, *, is_open: bool, timeout_s: float) -> str:
    config = load_run_config(store, run)
    sections = config.pools_of_regions.get(region)
    if sections is None:
        return ""
    view = ScaleView(store, config)
    view.poll()
    is_held, pools = region in view.book.held, view.counts()[region]
    if is_held and pools == 0 and is_open:
        wishes.scale(store, run, region, len(sections), reason=OPEN, timeout_s=timeout_s)
        wishes.scale(store, run, region, None, reason=OPEN, timeout_s=timeout_s)  # load reports may move it again
        return "opened"
    if not is_held and not is_open:
        wishes.scale(store, run, region, 0, reason=CLOSED, timeout_s=timeout_s)
        return "closed"
    return "as it was"
