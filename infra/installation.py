"""What a deploy file means on a Prefect server: work pools, queues, deployments with their schedules, automations.

All of it is worked out here without asking the server, so two readings of one file are equal; ``infra.applying``
compares it with what is there.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.schedules import CronSchedule
from prefect.deployments.runner import RunnerDeployment
from prefect.events.schemas.automations import AutomationCore
from prefect.workers.process import ProcessWorker

from astraflow.windows import Window
from flows.children import LOCAL
from flows.experiment import experiment
from flows.maintain import maintain
from flows.region_window import region_window
from infra import automations
from infra.deploy_file import DeployFile, DeployRegion
from infra.deployments import FLOWS, make_deployment
from infra.places import find_recipe, read_recipe
from storage.errors import ConfigError

TEMPLATES = Path(__file__).parent / "job_templates"
CHECK_CRON = "*/15 * * * *"
"""Runs that begin outside of a region's hours, and hours that passed while no server ran, are found by looking."""
NIGHTLY = "nightly"
COMMON_ENV = {
    "PREFECT_LOGGING_EXTRA_LOGGERS": "astraflow",
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(automations.HEARTBEAT_S),
    "PREFECT_FLOW_RUN_EXECUTE_SIGTERM_BEHAVIOR": "crash",
}
"""So that flow runs of workers show their core's lines, beat, and are started again by their experiment alone: where a
pod is evicted, Prefect would put the same flow run into the queue once more."""
_FLOWS = {flow.name: flow for flow in FLOWS}


@dataclass(frozen=True, slots=True)
class WantedPool:
    """A work pool with the template of its jobs."""

    name: str
    kind: str
    template: dict[str, Any]
    limit: int | None


@dataclass(frozen=True, slots=True)
class WantedAutomation:
    """An automation, and what of the server its action names by id: a block, or a deployment."""

    automation: AutomationCore
    block: str = ""
    deployment: str = ""


@dataclass(slots=True)
class Installation:
    """All that one deploy file asks for. ``tag`` marks its deployments, and ``tag`` with a name its automations."""

    tag: str
    pools: list[WantedPool] = field(default_factory=list)
    queues: list[tuple[str, str]] = field(default_factory=list)  # work pool, queue
    deployments: list[RunnerDeployment] = field(default_factory=list)
    automations: list[WantedAutomation] = field(default_factory=list)

    @property
    def workers(self) -> list[str]:
        """The commands that start the workers it needs, one a queue."""
        queues = [f"--work-queue {queue} " for _, queue in self.queues]
        return [
            f"prefect worker start --pool {pool} {queue}".strip()
            for (pool, _), queue in zip(self.queues, queues, strict=True)
        ]


def installation(file: DeployFile, folder: Path) -> Installation:
    """What ``file`` asks for; recipes are found from ``folder``. Raises ``ConfigError`` for one that is not there."""
    made = Installation(f"deploy:{file.name}")
    made.pools = [
        WantedPool(name, pool.kind, _template(pool.kind, pool.variables), pool.limit)
        for name, pool in sorted(file.work_pools.items())
    ]
    builder = _Builder(file, made)
    builder.home()
    for name in file.recipes:
        builder.recipe(folder / name if (folder / name).is_file() else find_recipe(name))
    if file.trainers is not None:
        for kind, pool in sorted(file.trainers.hardware.items()):
            builder.add("trainer", kind, pool, kind, about=f"On {kind}.")
    for name, region in sorted(file.regions.items()):
        builder.region(name, region)
    made.automations = _automations(file)
    return made


@dataclass(frozen=True, slots=True)
class _Builder:
    """Adds deployments, and the queues they stand in."""

    file: DeployFile
    made: Installation

    def home(self) -> None:
        """``FLOW/local`` of each flow: what runs at home, and what everything falls back on."""
        store = {"store": self.file.store}
        filled: dict[str, dict[str, Any]] = {"experiment": {"config": store}, "operate": store, "maintain": store}
        for flow in FLOWS:
            trainers = self.file.trainers if flow.name == "trainer" else None
            pool = trainers.work_pool if trainers is not None else self.file.home
            self.add(flow.name, LOCAL, pool, LOCAL, parameters=filled.get(flow.name, {}))
        if nightly := self.file.maintenance.cron:
            schedule = _schedule("nightly", nightly, self.file.maintenance.timezone)
            self.add(maintain.name, NIGHTLY, self.file.home, LOCAL, parameters=store, schedules=[schedule])

    def recipe(self, path: Path) -> None:
        """``experiment/NAME``: a launch form that is filled in."""
        config = read_recipe(path, default_store=self.file.store)
        values = config.model_dump(mode="json", exclude={"data_hash", "problem_count"})
        about = f"This form begins with the recipe {path.name}."
        parameters = {"config": values, "resume": False}
        self.add(experiment.name, path.stem, self.file.home, LOCAL, about=about, parameters=parameters)

    def region(self, name: str, region: DeployRegion) -> None:
        """``raas_pool/REGION``, one more for each kind of hardware, the mirror, and the hours."""
        about, tags = f"In the region {name}.", [f"region:{name}"]
        self.add("raas_pool", name, region.work_pool, name, about=about, tags=tags)
        for kind, pool in sorted(region.hardware.items()):
            self.add("raas_pool", f"{name}-{kind}", pool, name, about=f"In the region {name}, on {kind}.", tags=tags)
        if region.mirror:
            self.add("region_mirror", name, region.work_pool, name, about=about, tags=tags)
        if region.windows:
            parameters = {
                "store": self.file.store,
                "region": name,
                "windows": region.windows,
                "timezone": region.timezone,
            }
            schedules = [_schedule("check", CHECK_CRON, "UTC")]
            for number, window in enumerate(map(Window.parse, region.windows)):
                for what, cron in zip(("begin", "end"), window.crons, strict=True):
                    schedules.append(_schedule(f"{what}-{number}", cron, region.timezone))
            self.add(
                region_window.name,
                name,
                self.file.home,
                LOCAL,
                about=about,
                tags=tags,
                parameters=parameters,
                schedules=schedules,
            )

    def add(
        self,
        flow: str,
        name: str,
        pool: str,
        queue: str,
        *,
        about: str = "",
        tags: list[str] | None = None,
        parameters: dict[str, Any] | None = None,
        schedules: list[DeploymentScheduleCreate] | None = None,
    ) -> None:
        """One deployment on a work pool, in one of its queues."""
        if (pool, queue) not in self.made.queues:
            self.made.queues.append((pool, queue))
        deployment = make_deployment(
            _FLOWS[flow],
            name,
            f"{_FLOWS[flow].description} {about}".strip(),
            parameters or {},
            tags=[self.made.tag, *(tags or [])],
            work_pool_name=pool,
            work_queue_name=queue,
            job_variables={"env": COMMON_ENV | self.file.env},
        )
        deployment.schedules = list(schedules or [])
        self.made.deployments.append(deployment)


def _schedule(slug: str, cron: str, timezone: str) -> DeploymentScheduleCreate:
    """A schedule under a name of its own, by which it is found again. Raises ``ConfigError``."""
    try:
        return DeploymentScheduleCreate(schedule=CronSchedule(cron=cron, timezone=timezone), slug=slug, active=True)
    except ValueError as error:
        remedy = "Write five fields, such as '30 3 * * *'"
        raise ConfigError(f"{cron!r} is no cron expression", where=slug, remedy=remedy, kind="deploy_file") from error


def _template(kind: str, variables: dict[str, Any]) -> dict[str, Any]:
    """The jobs of a kind of work pool, with ``variables`` as defaults. Raises ``ConfigError`` for an unknown one."""
    if kind == "process":
        template = ProcessWorker.get_default_base_job_template()
    else:
        template = json.loads((TEMPLATES / f"{kind}.json").read_text(encoding="utf-8"))
    for name, value in variables.items():
        known = template["variables"]["properties"]
        if name not in known:
            raise _strange(kind, name, sorted(known))
        known[name]["default"] = value
        template["variables"]["required"] = [each for each in template["variables"].get("required", []) if each != name]
    return template


def _strange(kind: str, name: str, known: list[str]) -> ConfigError:
    return ConfigError(
        f"jobs of a {kind} work pool have no variable {name!r}",
        where="work_pools",
        remedy=f"There are: {', '.join(known)}",
        kind="deploy_file",
    )


def _automations(file: DeployFile) -> list[WantedAutomation]:
    """Silent flow runs are called crashed; failures and load reports are told to whoever the file names."""
    found = [WantedAutomation(automations.zombies())]
    for means in ("notify", "run"):
        for reaction, automation in (
            (file.failures, automations.failures(file.name, means)),
            (file.load_reports, automations.loads(file.name, means, file.load_reports.loads)),
        ):
            block, deployment = (reaction.block, "") if means == "notify" else ("", reaction.deployment)
            if block or deployment:
                found.append(WantedAutomation(automation, block, deployment))
    return found
