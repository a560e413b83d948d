"""A run's load reports in Prefect: a table that is updated in place, and an event for each report.

The event is for automations: ``astraflow.load-report``, of the resource ``astraflow.run.RUN``, with the report's
figures as its payload. A trigger reads labels only, so these say the policy, and whether its trainer starves.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from uuid import NAMESPACE_URL, UUID, uuid5

from prefect.client.orchestration import get_client
from prefect.events import Event
from prefect.events.filters import EventFilter, EventIDFilter, EventOccurredFilter
from prefect.events.schemas.events import RelatedResource, Resource

from storage.errors import ServiceError
from tasks.artifacts import LiveArtifact, artifact_key
from tasks.prefect_api import reaching_prefect

if TYPE_CHECKING:
    from astraflow.query.loads import LoadReport
    from astraflow.query.run import Run

EVENT = "astraflow.load-report"
SHOWN = 100  # newest rows of the table
_EVER = EventOccurredFilter.model_validate({"until": datetime(9999, 1, 1, tzinfo=UTC)})
"""Prefect's default ends now, and what another machine sent may have happened later than that by its clock."""
_AT_ONCE = 50  # events, also the most that the server gives in one answer


class LoadReports:
    """Tells Prefect of each load report once; what it could not be told, it is told at the next ``write``.

    An event's id is that of its report, and the server is asked which it has: so a later life of the experiment
    repeats nothing, and leaves out nothing that was decided while there was none.
    """

    def __init__(self, run: Run, flow_run: str | None) -> None:
        self._run, self._flow_run = run, flow_run
        self._shown = self._told = -1  # decisions
        self._newest: deque[LoadReport] = deque(maxlen=SHOWN)
        name = run.config.name
        self.table = LiveArtifact(
            "table",
            key=artifact_key("load", name),
            flow_run=flow_run,
            description=f"Load reports of {name}, newest first",
        )

    def write(self) -> None:
        """Bring table and events up to date with what the run's fold holds.

        A server that is away is passed over; one that refuses is the caller's (``HTTPStatusError``).
        """
        from astraflow.pages.loads import load_table  # noqa: PLC0415  # brings pyarrow and duckdb: only needed here
        from astraflow.query.loads import load_reports  # noqa: PLC0415  # as above

        for report in load_reports(self._run, since=self._shown):
            self._newest.appendleft(report)
            self._shown = report.decision
        if self._newest and not self.table.write(json.dumps(load_table(self._newest))):
            return  # each call to a server that hangs would keep the experiment from its children
        with suppress(ServiceError):
            self._tell(list(load_reports(self._run, since=self._told)))

    def _tell(self, reports: Sequence[LoadReport]) -> None:
        """Send the events that the server does not have; only then do they count as told."""
        for first in range(0, len(reports), _AT_ONCE):
            events = {event_id(report): report for report in reports[first : first + _AT_ONCE]}
            with reaching_prefect("a load report"), get_client(sync_client=True) as client:
                asked = EventFilter(id=EventIDFilter(id=list(events)), occurred=_EVER)
                known = {event.id for event in client.read_events(asked, limit=_AT_ONCE).events}
                new = [self._event(id, report) for id, report in events.items() if id not in known]
                if new:
                    client.request("POST", "/events", json=[event.model_dump(mode="json") for event in new])
        if reports:
            self._told = reports[-1].decision

    def _event(self, id: UUID, report: LoadReport) -> Event:
        config = self._run.config
        resource = {
            "prefect.resource.id": f"astraflow.run.{config.name}",
            "prefect.resource.name": config.name,
            "astraflow.store": self._run.store.url,
            "astraflow.policy": report.policy,
            "astraflow.load": report.load,
        }
        related = [(f"prefect.tag.{tag}", "tag") for tag in ("astraflow", f"run:{config.name}")]
        if self._flow_run:
            related.append((f"prefect.flow-run.{self._flow_run}", "flow-run"))
        return Event(
            id=id,
            event=EVENT,
            resource=Resource(resource),
            related=[
                RelatedResource({"prefect.resource.id": id, "prefect.resource.role": role}) for id, role in related
            ],
            payload=report.payload(),
        )


def event_id(report: LoadReport) -> UUID:
    """The event of a report has one id, whoever sends it and however often."""
    return uuid5(NAMESPACE_URL, f"{EVENT}/{report.id}")
