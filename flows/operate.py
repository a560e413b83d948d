"""The operate flow: steering a run from Prefect's launch form, as `astraflow pause` and its like do from a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from prefect import flow, get_run_logger
from pydantic import Field

from astraflow import wishes
from flows.lifecycle import begin_life
from storage import open_store
from storage.errors import ConfigError
from storage.store import ObjectStore
from tasks.prefect_api import tag_flow_run

TAKES = {
    "pause": ("policy", "region"),
    "resume": ("policy", "region"),
    "scale": ("region", "pools"),
    "drain": ("participant",),
    "stop": (),
}
"""The fields that say more of each action."""


@flow(
    name="operate",
    description="Steers a run: pause, resume, stop, scale a region, or drain one participant.",
    flow_run_name="{run}/{action}",
    retries=0,
)
def operate(  # noqa: PLR0917  # the fields of a form
    run: str = Field(description="The run's name."),
    action: Literal["pause", "resume", "stop", "drain", "scale"] = Field(
        description="pause: give no more leases; resume: give them again; scale: set how many pools a region has; "
        "drain: let one participant finish and leave; stop: end the run, with checkpoints."
    ),
    policy: str = Field(default="", description="Pause or resume only this policy; empty: all."),
    region: str = Field(
        default="", description="Pause or resume only the pools of this region; empty: all. Scale: the region."
    ),
    pools: str = Field(default="", description="Scale: pools of the region from now on; auto: as load reports ask."),
    participant: str = Field(default="", description="Drain: who is to leave, as the run's page names it."),
    store: str = Field(default=".astraflow/store", description="The store that holds the run."),
) -> str:
    """Say one wish to the run's manager and wait for its answer."""
    begin_life("operator")
    fields = {"policy": policy, "region": region, "pools": pools, "participant": participant}
    said = {name: value.strip() for name, value in fields.items()}
    tag_flow_run(f"run:{run}", *(f"{name}:{said[name]}" for name in ("policy", "region") if said[name]))
    _check_fields(action, said)
    answer = _steer(open_store(store), run, action, said)
    get_run_logger().info(answer)
    return answer


def _steer(store: ObjectStore, run: str, action: str, said: Mapping[str, str]) -> str:
    """Do it; what it came to."""
    if action == "pause":
        wishes.pause(store, run, said["policy"], region=said["region"], reason="paused in Prefect")
    elif action == "resume":
        wishes.resume(store, run, said["policy"], region=said["region"])
    elif action == "scale":
        pools = wishes.pools_of(said["pools"])
        wanted = wishes.scale(store, run, said["region"], pools, reason="wanted in Prefect")
        return f"{run}: {wishes.scaled_text(said['region'], pools, wanted)}"
    elif action == "drain":
        if not said["participant"]:
            raise ConfigError("drain needs a participant", where="participant", remedy="Its name is on the run's page")
        wishes.drain(store, run, said["participant"], reason="drained in Prefect")
    else:
        return f"{run} has stopped: {wishes.stop(store, run, reason='stopped in Prefect')}"
    return f"{run}: the manager has answered the wish to {action}"


def _check_fields(action: str, filled: Mapping[str, str]) -> None:
    """Raise ``ConfigError`` for a field that is filled in and says nothing of the action."""
    idle = [name for name, value in filled.items() if value and name not in TAKES[action]]
    if idle:
        raise ConfigError(
            f"{action} takes no {idle[0]}",
            where=idle[0],
            remedy=f"Leave it empty, or choose {' or '.join(a for a, takes in TAKES.items() if idle[0] in takes)}",
            kind="field",
        )
