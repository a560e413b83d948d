"""The zombie automation: made once, brought up to date, and harmless to flow runs that are not ours."""

import asyncio

import pytest
from prefect.client.orchestration import get_client
from prefect.events.schemas.automations import Automation, EventTrigger
from prefect.events.schemas.events import RelatedResource, Resource

from flows.launcher import NO_HEARTBEAT, ChildRun
from infra.automations import HEARTBEAT_S, NAME, SILENCE_S, ensure, zombies

pytestmark = pytest.mark.usefixtures("prefect_server")


async def made() -> list[Automation]:
    async with get_client() as client:
        return await client.read_automations_by_name(NAME)


async def ensured(silence_s: int = SILENCE_S) -> str:
    async with get_client() as client:
        return await ensure(client, zombies(silence_s))


def test_it_is_made_once_and_brought_up_to_date() -> None:
    assert asyncio.run(ensured()) == "created"
    assert asyncio.run(ensured()) == "kept"
    assert asyncio.run(ensured(SILENCE_S + 60)) == "updated"
    assert asyncio.run(ensured(SILENCE_S + 60)) == "kept"
    (automation,) = asyncio.run(made())
    assert isinstance(automation.trigger, EventTrigger)
    assert automation.trigger.within.total_seconds() == SILENCE_S + 60
    assert automation.enabled

    async def twice() -> None:
        async with get_client() as client:
            await client.create_automation(zombies())

    asyncio.run(twice())  # somebody made another of the same name
    assert asyncio.run(ensured()) in ("kept", "updated")
    assert len(asyncio.run(made())) == 1


def test_only_flow_runs_of_ours_are_watched_and_with_patience() -> None:
    trigger = zombies().trigger
    assert isinstance(trigger, EventTrigger)
    flow_run = Resource.model_validate({"prefect.resource.id": "prefect.flow-run.1"})
    ours, other = (
        RelatedResource.model_validate({"prefect.resource.id": f"prefect.tag.{tag}", "prefect.resource.role": "tag"})
        for tag in ("astraflow", "somebody-elses")
    )
    assert trigger.match.matches(flow_run)
    assert not isinstance(trigger.match_related, list)
    assert trigger.match_related.matches(ours)
    assert not trigger.match_related.matches(other)
    assert trigger.within.total_seconds() >= 5 * HEARTBEAT_S  # a few beats may be lost


def test_what_it_says_is_known_for_a_presumption() -> None:
    (action,) = zombies().actions
    message = str(getattr(action, "message", ""))
    assert ChildRun("1", 1, "CRASHED", message).is_presumed_dead
    assert not ChildRun("1", 1, "CRASHED", "Flow run process exited with status code 1").is_presumed_dead
    assert not ChildRun("1", 1, "FAILED", f"{NO_HEARTBEAT}").is_presumed_dead
