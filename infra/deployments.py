"""The deployments of the local stack, and ``python -m infra.deployments READY``: the runner that serves them.

One process polls for all flows and starts each flow run as an OS process of its own. ``READY`` is a file that is
written once the deployments are known to the server.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

from httpx import HTTPError
from prefect.client.orchestration import get_client
from prefect.deployments.runner import RunnerDeployment
from prefect.exceptions import PrefectException
from prefect.flows import Flow
from prefect.runner import Runner
from prefect.types.entrypoint import EntrypointType

from astraflow.recipe import load_recipe
from flows.dataflow_manager import dataflow_manager
from flows.experiment import experiment
from flows.operate import operate
from flows.raas_pool import raas_pool
from flows.region_mirror import region_mirror
from flows.trainer import trainer
from infra import automations
from infra.places import RECIPES, named_store
from storage.errors import AstraFlowError

LIMIT = 64  # flow runs at once; Prefect's own default of 5 would leave a sixth long-lived flow waiting for ever

FLOWS: tuple[Flow[Any, Any], ...] = (experiment, operate, dataflow_manager, raas_pool, region_mirror, trainer)


def local_deployments() -> list[RunnerDeployment]:
    """One deployment ``{flow}/local`` of each flow; forms begin with this stack's store."""
    store = named_store(None)
    filled: dict[str, dict[str, Any]] = {"experiment": {"config": {"store": store}}, "operate": {"store": store}}
    return [_deployment(flow, "local", flow.description or "", filled.get(flow.name, {})) for flow in FLOWS]


def recipe_deployments(folder: Path) -> list[RunnerDeployment]:
    """``experiment/NAME`` for each built-in recipe and each one in ``folder`` or its ``recipes``: a form filled in."""
    deployments = []
    for file in find_recipes(folder):
        try:
            config = load_recipe(file, default_store=named_store(None))
        except AstraFlowError as error:
            print(f"no deployment for {file}: {error}", file=sys.stderr)  # noqa: T201
            continue
        values = config.model_dump(mode="json", exclude={"data_hash", "problem_count"})
        about = f"{experiment.description} This form begins with the recipe {file.name}."
        deployments.append(_deployment(experiment, file.stem, about, {"config": values, "resume": False}))
    return deployments


def find_recipes(folder: Path) -> list[Path]:
    """Recipe files by the name of their deployment; one of the folder's own hides a built-in one."""
    found = {
        file.stem: file for place in (RECIPES, folder / "recipes", folder) for file in sorted(place.glob("*.toml"))
    }
    return [file for name, file in sorted(found.items()) if name != "local" and _is_recipe(file)]


def _is_recipe(file: Path) -> bool:
    """Whether a TOML file looks like one, so that a project's other files are left alone."""
    try:
        keys = tomllib.loads(file.read_text(encoding="utf-8")).keys()
    except (OSError, ValueError):
        return False
    return "extends" in keys or {"policies", "problems"} <= keys


def _deployment(flow: Flow[Any, Any], name: str, about: str, parameters: dict[str, Any]) -> RunnerDeployment:
    """A deployment whose flow is found again by its module's path."""
    return RunnerDeployment.from_flow(
        flow,
        name=name,
        description=about,
        parameters=parameters,
        tags=["astraflow"],
        entrypoint_type=EntrypointType.MODULE_PATH,
    )


async def run(ready: Path) -> None:
    """Register the deployments and start flow runs until SIGTERM."""
    runner = Runner(name="astraflow", limit=LIMIT, pause_on_shutdown=False)
    for deployment in (*local_deployments(), *recipe_deployments(Path.cwd())):
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


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1])))
