"""The RaaS pool flow: engines and workflows that play leased groups, in one region."""

from __future__ import annotations

import asyncio
import contextlib

from prefect import flow
from prefect.client.schemas.objects import State

from flows.lifecycle import begin_life, enter_run, run_until_signal
from tasks.prefect_api import last_state


@flow(name="raas_pool", description="Plays leased groups with the newest weights.", retries=0)
def raas_pool(run: str, store: str, pool: str) -> State | None:
    """Serve rollouts of ``run`` as ``pool`` until the run ends, or hand back the leases when cancelled."""
    from astraflow.raas.pool import run_pool

    participant = begin_life("pool", pool)
    opened, config = enter_run(run, store)
    loop = asyncio.new_event_loop()
    stop = asyncio.Event()

    def work() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(run_pool(opened, config, pool, participant=participant, stop=stop))

    def end() -> None:
        with contextlib.suppress(RuntimeError):  # the loop has just closed: the pool has left
            loop.call_soon_threadsafe(stop.set)

    run_until_signal(work, end)
    return last_state()
