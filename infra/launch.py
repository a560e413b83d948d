"""Launching an experiment through Prefect, and asking how its flow run fares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from httpx import HTTPError
from prefect.client.orchestration import get_client
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.states import Cancelling

from astraflow.config import RunConfig
from flows.children import store_tag
from infra.places import Server
from storage.errors import ServiceError
from tasks.prefect_api import reaching_prefect

DEPLOYMENT = "experiment/local"
_DEAD = {"FAILED": "failed", "CRASHED": "crashed", "CANCELLED": "was cancelled", "CANCELLING": "is being cancelled"}


@dataclass(frozen=True, slots=True)
class Launched:
    """The experiment's flow run."""

    id: str
    url: str


def launch(server: Server, config: RunConfig, *, resume: bool) -> Launched:
    """Ask Prefect for the experiment's flow run and return at once. Raises ``ServiceError``."""
    try:
        with reaching_prefect(server.api_url):
            flow_run: Any = run_deployment(
                DEPLOYMENT,
                parameters={"config": config.model_dump(mode="json"), "resume": resume},
                timeout=0,
                as_subflow=False,
                flow_run_name=f"{config.name}/experiment",
                tags=["astraflow", f"run:{config.name}", store_tag(config.store)],
            )
    except ObjectNotFound as error:
        raise ServiceError(
            f"the Prefect server does not know the deployment {DEPLOYMENT}",
            where=server.api_url,
            remedy="`astraflow up` registers it",
            kind="no_deployment",
        ) from error
    except (PrefectException, HTTPError) as error:
        raise ServiceError(
            f"the Prefect server refused the run: {error}", where=server.api_url, kind="refused"
        ) from error
    return Launched(str(flow_run.id), f"{server.ui_url}/runs/flow-run/{flow_run.id}")


def flow_run_state(launched: Launched) -> str:
    """Prefect's state type of the experiment, ``UNKNOWN`` if the server does not answer now."""
    return _state(launched)[0]


def cancel(launched: Launched) -> None:
    """Ask the experiment's flow run to end, and with it what it started. Raises ``ServiceError``."""
    try:
        with reaching_prefect(launched.url), get_client(sync_client=True) as client:
            client.set_flow_run_state(UUID(launched.id), Cancelling())
    except (PrefectException, HTTPError) as error:
        raise ServiceError(
            f"the Prefect server refused to cancel the experiment: {error}",
            where=launched.url,
            remedy="Cancel it on its page",
            kind="refused",
        ) from error


def raise_if_dead(launched: Launched, run: str, *, exists: bool) -> None:
    """Raise ``ServiceError`` if the experiment's flow run has ended without its run having ended."""
    kind, message = _state(launched)
    if kind in _DEAD:
        remedy = f"Go on with `astraflow run --resume {run}`" if exists else f"See {launched.url}"
        raise ServiceError(
            f"the experiment {_DEAD[kind]}: {message or 'no message'}", where=run, remedy=remedy, kind="experiment"
        )


def _state(launched: Launched) -> tuple[str, str]:
    """Prefect's word, UNKNOWN whatever keeps it from giving one: the store tells how the run fares."""
    try:
        with reaching_prefect(launched.url), get_client(sync_client=True) as client:
            state = client.read_flow_run(UUID(launched.id)).state
    except (ServiceError, PrefectException, HTTPError):
        return "UNKNOWN", ""
    return (state.type.value, state.message or "") if state else ("SCHEDULED", "")
