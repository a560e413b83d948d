"""The automation of the local stack: a flow run of ours whose process is gone does not stay «Running» for ever.

A flow run beats every ``HEARTBEAT_S``; when nothing of it has reached the server for ``SILENCE_S``, it is called
crashed. That is for the eye: it speaks of silence, not of death, and after an outage of the server it may be wrong. So
the window is long, only flow runs tagged ``astraflow`` are watched, and who supervises a run believes its store more
(``ChildRun.is_presumed_dead``).
"""

from __future__ import annotations

from datetime import timedelta

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification

from flows.launcher import NO_HEARTBEAT

NAME = "astraflow: flow runs without a heartbeat"
HEARTBEAT_S = 30  # the shortest that Prefect takes
SILENCE_S = 6 * HEARTBEAT_S


def zombies(silence_s: int = SILENCE_S) -> AutomationCore:
    """After a heartbeat, nothing at all of the same flow run within ``silence_s``."""
    return AutomationCore(
        name=NAME,
        description="Calls a flow run crashed when its process has gone silent. The run itself is judged by its store.",
        trigger=EventTrigger(
            match=ResourceSpecification.model_validate({"prefect.resource.id": "prefect.flow-run.*"}),
            match_related=ResourceSpecification.model_validate(
                {"prefect.resource.id": "prefect.tag.astraflow", "prefect.resource.role": "tag"}
            ),
            after={"prefect.flow-run.heartbeat"},
            expect={"prefect.flow-run.*"},
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=timedelta(seconds=silence_s),
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED, name="Crashed", message=f"{NO_HEARTBEAT} for {silence_s} s", force=False
            )
        ],
    )


async def ensure(client: PrefectClient, wanted: AutomationCore | None = None) -> str:
    """Make the automation, or bring the one that is there up to date; ``created``, ``updated`` or ``kept``."""
    wanted = wanted or zombies()
    found = await client.read_automations_by_name(wanted.name)
    for surplus in found[1:]:
        await client.delete_automation(surplus.id)
    if not found:
        await client.create_automation(wanted)
        return "created"
    if _says(found[0]) == _says(wanted):
        return "kept"
    await client.update_automation(found[0].id, wanted)
    return "updated"


def _says(automation: AutomationCore) -> object:
    """What is compared: the server adds ids, and whoever pauses the automation has a reason."""
    trigger = automation.trigger.model_dump(mode="json", exclude={"id"})
    return trigger, [action.model_dump(mode="json") for action in automation.actions], automation.description
