"""The operate flow: steering a run from Prefect's launch form, as `astraflow pause` and its like do from a terminal."""

from __future__ import annotations

from typing import Literal

from prefect import flow
from pydantic import Field

from astraflow import wishes
from flows.lifecycle import begin_life
from storage import open_store
from storage.errors import ConfigError
from tasks.prefect_api import tag_flow_run


@flow(
    name="operate",
    description="Steers a run: pause, resume, stop, or drain one participant.",
    flow_run_name="{run}/{action}",
    retries=0,
)
def operate(
    run: str = Field(description="The run's name."),
    action: Literal["pause", "resume", "stop", "drain"] = Field(
        description="pause: give no more leases; resume: give them again; stop: end the run, with checkpoints; "
        "drain: let one participant finish and leave."
    ),
    policy: str = Field(default="", description="Pause or resume only this policy; empty: all."),
    participant: str = Field(default="", description="Whom to drain, as the run's page names it."),
    store: str = Field(default=".astraflow/store", description="The store that holds the run."),
) -> str:
    """Say one wish to the run's manager and wait for its answer."""
    begin_life("operator")
    tag_flow_run(f"run:{run}", *([f"policy:{policy}"] if policy else []))
    opened = open_store(store)
    if action == "pause":
        wishes.pause(opened, run, policy, reason="paused in Prefect")
    elif action == "resume":
        wishes.resume(opened, run, policy)
    elif action == "drain":
        if not participant:
            raise ConfigError("drain needs a participant", where="participant", remedy="Its name is on the run's page")
        wishes.drain(opened, run, participant, reason="drained in Prefect")
    else:
        return f"{run} has stopped: {wishes.stop(opened, run, reason='stopped in Prefect')}"
    return f"{run}: the manager has answered the wish to {action}"
