"""Starting, watching and cancelling flow runs through Prefect, behind a seam that a test replaces.

A child is found again by its tags, so a new experiment flow run can adopt what an earlier one started. The number
of the life is part of the idempotency key: asking twice for the same life gives the same flow run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId, FlowRunFilterTags
from prefect.client.schemas.objects import FlowRun
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.states import Cancelling

from flows.children import ChildSpec, store_tag
from tasks.prefect_api import reaching_prefect, read_all_flow_runs

NO_HEARTBEAT = "no heartbeat reached the Prefect server"
"""What the stack's automation says of a flow run that it calls crashed: it knows of silence, not of death."""

LIVING = frozenset({"SCHEDULED", "PENDING", "RUNNING", "PAUSED", "CANCELLING"})


@dataclass(frozen=True, slots=True)
class ChildRun:
    """One flow run of a child: its life number and Prefect's word on it."""

    id: str
    life: int
    state: str  # Prefect's state type: RUNNING, CRASHED, …
    message: str = ""
    deployment: str = ""  # that was used, known when it was started
    work_pool: str = ""  # whose workers start it; empty: a runner of this machine does

    @property
    def is_living(self) -> bool:
        """Whether Prefect believes that it runs or will."""
        return self.state in LIVING

    @property
    def is_presumed_dead(self) -> bool:
        """Whether it was called crashed only because its heartbeats did not reach the server."""
        return self.state == "CRASHED" and self.message.startswith(NO_HEARTBEAT)


class Launcher(Protocol):
    """What the experiment needs of a workflow engine."""

    def start(self, spec: ChildSpec, life: int) -> ChildRun:
        """Start life number ``life`` of a child; the same number twice is the same flow run."""
        ...

    def find(self, spec: ChildSpec) -> list[ChildRun]:
        """All lives of a child that were ever started, newest first."""
        ...

    def states(self, ids: Sequence[str]) -> dict[str, ChildRun]:
        """The present states of flow runs."""
        ...

    def cancel(self, id: str) -> None:
        """Ask a flow run to end, also one that is only presumed dead; no error if it has ended or is not there."""
        ...


class PrefectLauncher:
    """The launcher over a Prefect server: one call each, nothing kept."""

    def __init__(self, run: str, store: str) -> None:
        self._run = run
        self._tags = ("astraflow", f"run:{run}", store_tag(store))

    def start(self, spec: ChildSpec, life: int) -> ChildRun:
        again = f" life {life}" if life > 1 else ""
        return self._run_first_deployment(
            spec,
            parameters=spec.parameters,
            timeout=0,
            as_subflow=False,
            flow_run_name=f"{self._run}/{spec.label}{again}",
            tags=[*self._child_tags(spec), *spec.tags, f"life:{life}"],
            idempotency_key="/".join([*self._tags, spec.key, str(life)]),
        )

    def find(self, spec: ChildSpec) -> list[ChildRun]:
        wanted = FlowRunFilter(tags=FlowRunFilterTags(all_=list(self._child_tags(spec))))
        with _reaching() as client:
            found = read_all_flow_runs(client, wanted)
        return sorted((_child_run(flow_run) for flow_run in found), key=lambda child: -child.life)

    def states(self, ids: Sequence[str]) -> dict[str, ChildRun]:
        if not ids:
            return {}
        with _reaching() as client:
            found = read_all_flow_runs(client, FlowRunFilter(id=FlowRunFilterId(any_=[UUID(id) for id in ids])))
        return {child.id: child for child in map(_child_run, found)}

    def cancel(self, id: str) -> None:
        with _reaching() as client:
            try:
                run = _child_run(client.read_flow_run(UUID(id)))
                if run.is_living or run.is_presumed_dead:
                    client.set_flow_run_state(UUID(id), Cancelling(), force=run.is_presumed_dead)
            except ObjectNotFound:
                return

    def _child_tags(self, spec: ChildSpec) -> tuple[str, ...]:
        return (*self._tags, f"child:{spec.key}")

    def _run_first_deployment(self, spec: ChildSpec, **options: Any) -> ChildRun:
        """Run the first of the child's deployments that the server knows."""
        for name in spec.deployments[:-1]:
            try:
                return _run(f"{spec.flow}/{name}", **options)
            except ObjectNotFound:
                continue
        return _run(f"{spec.flow}/{spec.deployments[-1]}", **options)


def known_deployments(names: Sequence[str]) -> set[str]:
    """Those of ``names`` (``flow/deployment``) that the server has. Raises ``ServiceError`` if it does not answer."""
    known = set()
    with _reaching() as client:
        for name in dict.fromkeys(names):
            try:
                client.read_deployment_by_name(name)
            except ObjectNotFound:
                continue
            known.add(name)
    return known


def _run(name: str, **options: Any) -> ChildRun:
    with reaching_prefect(name):
        flow_run = cast("FlowRun", run_deployment(name, **options))  # a coroutine only where a loop runs
    return replace(_child_run(flow_run), deployment=name)


@contextmanager
def _reaching() -> Iterator[SyncPrefectClient]:
    with reaching_prefect("flow runs"), get_client(sync_client=True) as client:
        yield client


def _child_run(flow_run: FlowRun) -> ChildRun:
    life = next((int(tag[5:]) for tag in flow_run.tags if tag.startswith("life:")), 1)
    state = flow_run.state
    return ChildRun(
        id=str(flow_run.id),
        life=life,
        state=state.type.value if state else "SCHEDULED",
        message=(state.message or "") if state else "",
        work_pool=flow_run.work_pool_name or "",
    )
