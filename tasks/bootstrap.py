"""The task that begins a run: checks and writes it, or reads what was written before."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run

from astraflow.config import RunConfig
from astraflow.recipe import load_run_config
from storage import open_store
from storage.errors import ConfigError


@task(name="begin run", retries=0, cache_policy=NO_CACHE)
def begin_run(config: RunConfig, *, resume: bool) -> RunConfig:
    """Create the run of ``config``; with ``resume``, or in a later life of this flow run, load it instead."""
    from astraflow.bootstrap import create_run  # noqa: PLC0415  # brings the workflow's imports: only needed here

    store = open_store(config.store)
    config = config.model_copy(update={"store": store.url})  # a form may name a folder; children run elsewhere
    if resume:
        return load_run_config(store, config.name)
    try:
        return create_run(store, config)
    except ConfigError as error:
        if error.kind == "run_exists" and int(flow_run.run_count or 1) > 1:
            return load_run_config(store, config.name)
        raise
