"""Automations: a flow run of ours whose process is gone does not stay «Running»; failures and load reports are told.

A flow run beats every ``HEARTBEAT_S``; when nothing of it has reached the server for ``SILENCE_S``, it is called
crashed. That is for the eye: it speaks of silence, not of death, and after an outage of the server it may be wrong. So
the window is long, only flow runs tagged ``astraflow`` are watched, and who supervises a run believes its store more
(``ChildRun.is_presumed_dead``).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any
from uuid import UUID

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.objects import StateType
from prefect.events.actions import ActionTypes, ChangeFlowRunState, RunDeployment, SendNotification
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification

from flows.launcher import NO_HEARTBEAT
from tasks.load_reports import EVENT

NAME = "astraflow: flow runs without a heartbeat"
HEARTBEAT_S = 30  # the shortest that Prefect takes
SILENCE_S = 6 * HEARTBEAT_S
NOBODY = UUID(int=0)
"""Stands for an id that only the server knows."""
_FLOW_RUNS = {"prefect.resource.id": "prefect.flow-run.*"}
_OURS = ResourceSpecification.model_validate(
    {"prefect.resource.id": "prefect.tag.astraflow", "prefect.resource.role": "tag"}
)
_TAGGED_RUN = "{% for tag in flow_run.tags if tag.startswith('run:') %}{{ tag[4:] }}{% endfor %}"


def zombies(silence_s: int = SILENCE_S) -> AutomationCore:
    """After a heartbeat, nothing at all of the same flow run within ``silence_s``."""
    return AutomationCore(
        name=NAME,
        description="Calls a flow run crashed when its process has gone silent. The run itself is judged by its store.",
        trigger=EventTrigger(
            match=ResourceSpecification.model_validate(_FLOW_RUNS),
            match_related=_OURS,
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


def prefix(tag: str) -> str:
    """What the names of a deploy file's own automations begin with."""
    return f"{tag}: "


def failures(name: str, means: str) -> AutomationCore:
    """A flow run of ours has failed or crashed: it is told by ``means``, ``notify`` or ``run``."""
    parameters = {"flow_run": "{{ flow_run.name }}", "state": "{{ flow_run.state.name }}", "run": _TAGGED_RUN}
    return AutomationCore(
        name=f"{prefix(f'deploy:{name}')}failures, {means}",
        description="Tells of flow runs that failed or crashed. Most are started again by their experiment.",
        trigger=_each_time({"prefect.flow-run.Failed", "prefect.flow-run.Crashed"}, of=_FLOW_RUNS, match_related=_OURS),
        actions=[
            _told(
                means,
                subject="{{ flow_run.name }}: {{ flow_run.state.name }}",
                body="{{ flow_run.name }}: {{ flow_run.state.message }}\n{{ flow_run|ui_url }}",
                parameters=parameters,
            )
        ],
    )


def loads(name: str, means: str, wanted: Sequence[str]) -> AutomationCore:
    """A load report says one of ``wanted`` (starved, steady, ample): it is told by ``means``, ``notify`` or ``run``."""
    parameters = {
        "run": "{{ event.resource.name }}",
        "store": "{{ event.resource['astraflow.store'] }}",
        "report": {"__prefect_kind": "json", "value": _jinja("{{ event.payload | tojson }}")},
    }
    return AutomationCore(
        name=f"{prefix(f'deploy:{name}')}load reports, {means}",
        description="Tells of a run's load reports: whether its trainer waits for data.",
        trigger=_each_time({EVENT}, of={"prefect.resource.id": "astraflow.run.*", "astraflow.load": sorted(wanted)}),
        actions=[
            _told(
                means,
                subject="{{ event.resource.name }}: {{ event.payload.load }}",
                body="{{ event.resource.name }}, policy {{ event.payload.policy }}, step {{ event.payload.step }}: "
                "{{ event.payload.load }}; its trainer waits {{ event.payload.wait_ratio }} of its time",
                parameters=parameters,
            )
        ],
    )


def _each_time(events: set[str], *, of: dict[str, Any], **also: Any) -> EventTrigger:
    """A trigger for each single one of ``events`` of such a resource."""
    return EventTrigger(
        match=ResourceSpecification.model_validate(of),
        expect=events,
        for_each={"prefect.resource.id"},
        posture=Posture.Reactive,
        threshold=1,
        **also,
    )


def _told(means: str, *, subject: str, body: str, parameters: dict[str, Any]) -> ActionTypes:
    """The action; whoever applies it puts in the id of the block or of the deployment."""
    if means == "notify":
        return SendNotification(block_document_id=NOBODY, subject=subject, body=body)
    made = {name: value if isinstance(value, dict) else _jinja(value) for name, value in parameters.items()}
    return RunDeployment(deployment_id=NOBODY, source="selected", parameters=made, job_variables=None)


def _jinja(template: str) -> dict[str, str]:
    return {"__prefect_kind": "jinja", "template": template}


async def ensure(client: PrefectClient, wanted: AutomationCore | None = None, *, is_dry: bool = False) -> str:
    """Make the automation, or bring the one that is there up to date; ``created``, ``updated`` or ``kept``.

    ``is_dry``: only say so.
    """
    wanted = wanted or zombies()
    found = await client.read_automations_by_name(wanted.name)
    if is_dry:
        return "created" if not found else "kept" if _says(found[0]) == _says(wanted) else "updated"
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
    for name in ("expect", "after", "for_each"):  # sets, which have no order
        trigger[name] = sorted(trigger.get(name) or ())
    return trigger, [action.model_dump(mode="json") for action in automation.actions], automation.description
