"""The experiment flow: creates or resumes a run, launches its flows, watches them and reports.

Its parameters are the run's config, so Prefect's launch form is the config. It holds no state that
matters: killed, the run goes on without it, and ``resume`` gives the run a new one.
"""

from __future__ import annotations

import time
from typing import Any

from prefect import flow, get_run_logger
from pydantic import Field

from astraflow.config import RunConfig
from astraflow.follow import RunFollower
from astraflow.participant import Beat, Outbox, beat_every_s
from astraflow.records import Status
from astraflow.scale_view import ScaleView
from flows.children import store_tag
from flows.launcher import PrefectLauncher
from flows.lifecycle import begin_life
from flows.patience import Patience
from flows.supervisor import Supervisor
from storage import open_store
from storage.keys import RunKeys
from tasks.bootstrap import begin_run, is_later_life
from tasks.prefect_api import tag_flow_run
from tasks.report import RunPage, final_figures

TICK_S = 1.0
PAGE_EVERY_S = 15.0
LEAVE_TIMEOUT_S = 30.0  # from Stopped until the children are cancelled


@flow(
    name="experiment",
    description="Runs one experiment: everything that a recipe says.",
    flow_run_name="{config.name}/experiment",
    retries=0,
)
def experiment(
    config: RunConfig,
    resume: bool = Field(
        default=False, description="Go on with a run of this name: as it was frozen, with the ranks given here."
    ),
) -> dict[str, Any]:
    """Run the experiment to its end and return its figures; ``resume`` goes on with a run that exists.

    Cancelling it cancels the flows it started; the run stays in the store and can be resumed.
    """
    participant = begin_life("experiment")
    tag_flow_run(f"run:{config.name}", *(f"policy:{policy}" for policy in config.trained))
    config = begin_run(config, resume=resume)
    tag_flow_run(store_tag(config.store))
    store, keys = open_store(config.store), RunKeys(config.name)
    follower = RunFollower(store, config)
    follower.poll()
    status = Status(participant=participant, role="experiment", state="running")
    supervisor = Supervisor(
        config=config,
        launcher=PrefectLauncher(config.name, config.store),
        follower=follower,
        scale_view=ScaleView(store, config),
        outbox=Outbox(store, keys, participant),
        log=get_run_logger().info,
    )
    page = RunPage(follower, supervisor.note)
    with Beat(store, keys, status, every_s=beat_every_s(config.store, config.dataflow.silence_s)) as beat:
        try:
            _watch(supervisor, page, adopt=resume or is_later_life())
        except BaseException as error:
            how = f"failed: {error}" if isinstance(error, Exception) else "cancelled"
            beat.set(state=how.partition(":")[0])
            supervisor.cancel_all()
            go_on = f"; `astraflow run --resume {config.name}` goes on"
            page.write(supervisor.flow_runs(), supervisor.notes, state=how + go_on)
            raise
        supervisor.cancel_all()
        beat.set(state="left")
    figures = final_figures(config.name, config.store)
    page.write(supervisor.flow_runs(), supervisor.notes)
    return figures


def _watch(supervisor: Supervisor, page: RunPage, *, adopt: bool) -> None:
    """Keep the children alive until the decisions log says ``Stopped``, then until they have left."""
    follower = supervisor.follower
    if follower.is_over:
        return
    next_page = 0.0
    patience = Patience(supervisor.note, progress=lambda: follower.steps)
    while not follower.is_over:
        with patience:
            supervisor.begin(adopt=adopt)
            supervisor.tick()
        if time.monotonic() >= next_page:
            next_page = time.monotonic() + PAGE_EVERY_S
            page.write(supervisor.flow_runs(), supervisor.notes)
        time.sleep(TICK_S)
    deadline = time.monotonic() + LEAVE_TIMEOUT_S
    while time.monotonic() < deadline:
        with patience:
            if not supervisor.living():
                return
        time.sleep(TICK_S)
