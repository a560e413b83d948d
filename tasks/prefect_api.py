"""Calls to the Prefect server that tell «it does not answer now» from «it refused».

The server is advisory: while it is away, a run goes on, and who asks it should ask again later.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter
from prefect.client.schemas.objects import FlowRun, State
from prefect.client.schemas.sorting import FlowRunSort
from prefect.runtime import flow_run
from prefect.states import Cancelled

from storage.errors import ServiceError

_PAGE = 200  # the most flow runs that the server gives at once
_PASSING = frozenset({408, 429, 500, 502, 503, 504})


@contextmanager
def reaching_prefect(what: str) -> Iterator[None]:
    """Turn passing faults inside into ``ServiceError`` of kind ``unreachable``; refusals stay as they are."""
    try:
        yield
    except (httpx.TransportError, OSError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "Failed to reach API" not in str(error):
            raise
        raise _unreachable(what, error) from error
    except httpx.HTTPStatusError as error:
        if error.response.status_code not in _PASSING:
            raise
        raise _unreachable(what, error) from error


def read_all_flow_runs(client: SyncPrefectClient, wanted: FlowRunFilter) -> list[FlowRun]:
    """All flow runs that a filter lets through, page by page, each once."""
    found: dict[UUID, FlowRun] = {}
    offset = 0
    while True:
        page = client.read_flow_runs(flow_run_filter=wanted, sort=FlowRunSort.ID_DESC, limit=_PAGE, offset=offset)
        found |= {run.id: run for run in page}
        offset += len(page)
        if len(page) < _PAGE:
            return list(found.values())


def tag_flow_run(*tags: str) -> None:
    """Add tags to the flow run that runs here, as one that was launched from a form has none."""
    if not flow_run.id:
        return
    with suppress(ServiceError), reaching_prefect("this flow run's tags"), get_client(sync_client=True) as client:
        id = UUID(flow_run.id)
        present = client.read_flow_run(id).tags
        client.update_flow_run(id, tags=list(dict.fromkeys([*present, "astraflow", *tags])))


def last_state() -> State | None:
    """What a flow returns that has ended by itself: ``Cancelled`` if Prefect says that it is being cancelled.

    Nobody is left to cancel it then (a runner that was cut off missed the call), and the server takes no other end: it
    would be shown as being cancelled for ever. None: the flow is completed, as any that returns.
    """
    if not flow_run.id:
        return None
    with suppress(ServiceError), reaching_prefect("this flow run's state"), get_client(sync_client=True) as client:
        state = client.read_flow_run(UUID(flow_run.id)).state
        if state is not None and state.is_cancelling():
            return Cancelled(message="It had left by itself before it was cancelled")
    return None


def _unreachable(what: str, error: Exception) -> ServiceError:
    return ServiceError(
        f"the Prefect server did not answer ({type(error).__name__}: {error})",
        where=what,
        remedy="The run itself goes on; `astraflow up` starts a local server again",
        kind="unreachable",
    )
