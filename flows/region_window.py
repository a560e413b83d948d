"""The region_window flow: a region's pools play in its hours. Schedules run it when these begin and end, and between.

It looks at the clock rather than at the schedule that ran it, so a run that began outside of the hours, or an hour
that passed while no server was there, is brought to what it should be by the next look.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from prefect import flow, get_run_logger
from pydantic import Field

from flows.lifecycle import begin_life
from storage import open_store
from tasks.prefect_api import tag_flow_run


@flow(
    name="region_window",
    description="Starts a region's pools when its hours begin, and drains them when these end.",
    flow_run_name="{region}/hours",
    retries=0,
)
def region_window(
    region: Annotated[str, Field(description="The region.")],
    windows: Annotated[list[str], Field(description="When its pools play: '18:00-08:00', 'sat,sun 00:00-24:00'.")],
    timezone: str = Field(default="UTC", description="The clock of the windows, such as 'Europe/Berlin'."),
    store: str = Field(default=".astraflow/store", description="The store that holds the runs."),
) -> dict[str, str]:
    """Bring every running run's pools of the region to what the hour asks for; what was done, by run."""
    from astraflow.region_hours import keep_hours
    from astraflow.windows import Window, is_open, time_zone

    begin_life("operator")
    tag_flow_run(f"region:{region}")
    now = datetime.now(UTC)
    opened = is_open([Window.parse(window) for window in windows], time_zone(timezone), now)
    kept = keep_hours(open_store(store), region, is_open=opened)
    get_run_logger().info("%s is %s", region, "open" if opened else "closed")
    for each in kept:
        get_run_logger().info("%s: %s", each.run, each.action)
    return {each.run: each.action for each in kept}
