"""The deployments of the local stack, and ``python -m infra.deployments READY``: the runner that serves them.

One process polls for all flows and starts each flow run as an OS process of its own. ``READY`` is a file that is
written once the deployments are known to the server.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from prefect.deployments.runner import RunnerDeployment
from prefect.flows import Flow
from prefect.runner import Runner
from prefect.types.entrypoint import EntrypointType

from flows.dataflow_manager import dataflow_manager
from flows.experiment import experiment
from flows.raas_pool import raas_pool
from flows.trainer import trainer

LIMIT = 64  # flow runs at once; Prefect's own default of 5 would leave a sixth long-lived flow waiting for ever

FLOWS: tuple[Flow[Any, Any], ...] = (experiment, dataflow_manager, raas_pool, trainer)


def local_deployments() -> list[RunnerDeployment]:
    """One deployment ``{flow}/local`` of each flow, found again by its module's path."""
    return [
        RunnerDeployment.from_flow(
            flow,
            name="local",
            description=(flow.description or "").splitlines()[0] if flow.description else None,
            tags=["astraflow"],
            entrypoint_type=EntrypointType.MODULE_PATH,
        )
        for flow in FLOWS
    ]


async def run(ready: Path) -> None:
    """Register the deployments and start flow runs until SIGTERM."""
    runner = Runner(name="astraflow", limit=LIMIT, pause_on_shutdown=False)
    for deployment in local_deployments():
        added = runner.add_deployment(deployment)
        if added is not None and not isinstance(added, str):
            await added  # type: ignore[misc]  # Prefect dispatches on the running loop
    ready.write_text(str(os.getpid()))
    await runner.start()


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1])))
