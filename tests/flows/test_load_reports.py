"""Load reports in Prefect: a table in place, one event each over all lives, and nothing that hurts a run."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey, FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import Artifact
from prefect.events.actions import DoNothing
from prefect.events.filters import EventFilter, EventIDFilter, EventNameFilter, EventRelatedFilter, EventResourceFilter
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import ReceivedEvent, ResourceSpecification
from prefect.settings import PREFECT_API_URL, temporary_settings

from astraflow import open_run
from astraflow import records as r
from astraflow.bootstrap import create_run
from astraflow.config import RunConfig
from astraflow.follow import RunFollower
from astraflow.query.loads import load_reports
from astraflow.query.run import Run
from flows.children import children_of
from flows.launcher import PrefectLauncher
from storage import open_store
from storage.keys import RunKeys
from tasks.load_reports import EVENT, LoadReports, event_id
from tasks.report import RunPage

pytestmark = pytest.mark.usefixtures("prefect_server")
PATIENCE_S = 60.0


class Reported:
    """A run whose manager has said load reports."""

    def __init__(self, store: str) -> None:
        self.config = create_run(
            open_store(store),
            RunConfig.model_validate(
                {
                    "name": f"run-{uuid.uuid4().hex[:8]}",
                    "store": store,
                    "policies": {"solver": {"model": "tiny-qwen3"}},
                    "problems": {"source": "addition", "options": {"digits": 1, "count": 5}},
                }
            ),
        )
        self.store, self.keys = open_store(store), RunKeys(self.config.name)
        self.seq = 0
        self.decide(r.Epoch(n=1, holder="m", data_hash="", config_hash="", code=""))

    def decide(self, *decisions: r.AnyDecision) -> None:
        record = r.DecisionRecord(
            id=r.new_id(), epoch=1, now=float(self.seq), cursors={}, observations={}, decisions=list(decisions)
        )
        self.store.create(self.keys.decision(self.seq), r.encode(record))
        self.seq += 1

    def report(self, step: int, policy: str = "solver", **figures: float) -> r.LoadReported:
        figures = {"wait_ratio": 0.2, "produced": 12, "consumed": 10, "lag_mean": 0.5, "lag_0": 4, "lag_1": 4} | figures
        pool = {"rate": 2.5, "room": 3.0, "capacity": 8.0, "held": 5.0, "version": step, "behind": 0.0}
        return r.LoadReported(policy=policy, step=step, figures=figures, pools={"pool-far-1": pool})

    def opened(self) -> Run:
        return open_run(f"{self.config.store}/{self.config.name}")

    def ids(self) -> list[uuid.UUID]:
        return [event_id(report) for report in load_reports(self.opened())]

    @property
    def resource(self) -> str:
        return f"astraflow.run.{self.config.name}"


@pytest.fixture
def reported(tmp_path: Path) -> Reported:
    return Reported(tmp_path.as_uri())


def read_events(wanted: EventFilter) -> list[ReceivedEvent]:
    with get_client(sync_client=True) as client:
        return client.read_events(wanted, limit=50).events


def events_of(reported: Reported, least: int) -> list[ReceivedEvent]:
    """All events of the run, once the server has written at least so many: it does that after it has answered."""

    def found() -> list[ReceivedEvent]:
        return read_events(EventFilter(resource=EventResourceFilter(id=[reported.resource])))  # until now

    waited(lambda: len(found()) >= least, f"{least} events of {reported.resource}")
    return sorted(found(), key=lambda event: event.payload["decision"])


def waited(done: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not done():
        assert time.monotonic() < deadline, f"waited {PATIENCE_S:g} s for {what}"
        time.sleep(0.2)


def tables(reported: Reported) -> list[Artifact]:
    key = ArtifactFilter(key=ArtifactFilterKey(any_=[f"load-{reported.config.name}"]))
    with get_client(sync_client=True) as client:
        return client.read_artifacts(artifact_filter=key)


def rows(artifact: Artifact) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(str(artifact.data))
    return found


def test_each_report_is_a_row_and_an_event_with_its_figures(reported: Reported) -> None:
    flow_run = str(uuid.uuid4())
    loads = LoadReports(reported.opened(), None)
    loads.write()
    assert tables(reported) == []
    reported.decide(reported.report(10))
    reported.decide(r.Paused(policy="solver"), reported.report(20, wait_ratio=0.01, dropped_stale=3))
    loads = LoadReports(reported.opened(), flow_run)
    loads.write()
    (table,) = tables(reported)
    assert str(table.flow_run_id) == flow_run
    assert [(row["step"], row["load"], row["wait ratio"]) for row in rows(table)] == [
        ("20", "ample", "1.0%"),
        ("10", "starved", "20.0%"),
    ]
    assert rows(table)[0]["parts by lag"] == "0: 4, 1: 4"
    assert rows(table)[0]["pools, groups/s"] == "pool-far-1 2.50/s v20, room 3"
    first, second = events_of(reported, 2)
    assert {first.event, second.event} == {EVENT}
    assert first.payload["pools"]["pool-far-1"] == {
        "rate": 2.5, "room": 3.0, "capacity": 8.0, "held": 5.0, "version": 10, "behind": 0.0
    }  # fmt: skip
    assert (first.payload["wait_ratio"], first.payload["produced"], first.payload["consumed"]) == (0.2, 12, 10)
    assert (first.payload["lags"], first.payload["room"], first.payload["step"]) == ({"0": 4, "1": 4}, 3, 10)
    assert second.payload["dropped"] == {"stale": 3}
    assert second.resource["astraflow.load"] == "ample"
    by_flow_run = EventFilter(
        event=EventNameFilter(name=[EVENT]), related=EventRelatedFilter(id=[f"prefect.flow-run.{flow_run}"])
    )
    assert len(read_events(by_flow_run)) == 2


def test_a_report_is_told_once_over_all_lives_and_none_is_left_out(
    reported: Reported, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported.decide(reported.report(10, policy="solver"), reported.report(10, policy="verifier"))
    first = LoadReports(reported.opened(), None)
    first.write()
    assert len(events_of(reported, 2)) == 2
    for step in range(20, 20 + 10 * 60, 10):  # nobody told Prefect of these: more than it takes in one answer
        reported.decide(reported.report(step))
    sent: list[str] = []
    watch_posts(monkeypatch, sent)
    later = LoadReports(reported.opened(), None)
    later.write()
    later.write()
    assert len(sent) == len(set(sent)) == 60, "the two that the server has were sent again, or some were left out"
    assert set(sent) == {str(id) for id in reported.ids()[2:]}
    (table,) = {str(artifact.id): artifact for artifact in tables(reported) if len(rows(artifact)) > 2}.values()
    assert len(rows(table)) == 62
    sent.clear()
    waited(lambda: len(read_events(EventFilter(id=EventIDFilter(id=reported.ids()[-50:])))) == 50, "the events")
    LoadReports(reported.opened(), None).write()
    assert sent == []


def watch_posts(monkeypatch: pytest.MonkeyPatch, sent: list[str]) -> None:
    request = SyncPrefectClient.request

    def watched(self: SyncPrefectClient, method: Any, path: Any, **rest: Any) -> httpx.Response:
        answer = request(self, method, path, **rest)
        if path == "/events":
            sent.extend(event["id"] for event in rest["json"])
        return answer

    monkeypatch.setattr(SyncPrefectClient, "request", watched)


def test_the_table_stays_one_artifact_and_shows_the_newest(reported: Reported) -> None:
    run = reported.opened()
    loads = LoadReports(run, None)
    for step in (10, 20, 30):
        reported.decide(reported.report(step))
        run.refresh()
        loads.write()
    (table,) = tables(reported)
    assert [row["step"] for row in rows(table)] == ["30", "20", "10"]
    before = table.updated
    loads.write()
    assert tables(reported)[0].updated == before


def test_the_flow_runs_of_a_run_link_to_its_load_reports(reported: Reported) -> None:
    reported.decide(reported.report(10))
    manager, *_ = children_of(reported.config)
    id = PrefectLauncher(reported.config.name, reported.config.store).start(manager, 1).id
    page = RunPage(RunFollower(reported.store, reported.config))
    for _ in range(2):
        page.write({manager.key: id})
    on_it = FlowRunFilter(id=FlowRunFilterId(any_=[uuid.UUID(id)]))
    with get_client(sync_client=True) as client:
        (link,) = client.read_artifacts(flow_run_filter=on_it)
    assert f"/artifacts/artifact/{tables(reported)[0].id}" in str(link.data)


def test_while_the_server_is_away_nothing_happens_and_then_everything_is_told(
    reported: Reported, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported.decide(reported.report(10))
    notes: list[str] = []
    page = RunPage(RunFollower(reported.store, reported.config), notes.append)
    asked: list[str] = []
    request = SyncPrefectClient.request

    def watched(self: SyncPrefectClient, method: Any, path: Any, **rest: Any) -> httpx.Response:
        asked.append(path)
        return request(self, method, path, **rest)

    with temporary_settings(updates={PREFECT_API_URL: "http://127.0.0.1:9/api"}), monkeypatch.context() as patch:
        patch.setattr(SyncPrefectClient, "request", watched)
        page.write({"trainer-solver": str(uuid.uuid4())})
        page.write({"trainer-solver": str(uuid.uuid4())})
    assert notes == []
    assert asked == ["/artifacts/"] * 4, "more than the page and the table waited for a server that is away"
    assert read_events(EventFilter(id=EventIDFilter(id=reported.ids()))) == []
    page.write({})
    assert len(events_of(reported, 1)) == 1
    assert [note.partition(":")[0] for note in notes] == ["the run's live page", "the run's load reports"]


def test_a_server_that_refuses_is_a_note_and_the_page_is_drawn(
    reported: Reported, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported.decide(reported.report(10))
    request = SyncPrefectClient.request

    def refused(self: SyncPrefectClient, method: Any, path: Any, **rest: Any) -> httpx.Response:
        return request(self, method, path, **rest | {"json": ["no event"]} if path == "/events" else rest)

    monkeypatch.setattr(SyncPrefectClient, "request", refused)
    notes: list[str] = []
    page = RunPage(RunFollower(reported.store, reported.config), notes.append)
    page.write({})
    page.write({})
    assert [note.partition(":")[0] for note in notes] == ["the run's live page", "the load reports could not be told"]
    assert "422" in notes[-1]
    monkeypatch.setattr("astraflow.pages.page.page", lambda *_, **__: 1 / 0)
    monkeypatch.setattr(SyncPrefectClient, "request", request)
    page.write({})
    assert len(events_of(reported, 1)) == 1, "what hurts the page must not keep the reports back"


def test_an_automation_is_triggered_by_a_starved_run_and_by_no_other(reported: Reported) -> None:
    name = f"grow {reported.config.name}"
    with get_client(sync_client=True) as client:
        made = AutomationCore(
            name=name,
            trigger=EventTrigger(
                match=ResourceSpecification.model_validate(
                    {"prefect.resource.id": "astraflow.run.*", "astraflow.load": "starved"}
                ),
                expect={EVENT},
                for_each={"prefect.resource.id"},
                posture=Posture.Reactive,
                threshold=1,
                within=timedelta(0),
            ),
            actions=[DoNothing()],
        )
        id = client.create_automation(made)

    def triggered() -> list[ReceivedEvent]:
        event = EventNameFilter(name=["prefect.automation.triggered"])
        return read_events(EventFilter(event=event, resource=EventResourceFilter(id=[f"prefect.automation.{id}"])))

    reported.decide(reported.report(10, wait_ratio=0.02))
    run = reported.opened()
    loads = LoadReports(run, None)
    loads.write()
    events_of(reported, 1)
    reported.decide(reported.report(20, wait_ratio=0.5))
    run.refresh()
    loads.write()
    waited(lambda: bool(triggered()), f"the automation {name}")
    (found,) = triggered()
    assert found.payload["triggering_event"]["payload"]["step"] == 20
