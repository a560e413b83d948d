"""The task that begins a run: checks and writes it, or reads what was written before."""

from __future__ import annotations

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run

from astraflow.config import RunConfig
from astraflow.recipe import load_run_config, with_store_urls
from storage import open_store
from storage.errors import ConfigError
from storage.store import ObjectStore


@task(name="begin run", retries=0, cache_policy=NO_CACHE)
def begin_run(config: RunConfig, *, resume: bool) -> RunConfig:
    """Create the run of ``config``; with ``resume``, or in a later life of this flow run, load it instead.

    The store is always the one that ``config`` names: a store that was moved or copied keeps the old one's address.
    So are the ranks of the trainers: how many processes share a model is of the machines, not of the experiment.
    """
    from astraflow.bootstrap import create_run  # noqa: PLC0415  # brings the workflow's imports: only needed here

    config = with_store_urls(config)  # a form may name a folder; children run elsewhere
    store = open_store(config.store)
    if resume:
        return _load(store, config)
    try:
        return create_run(store, config)
    except ConfigError as error:
        if error.kind == "run_exists" and is_later_life():
            return _load(store, config)
        raise


def is_later_life() -> bool:
    """Whether this flow run has run before: what its earlier life created and started is there."""
    return int(flow_run.run_count or 1) > 1


def _load(store: ObjectStore, config: RunConfig) -> RunConfig:
    frozen = load_run_config(store, config.name).model_copy(update={"store": store.url})
    return frozen.with_ranks({policy: config.trainer_of(policy).ranks for policy in config.policies})
