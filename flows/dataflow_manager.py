"""The dataflow manager flow: the one writer of a run's decisions. Two of them are harmless, the older is fenced."""

from __future__ import annotations

import threading

from prefect import flow
from prefect.client.schemas.objects import State

from flows.lifecycle import begin_life, enter_run, run_until_signal
from tasks.prefect_api import last_state


@flow(name="dataflow_manager", description="Decides: leases, admission, staleness, batches, the end.", retries=0)
def dataflow_manager(run: str, store: str) -> State | None:
    """Manage ``run`` until it is stopped; takes over from any manager before it."""
    from astraflow.dataflow.manager import run_manager

    holder = begin_life("manager")
    opened, config = enter_run(run, store)
    stop = threading.Event()
    run_until_signal(lambda: run_manager(opened, config, holder=holder, stop=stop), stop.set)
    return last_state()
