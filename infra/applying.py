"""Bringing a Prefect server to what a deploy file asks for: only what differs is written, and every change is said.

A second run changes nothing. What a person did on the server's pages stays where the file has no word on it: a paused
deployment, schedule, work pool or automation stays paused. Deployments and automations of this file that it no longer
names are taken away; work pools are not, since somebody's worker may stand on them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from prefect.client.orchestration import PrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate, WorkPoolCreate, WorkPoolUpdate
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags
from prefect.client.schemas.responses import DeploymentResponse
from prefect.deployments.runner import RunnerDeployment
from prefect.events.actions import RunDeployment, SendNotification
from prefect.exceptions import ObjectNotFound

from infra import automations
from infra.installation import Installation, WantedAutomation, WantedPool
from storage.errors import ConfigError

PAGE = 200  # deployments, the most that the server gives in one answer


@dataclass(frozen=True, slots=True)
class Change:
    """One thing of the server. ``action``: created, updated, removed or unchanged; ``fields``: those that differ."""

    kind: str  # work pool, queue, deployment, automation
    name: str
    action: str
    fields: tuple[str, ...] = ()


@dataclass(slots=True)
class Applying:
    """One application; with ``is_dry`` nothing is written, and what would be is said all the same."""

    client: PrefectClient
    wanted: Installation
    is_dry: bool = False
    changes: list[Change] = field(default_factory=list)

    async def apply(self) -> list[Change]:
        """Bring the server there. Broken off anywhere, the next run does the rest. Raises ``ConfigError``."""
        for pool in self.wanted.pools:
            await self._pool(pool)
        for pool_name, queue in self.wanted.queues:
            await self._queue(pool_name, queue)
        for deployment in self.wanted.deployments:
            await self._deployment(deployment)
        await self._remove_deployments()
        for automation in self.wanted.automations:
            await self._automation(automation)
        await self._remove_automations()
        return self.changes

    async def _pool(self, wanted: WantedPool) -> None:
        try:
            there = await self.client.read_work_pool(wanted.name)
        except ObjectNotFound:
            self._note("work pool", wanted.name, "created")
            if not self.is_dry:
                await self.client.create_work_pool(
                    WorkPoolCreate(
                        name=wanted.name,
                        type=wanted.kind,
                        base_job_template=wanted.template,
                        concurrency_limit=wanted.limit,
                    )
                )
            return
        if there.type != wanted.kind:
            raise ConfigError(
                f"the server has a work pool {wanted.name!r} of the kind {there.type}, the file says {wanted.kind}",
                where=f"work_pools.{wanted.name}",
                remedy="Choose another name, or delete that one: a work pool can't change its kind",
                kind="work_pool",
            )
        differing = _differing(
            {"template": there.base_job_template, "limit": there.concurrency_limit},
            {"template": wanted.template, "limit": wanted.limit},
        )
        self._note("work pool", wanted.name, "updated" if differing else "unchanged", differing)
        if differing and not self.is_dry:
            update = WorkPoolUpdate(base_job_template=wanted.template, concurrency_limit=wanted.limit)
            await self.client.update_work_pool(wanted.name, update)

    async def _queue(self, pool: str, queue: str) -> None:
        try:
            await self.client.read_work_queue_by_name(queue, work_pool_name=pool)
        except ObjectNotFound:
            self._note("queue", f"{pool}/{queue}", "created")
            if not self.is_dry:
                await self.client.create_work_queue(queue, work_pool_name=pool)
        else:
            self._note("queue", f"{pool}/{queue}", "unchanged")

    async def _deployment(self, wanted: RunnerDeployment) -> None:
        name = wanted.full_name
        try:
            there = await self.client.read_deployment_by_name(name)
        except ObjectNotFound:
            self._note("deployment", name, "created")
            if not self.is_dry:
                await self._write(wanted, paused=False)
            return
        before, after = _said_there(there), _said(wanted)
        differing = _differing(before, after)
        self._note("deployment", name, "updated" if differing else "unchanged", differing)
        if not differing or self.is_dry:
            return
        asleep = {schedule.slug for schedule in there.schedules if not schedule.active}
        wanted.schedules = [
            schedule.model_copy(update={"active": schedule.slug not in asleep}) for schedule in wanted.schedules or []
        ]
        for schedule in there.schedules:  # those that have a slug would outlive their going from the file
            await self.client.delete_deployment_schedule(there.id, schedule.id)
        await self._write(wanted, paused=there.paused)

    async def _write(self, wanted: RunnerDeployment, *, paused: bool) -> None:
        said = _said(wanted)
        flow_id = await self.client.create_flow_from_name(wanted.flow_name or "")
        await self.client.create_deployment(
            flow_id=flow_id,
            name=wanted.name,
            paused=paused,
            schedules=cast("list[DeploymentScheduleCreate]", wanted.schedules),
            pull_steps=[],
            enforce_parameter_schema=True,
            **{name: value for name, value in said.items() if name != "schedules"},
        )

    async def _remove_deployments(self) -> None:
        ours = DeploymentFilter(tags=DeploymentFilterTags(all_=["astraflow", self.wanted.tag]))
        names = {deployment.full_name for deployment in self.wanted.deployments}
        found: list[DeploymentResponse] = []
        while page := await self.client.read_deployments(deployment_filter=ours, limit=PAGE, offset=len(found)):
            found += page
        for deployment in found:
            flow = await self.client.read_flow(deployment.flow_id)
            name = f"{flow.name}/{deployment.name}"
            if name not in names:
                self._note("deployment", name, "removed")
                if not self.is_dry:
                    await self.client.delete_deployment(deployment.id)

    async def _automation(self, wanted: WantedAutomation) -> None:
        automation = wanted.automation
        if wanted.block:
            block = await self._block(wanted.block)
            if block is None:
                return
            action = automation.actions[0]
            assert isinstance(action, SendNotification)
            automation.actions = [action.model_copy(update={"block_document_id": block})]
        if wanted.deployment:
            try:
                target = await self.client.read_deployment_by_name(wanted.deployment)
            except ObjectNotFound:
                if self.is_dry and wanted.deployment in {each.full_name for each in self.wanted.deployments}:
                    self._note("automation", automation.name, "created")
                    return
                raise _missing("deployment", wanted.deployment, "Deploy it first") from None
            action = automation.actions[0]
            assert isinstance(action, RunDeployment)
            automation.actions = [action.model_copy(update={"deployment_id": target.id})]
        action_taken = await automations.ensure(self.client, automation, is_dry=self.is_dry)
        self._note("automation", automation.name, "unchanged" if action_taken == "kept" else action_taken)

    async def _block(self, name: str) -> Any:
        kind, _, document = name.partition("/")
        try:
            return (await self.client.read_block_document_by_name(document, kind, include_secrets=False)).id
        except ObjectNotFound:
            raise _missing("block", name, "Make it on the server's pages, under Blocks") from None

    async def _remove_automations(self) -> None:
        names = {wanted.automation.name for wanted in self.wanted.automations}
        for automation in await self.client.read_automations():
            if automation.name.startswith(automations.prefix(self.wanted.tag)) and automation.name not in names:
                self._note("automation", automation.name, "removed")
                if not self.is_dry:
                    await self.client.delete_automation(automation.id)

    def _note(self, kind: str, name: str, action: str, fields: tuple[str, ...] = ()) -> None:
        self.changes.append(Change(kind, name, action, fields))


def _said(wanted: RunnerDeployment) -> dict[str, Any]:
    """What a deployment says, as the server takes it."""
    return {
        "description": wanted.description,
        "entrypoint": wanted.entrypoint,
        "parameters": wanted.model_dump(mode="json", include={"parameters"})["parameters"],
        "parameter_openapi_schema": wanted._parameter_openapi_schema.model_dump(exclude_unset=True),
        "tags": sorted(wanted.tags or []),
        "work_pool_name": wanted.work_pool_name,
        "work_queue_name": wanted.work_queue_name,
        "job_variables": wanted.job_variables,
        "schedules": _schedules(wanted.schedules or []),
    }


def _said_there(there: DeploymentResponse) -> dict[str, Any]:
    return {
        "description": there.description,
        "entrypoint": there.entrypoint,
        "parameters": there.parameters,
        "parameter_openapi_schema": there.parameter_openapi_schema,
        "tags": sorted(there.tags),
        "work_pool_name": there.work_pool_name,
        "work_queue_name": there.work_queue_name,
        "job_variables": there.job_variables,
        "schedules": _schedules(there.schedules),
    }


def _schedules(found: Any) -> list[tuple[str, str, str]]:
    return sorted((each.slug or "", each.schedule.cron, each.schedule.timezone or "UTC") for each in found)


def _differing(there: dict[str, Any], wanted: dict[str, Any]) -> tuple[str, ...]:
    return tuple(name for name, value in wanted.items() if there[name] != value)


def _missing(what: str, name: str, remedy: str) -> ConfigError:
    return ConfigError(f"the server has no {what} {name!r}", where=what, remedy=remedy, kind=what)
