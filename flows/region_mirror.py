"""The region mirror flow: copies each version of the weights once into a region's store."""

from __future__ import annotations

import threading

from prefect import flow
from prefect.client.schemas.objects import State

from flows.lifecycle import begin_life, enter_run, run_until_signal
from tasks.prefect_api import last_state


@flow(name="region_mirror", description="Copies each version of the weights into a region's store.", retries=0)
def region_mirror(run: str, store: str, region: str) -> State | None:
    """Mirror the weights of ``run`` into the store of ``region`` until the run is over; several do no harm."""
    from astraflow.weights.mirror import run_mirror

    participant = begin_life("mirror", region)
    opened, config = enter_run(run, store)
    stop = threading.Event()
    run_until_signal(lambda: run_mirror(opened, config, region, participant=participant, stop=stop), stop.set)
    return last_state()
