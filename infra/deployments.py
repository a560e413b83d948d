"""The deployments of the local stack, and ``python -m infra.deployments READY``: the runner that serves them.

One process polls for all flows and starts each flow run as an OS process of its own. ``READY`` is a file that is
written once the deployments are known to the server.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from httpx import HTTPError
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags
from prefect.deployments.runner import RunnerDeployment
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.flows import Flow
from prefect.runner import Runner
from prefect.types.entrypoint import EntrypointType

from flows.dataflow_manager import dataflow_manager
from flows.experiment import experiment
from flows.maintain import maintain
from flows.operate import operate
from flows.raas_pool import raas_pool
from flows.region_mirror import region_mirror
from flows.region_window import region_window
from flows.trainer import trainer
from infra import automations
from infra.places import named_store
from infra.regions import WORK_POOL_TYPE, Place, places, recipes

LIMIT = 64  # flow runs at once; Prefect's own default of 5 would leave a sixth long-lived flow waiting for ever

OF_REGION = "of-region"  # tags the deployments of regions, which the next stack takes away if nobody names them

_FOR_WORKERS = ("PREFECT_LOGGING_EXTRA_LOGGERS", "PREFECT_FLOWS_HEARTBEAT_FREQUENCY")
"""What flow runs of a worker have in common with those of the runner: their core's lines and their heartbeats."""

FLOWS: tuple[Flow[Any, Any], ...] = (
    experiment,
    operate,
    maintain,
    dataflow_manager,
    raas_pool,
    region_mirror,
    region_window,
    trainer,
)


def local_deployments() -> list[RunnerDeployment]:
    """One deployment ``{flow}/local`` of each flow; forms begin with this stack's store."""
    store = named_store(None)
    filled: dict[str, dict[str, Any]] = {
        "experiment": {"config": {"store": store}},
        "operate": {"store": store},
        "maintain": {"store": store},
        "region_window": {"store": store},
    }
    return [make_deployment(flow, "local", flow.description or "", filled.get(flow.name, {})) for flow in FLOWS]


def recipe_deployments(folder: Path) -> list[RunnerDeployment]:
    """``experiment/NAME`` for each built-in recipe and each one in ``folder`` or its ``recipes``: a form filled in."""
    deployments = []
    found, faults = recipes(folder)
    _print(faults)
    for file, config in found:
        values = config.model_dump(mode="json", exclude={"data_hash", "problem_count"})
        about = f"{experiment.description} This form begins with the recipe {file.name}."
        deployments.append(make_deployment(experiment, file.stem, about, {"config": values, "resume": False}))
    return deployments


def region_deployments(place: Place) -> list[RunnerDeployment]:
    """``raas_pool/REGION`` and ``region_mirror/REGION``; on a work pool, in the queue of the region's name."""
    flows = {flow.name: flow for flow in FLOWS}
    there: dict[str, Any] = {}
    if place.work_pool is not None:
        env = {name: os.environ[name] for name in _FOR_WORKERS if name in os.environ}
        there = {
            "work_pool_name": place.work_pool,
            "work_queue_name": place.region,
            "job_variables": {"env": env},
        }
    about = f"In the region {place.region}."
    tags = [OF_REGION, f"region:{place.region}"]
    return [
        make_deployment(flows[name], place.region, f"{flows[name].description} {about}", {}, tags=tags, **there)
        for name in place.flows
    ]


def make_deployment(
    flow: Flow[Any, Any],
    name: str,
    about: str,
    parameters: dict[str, Any],
    *,
    tags: Sequence[str] = (),
    **there: Any,
) -> RunnerDeployment:
    """A deployment whose flow is found again by its module's path."""
    return RunnerDeployment.from_flow(
        flow,
        name=name,
        description=about,
        parameters=parameters,
        tags=["astraflow", *tags],
        entrypoint_type=EntrypointType.MODULE_PATH,
        **there,
    )


async def prepare_regions(client: PrefectClient, wanted: Sequence[Place]) -> None:
    """Take away the deployments of regions as an earlier stack had them, and make work pools that are not there.

    A deployment that nobody serves would have its flow runs wait instead of running from ``local``.
    """
    keep = {(flow, place.region, place.work_pool) for place in wanted for flow in place.flows}
    ours = DeploymentFilter(tags=DeploymentFilterTags(all_=["astraflow", OF_REGION]))
    for old in await client.read_deployments(deployment_filter=ours):
        flow = await client.read_flow(old.flow_id)
        if (flow.name, old.name, old.work_pool_name) not in keep:
            await client.delete_deployment(old.id)
    for pool in sorted({place.work_pool for place in wanted if place.work_pool is not None}):
        try:
            await client.read_work_pool(pool)
        except ObjectNotFound:
            await client.create_work_pool(WorkPoolCreate(name=pool, type=WORK_POOL_TYPE))


async def run(ready: Path) -> None:
    """Register the deployments and start flow runs until SIGTERM."""
    runner = Runner(name="astraflow", limit=LIMIT, pause_on_shutdown=False)
    folder = Path.cwd()
    regions, unfit = places(config for _, config in recipes(folder)[0])
    _print(unfit)
    async with get_client() as client:
        await prepare_regions(client, regions)
    of_regions = [deployment for place in regions for deployment in region_deployments(place)]
    for deployment in (*local_deployments(), *recipe_deployments(folder), *of_regions):
        if deployment.work_pool_name is not None:  # workers there start its flow runs
            await deployment.aapply()
            continue
        added = runner.add_deployment(deployment)
        if added is not None and not isinstance(added, str):
            await added  # type: ignore[misc]  # Prefect dispatches on the running loop
    try:
        async with get_client() as client:
            await automations.ensure(client)
    except (PrefectException, OSError, HTTPError) as error:  # flow runs do without
        print(f"the zombie automation was not made: {error}", file=sys.stderr)  # noqa: T201
    ready.write_text(str(os.getpid()))
    await runner.start()


def _print(faults: Sequence[str]) -> None:
    for fault in faults:
        print(fault, file=sys.stderr)  # noqa: T201


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1])))
