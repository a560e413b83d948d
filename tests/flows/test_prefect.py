"""What touches Prefect, against a temporary server: the launcher, the run's page, the experiment flow."""

import asyncio
import io
import shutil
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from prefect import flow, runtime
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey, FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import Artifact, FlowRun, State
from prefect.exceptions import ParameterTypeError
from prefect.states import Cancelled, Cancelling, Crashed
from rich.console import Console

import flows.experiment as experiment_module
from astraflow.bootstrap import create_run
from astraflow.config import RunConfig
from astraflow.follow import RunFollower
from astraflow.participant import DecisionsReader
from astraflow.recipe import load_run_config
from astraflow.records import (
    AnyDecision,
    DecisionRecord,
    DrainRequested,
    Epoch,
    FactRecord,
    Paused,
    PoolsWanted,
    Resumed,
    Scaled,
    Status,
    Stopped,
    Wanted,
    decode,
    encode,
)
from flows.children import ChildSpec, children_of
from flows.experiment import experiment
from flows.launcher import NO_HEARTBEAT, ChildRun, PrefectLauncher, known_deployments
from flows.operate import operate
from infra import following
from infra.deployments import prepare_regions, region_deployments
from infra.launch import Launched, cancel, flow_run_state, launch, raise_if_dead
from infra.places import Server
from infra.regions import Place
from storage import open_store
from storage.errors import ConfigError, ServiceError
from storage.keys import RunKeys
from storage.store import ObjectStore
from tasks import bootstrap, prefect_api
from tasks.artifacts import LiveArtifact, artifact_url
from tasks.bootstrap import begin_run
from tasks.report import RunPage

pytestmark = pytest.mark.usefixtures("prefect_server")


@pytest.fixture
def config(tmp_path: Path) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": f"run-{uuid.uuid4().hex[:8]}",
            "store": tmp_path.as_uri(),
            "policies": {"solver": {"model": "tiny-qwen3"}},
            "problems": {"source": "addition", "options": {"digits": 1, "count": 5}},
            "pools": {"far": {"region": "far-away"}},
        }
    )


def flow_run(id: str) -> FlowRun:
    with get_client(sync_client=True) as client:
        return client.read_flow_run(UUID(id))


def artifacts(key: str) -> list[Artifact]:
    with get_client(sync_client=True) as client:
        return client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=[key])))


def test_the_same_life_is_the_same_flow_run(config: RunConfig) -> None:
    launcher = PrefectLauncher(config.name, config.store)
    trainer, pool = (next(s for s in children_of(config) if s.role == role) for role in ("trainer", "pool"))
    first, again, second = launcher.start(trainer, 1), launcher.start(trainer, 1), launcher.start(trainer, 2)
    assert first.id == again.id != second.id
    assert [run.life for run in launcher.find(trainer)] == [2, 1]
    assert launcher.find(pool) == []
    assert PrefectLauncher(config.name, "s3://elsewhere/x").find(trainer) == []
    found = flow_run(second.id)
    assert found.name == f"{config.name}/trainer/solver life 2"
    assert {f"run:{config.name}", "policy:solver", "child:trainer-solver", "life:2"} <= set(found.tags)
    assert found.parameters == {"run": config.name, "store": config.store, "policy": "solver", "ranks": 1}


def test_a_region_without_a_deployment_of_its_own_uses_the_local_one(config: RunConfig) -> None:
    launcher = PrefectLauncher(config.name, config.store)
    pool = next(spec for spec in children_of(config) if spec.role == "pool")
    assert pool.deployments == ("far-away", "local")
    started = flow_run(launcher.start(pool, 1).id)
    assert "region:far-away" in started.tags
    assert started.name == f"{config.name}/pool/far-away/far"


def test_cancel_and_states(config: RunConfig) -> None:
    launcher = PrefectLauncher(config.name, config.store)
    manager = launcher.start(children_of(config)[0], 1)
    assert manager.is_living
    launcher.cancel(manager.id)
    state = launcher.states([manager.id])[manager.id].state
    assert state in ("CANCELLING", "CANCELLED")
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(UUID(manager.id), Cancelled(message="by hand"), force=True)
    assert launcher.states([manager.id])[manager.id] == ChildRun(manager.id, 1, "CANCELLED", "by hand")
    launcher.cancel(manager.id)
    launcher.cancel(str(uuid.uuid4()))
    assert launcher.states([]) == {}


def test_one_that_is_presumed_dead_can_be_cancelled(config: RunConfig) -> None:
    launcher = PrefectLauncher(config.name, config.store)
    presumed, dead = (launcher.start(spec, 1) for spec in children_of(config)[:2])
    with get_client(sync_client=True) as client:
        for run, message in ((presumed, f"{NO_HEARTBEAT} for 180 s"), (dead, "exit code -9")):
            client.set_flow_run_state(UUID(run.id), Crashed(message=message), force=True)
    for run in (presumed, dead):
        launcher.cancel(run.id)
    states = launcher.states([presumed.id, dead.id])
    assert states[presumed.id].state == "CANCELLING"
    assert states[dead.id].state == "CRASHED"


@pytest.mark.parametrize("is_asked", [True, False])
def test_a_flow_that_ends_while_it_is_being_cancelled_is_shown_as_cancelled(*, is_asked: bool) -> None:
    """Its runner was cut off and missed the call: one that just returns is shown as being cancelled for ever."""
    ids = []

    @flow
    def leaves() -> State | None:
        ids.append(UUID(runtime.flow_run.id))
        with get_client(sync_client=True) as client:
            client.set_flow_run_state(ids[0], Cancelling(), force=True)
        return prefect_api.last_state() if is_asked else None

    leaves(return_state=True)
    with get_client(sync_client=True) as client:
        state = client.read_flow_run(ids[0]).state
    assert state is not None and state.type == ("CANCELLED" if is_asked else "CANCELLING")


def test_a_flow_that_nobody_cancelled_is_completed() -> None:
    @flow
    def leaves() -> State | None:
        return prefect_api.last_state()

    assert leaves(return_state=True).is_completed()
    assert prefect_api.last_state() is None, "outside of a flow run"


def test_more_children_than_a_page_are_all_found(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefect_api, "_PAGE", 2)
    launcher, manager = PrefectLauncher(config.name, config.store), children_of(config)[0]
    ids = [launcher.start(manager, life).id for life in range(1, 6)]
    assert [run.life for run in launcher.find(manager)] == [5, 4, 3, 2, 1]
    assert set(launcher.states(ids)) == set(ids)


def test_which_deployments_are_known() -> None:
    asked = ["raas_pool/far-away", "raas_pool/local", "nothing/local", "raas_pool/local"]
    assert known_deployments(asked) == {"raas_pool/local"}


def test_regions_get_deployments_and_give_them_up(config: RunConfig) -> None:
    region, pool = f"r-{uuid.uuid4().hex[:8]}", f"p-{uuid.uuid4().hex[:8]}"
    names = [f"raas_pool/{region}", f"region_mirror/{region}"]

    async def prepare(*wanted: Place) -> None:
        async with get_client() as client:
            await prepare_regions(client, wanted)

    here, there = Place(region, None, True), Place(region, pool, False)
    asyncio.run(prepare(here))
    for deployment in region_deployments(here):
        deployment.apply()
    asyncio.run(prepare(here))
    assert known_deployments(names) == set(names)
    own = config.model_copy(update={"pools": {"far": config.pools["far"].model_copy(update={"region": region})}})
    (spec,) = [spec for spec in children_of(own) if spec.role == "pool"]
    assert PrefectLauncher(config.name, config.store).start(spec, 1).deployment == names[0]
    asyncio.run(prepare(there))  # now on a work pool: what was served here would take its flow runs
    assert known_deployments(names) == set()
    for deployment in region_deployments(there):
        deployment.apply()
    asyncio.run(prepare(there))
    with get_client(sync_client=True) as client:
        found = client.read_deployment_by_name(names[0])
        assert client.read_work_pool(pool).type == "process"
    assert (found.work_pool_name, found.work_queue_name) == (pool, region)
    asyncio.run(prepare())
    assert known_deployments([*names, "raas_pool/local"]) == {"raas_pool/local"}


def test_an_artifact_that_was_deleted_is_made_anew() -> None:
    artifact = LiveArtifact("markdown", key=f"live-{uuid.uuid4().hex[:8]}", flow_run=None)
    artifact.write("one")
    first = artifact.id
    assert first is not None
    with get_client(sync_client=True) as client:
        client.delete_artifact(first)
    artifact.write("two")
    assert artifact.id not in (None, first)
    assert [found.data for found in artifacts(str(artifact._new.key))] == ["two"]


def test_a_live_artifact_is_one_object_however_often_it_is_written() -> None:
    key = f"live-{uuid.uuid4().hex[:8]}"
    artifact = LiveArtifact("progress", key=key, flow_run=None, description="first")
    artifact.write(10.0)
    artifact.write(20.0, "second")
    (found,) = artifacts(key)
    assert (found.data, found.description, found.type) == (20.0, "second", "progress")
    before = found.updated
    artifact.write(20.0, "second")
    assert artifacts(key)[0].updated == before
    assert artifact_url(found.id).endswith(f"/artifacts/artifact/{artifact.id}")


def test_a_run_shows_as_a_page_a_table_and_a_progress_and_its_flow_runs_link_to_it(config: RunConfig) -> None:
    config = create_run(open_store(config.store), config)
    children = [PrefectLauncher(config.name, config.store).start(spec, 1) for spec in children_of(config)]
    ids = {spec.key: child.id for spec, child in zip(children_of(config), children, strict=True)}
    notes: list[str] = []
    view = RunFollower(open_store(config.store), config)
    page = RunPage(view, notes.append)
    page.write(ids, ["began"])
    page.write(ids, ["began", "went on\n  although"])
    (shown,) = artifacts(f"run-{config.name}")
    assert str(shown.data).startswith(f"# {config.name}: created")
    assert "- went on although\n" in str(shown.data)
    assert "data:image/svg+xml;base64," in str(shown.data)
    (progress,) = artifacts(f"trainer-{config.name}-solver")
    assert (progress.data, progress.description) == (0.0, "solver: step 0 of 400")
    assert str(progress.flow_run_id) == ids["trainer-solver"]
    assert len(artifacts(f"pools-{config.name}")) == 1
    with get_client(sync_client=True) as client:
        for id in ids.values():
            on_it = client.read_artifacts(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[UUID(id)])))
            links = [artifact for artifact in on_it if artifact.key is None]
            assert [f"/artifacts/artifact/{shown.id}" in str(link.data) for link in links] == [True]
    assert notes == [f"the run's live page: {artifact_url(shown.id)}"]


def test_a_page_that_cannot_be_drawn_is_a_note(config: RunConfig) -> None:
    store, keys = open_store(config.store), RunKeys(config.name)
    config = create_run(store, config)
    notes: list[str] = []
    page = RunPage(RunFollower(store, config), notes.append)
    store.create(keys.decision(0), b"{broken")
    page.write({})
    page.write({})
    assert len(notes) == 1, notes
    assert "decisions/0000000000.json" in notes[0]


def test_no_fault_of_the_page_goes_further(config: RunConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what drawing meets nor what the server refuses, on the page or behind it."""
    store = open_store(config.store)
    config = create_run(store, config)
    notes: list[str] = []
    page = RunPage(RunFollower(store, config), notes.append)
    page.write({"trainer-solver": "not an id"})
    page.write({"trainer-solver": "not an id"})
    assert [note.partition(":")[0] for note in notes] == ["the run's live page", "the run's page could not be drawn"]
    monkeypatch.setattr("astraflow.pages.page.page", lambda *_, **__: 1 / 0)
    page.write({})
    assert notes[-1] == "the run's page could not be drawn: ZeroDivisionError: division by zero"


def test_steering_from_a_form(config: RunConfig) -> None:
    with pytest.raises(ConfigError, match="no run"):
        operate(run="nothing", action="pause", store=config.store)
    store, keys = open_store(config.store), RunKeys(config.name)
    create_run(store, config)
    with pytest.raises(ConfigError, match="no policy 'jim'"):
        operate(run=config.name, action="pause", policy="jim", store=config.store)
    with pytest.raises(ConfigError, match="needs a participant"):
        operate(run=config.name, action="drain", store=config.store)
    with pytest.raises(ConfigError, match=r"no (participant|pool or trainer) 'pool-x'"):
        operate(run=config.name, action="drain", participant="pool-x", store=config.store)
    with pytest.raises(ConfigError, match="no pool in a region 'mars'"):
        operate(run=config.name, action="scale", region="mars", pools="2", store=config.store)
    with pytest.raises(ConfigError, match="no pool in a region 'mars'"):
        operate(run=config.name, action="pause", region="mars", store=config.store)
    with pytest.raises(ConfigError, match="-2 pools are not possible"):
        operate(run=config.name, action="scale", region="far-away", pools="-2", store=config.store)
    with pytest.raises(ConfigError, match="'' is not a number of pools"):
        operate(run=config.name, action="scale", region="far-away", store=config.store)
    with pytest.raises(ConfigError, match=r"pause takes no pools.*or choose scale"):
        operate(run=config.name, action="pause", pools="2", store=config.store)
    with pytest.raises(ConfigError, match=r"stop takes no participant.*or choose drain"):
        operate(run=config.name, action="stop", participant="pool-x", store=config.store)
    with pytest.raises(ParameterTypeError, match="action"):
        operate(run=config.name, action="fly", store=config.store)  # type: ignore[arg-type]
    manager = threading.Thread(target=answer_wishes, args=(store, keys))
    manager.start()
    status = Status(participant="pool-far-1", role="pool", state="live")
    store.put(keys.status(status.participant), encode(status))
    assert "to pause" in operate(run=config.name, action="pause", store=config.store)
    assert "to resume" in operate(run=config.name, action="resume", store=config.store)
    assert "to pause" in operate(run=config.name, action="pause", region="far-away", store=config.store)
    assert "to resume" in operate(run=config.name, action="resume", region=" far-away ", store=config.store)
    said = operate(run=config.name, action="scale", region=" far-away ", pools="2", store=config.store)
    assert "pools wanted are far-away 2; far-away stays so" in said
    assert "to drain" in operate(run=config.name, action="drain", participant=status.participant, store=config.store)
    assert "has stopped" in operate(run=config.name, action="stop", store=config.store)
    manager.join()
    decided = [r for _, record in DecisionsReader(store, keys).poll() for r in record.decisions]
    assert [type(decision).__name__ for decision in decided] == [
        "Paused",
        "Resumed",
        "Resumed",
        "Paused",
        "Resumed",
        "Scaled",
        "DrainRequested",
        "Stopped",
    ]


def answer_wishes(store: ObjectStore, keys: RunKeys) -> None:
    """A manager that does whatever an operator wants, until it is to stop."""
    answers = {
        "pause": lambda wish: Paused(policy=wish.target, region=wish.region),
        "resume": lambda wish: Resumed(policy=wish.target, region=wish.region),
        "drain": lambda wish: DrainRequested(participants=[wish.target], reason=wish.reason),
        "stop": lambda wish: Stopped(reason=wish.reason),
    }
    seen: set[str] = set()
    seq = 0
    while True:
        for info in store.list(keys.outboxes):
            if info.key in seen:
                continue
            seen.add(info.key)
            wishes = decode(store.get(info.key), FactRecord, where=info.key).facts
            decisions: list[AnyDecision] = [answers[wish.what](wish) for wish in wishes if isinstance(wish, Wanted)]
            asked = [wish for wish in wishes if isinstance(wish, PoolsWanted)]
            decisions += [Scaled(pools={wish.region: wish.pools}, held=[wish.region], reason="") for wish in asked]
            record = DecisionRecord(
                id=str(seq), epoch=1, now=float(seq), cursors={}, observations={}, decisions=decisions
            )
            store.create(keys.decision(seq), encode(record))
            seq += 1
            if any(isinstance(decision, Stopped) for decision in decisions):
                return
        time.sleep(0.02)


def test_a_flow_run_from_a_form_gets_its_name_and_tags(config: RunConfig, playing: "type[PlayingLauncher]") -> None:
    state = experiment(config, return_state=True)
    assert state.is_completed()
    found = flow_run(str(state.state_details.flow_run_id))
    assert found.name == f"{config.name}/experiment"
    assert {"astraflow", f"run:{config.name}", "policy:solver"} <= set(found.tags)


def test_begin_run_creates_once_and_resumes(config: RunConfig) -> None:
    @flow
    def begins(resume: bool) -> RunConfig:
        return begin_run(config, resume=resume)

    created = begins(False)
    assert created.problem_count == 5
    assert begins(True) == created
    with pytest.raises(ConfigError, match="already"):
        begins(False)


def test_a_run_goes_on_in_the_store_where_it_was_found(config: RunConfig, tmp_path: Path) -> None:
    """The frozen config names the store of its creation; the run may have moved since."""

    @flow
    def begins(config: RunConfig) -> RunConfig:
        return begin_run(config, resume=True)

    create_run(open_store(config.store), config)
    shutil.copytree(tmp_path / config.name, tmp_path / "moved" / config.name)
    moved = config.model_copy(update={"store": str(tmp_path / "moved")})
    assert begins(moved).store == (tmp_path / "moved").as_uri()
    assert begins(config).store == config.store


def test_a_run_may_go_on_with_other_ranks_and_nothing_else(config: RunConfig) -> None:
    @flow
    def begins(config: RunConfig) -> RunConfig:
        return begin_run(config, resume=True)

    create_run(open_store(config.store), config)
    asked = {**config.model_dump(), "trainer": {**config.trainer.model_dump(), "ranks": 3, "lr": 0.5}}
    begun = begins(RunConfig.model_validate(asked))
    assert begun.trainer_of("solver") == config.trainer_of("solver").model_copy(update={"ranks": 3})
    assert begun.problems == config.problems
    (trainer,) = [spec for spec in children_of(begun) if spec.role == "trainer"]
    assert trainer.parameters["ranks"] == 3


def test_a_form_may_name_folders(config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They mean the same to every process, wherever it starts: that of a region too."""

    @flow
    def begins() -> RunConfig:
        regions = {"far-away": {"store": "far-bucket"}}
        form = RunConfig.model_validate({**config.model_dump(), "store": "near", "regions": regions})
        return begin_run(form, resume=False)

    monkeypatch.chdir(tmp_path)
    begun = begins()
    assert begun.store == (tmp_path / "near").as_uri()
    assert begun.regions["far-away"].store == (tmp_path / "far-bucket").as_uri()
    assert load_run_config(open_store(begun.store), config.name).regions == begun.regions


def test_cancelling_what_was_launched(config: RunConfig) -> None:
    launched = launch(Server("http://127.0.0.1:1/api", is_local=True), config, resume=False)
    cancel(launched)
    assert flow_run_state(launched) in ("CANCELLING", "CANCELLED")
    with pytest.raises(ServiceError, match="refused to cancel"):
        cancel(Launched(str(uuid.uuid4()), "http://nowhere"))


def test_a_run_that_is_not_there_yet_is_stopped_by_its_experiment(
    config: RunConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C twice, right after the launch."""
    presses = iter([True, True])

    def pressed(_: float) -> None:
        if next(presses, False):
            raise KeyboardInterrupt

    monkeypatch.setattr(following.time, "sleep", pressed)
    launched = launch(Server("http://127.0.0.1:1/api", is_local=True), config, resume=False)
    output = io.StringIO()
    assert not following.follow(open_store(config.store), config.name, launched, Console(file=output, width=200))
    assert flow_run_state(launched) in ("CANCELLING", "CANCELLED")
    assert f"the experiment is being cancelled; there was no run {config.name} yet" in output.getvalue()


def test_launching_from_the_command_line(config: RunConfig) -> None:
    server = Server("http://127.0.0.1:1/api", is_local=True)
    launched = launch(server, config, resume=False)
    assert launched.url == f"http://127.0.0.1:1/runs/flow-run/{launched.id}"
    assert RunConfig.model_validate(flow_run(launched.id).parameters["config"]) == config
    assert flow_run_state(launched) == "SCHEDULED"
    raise_if_dead(launched, config.name, exists=True)
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(UUID(launched.id), Cancelled(message="no more"), force=True)
    with pytest.raises(ServiceError, match="was cancelled: no more") as caught:
        raise_if_dead(launched, config.name, exists=True)
    assert "--resume" in caught.value.remedy


class PlayingLauncher:
    """Children that need no process: when all are started, the run stops, or the flow is interrupted."""

    def __init__(self, run: str, store: str) -> None:
        self.store, self.keys = open_store(store), RunKeys(run)
        self.runs: dict[str, ChildRun] = {}
        PlayingLauncher.newest = self

    newest: "PlayingLauncher"
    interrupt = False

    def start(self, spec: ChildSpec, life: int) -> ChildRun:
        run = self.runs.setdefault(
            spec.key, ChildRun(str(uuid.uuid5(uuid.NAMESPACE_DNS, f"{self.keys.run}{spec.key}")), life, "RUNNING")
        )
        return run

    def find(self, spec: ChildSpec) -> list[ChildRun]:
        return []

    def states(self, ids: Sequence[str]) -> dict[str, ChildRun]:
        if PlayingLauncher.interrupt:
            raise KeyboardInterrupt  # as TerminationSignal, which Prefect would send on to this process
        decisions = [
            Epoch(n=1, holder="m", data_hash="", config_hash="", code=""),
            Stopped(reason="all policies have ended"),
        ]
        record = DecisionRecord(id="1", epoch=1, now=0, cursors={}, observations={}, decisions=list(decisions))
        self.store.create(self.keys.decision(0), encode(record))
        return {run.id: run for run in self.runs.values() if run.id in ids}

    def cancel(self, id: str) -> None:
        self.runs = {key: replace(run, state="CANCELLED") if run.id == id else run for key, run in self.runs.items()}


@pytest.fixture
def playing(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[PlayingLauncher]]:
    monkeypatch.setattr(experiment_module, "PrefectLauncher", PlayingLauncher)
    monkeypatch.setattr(experiment_module, "TICK_S", 0.05)
    monkeypatch.setattr(experiment_module, "LEAVE_TIMEOUT_S", 0.2)
    PlayingLauncher.interrupt = False
    yield PlayingLauncher


def test_the_experiment_starts_all_children_and_returns_the_figures(
    config: RunConfig, playing: type[PlayingLauncher]
) -> None:
    figures = experiment(config)
    assert (figures["run"], figures["state"]) == (config.name, "stopped")
    launcher = playing.newest
    assert set(launcher.runs) == {"manager", "trainer-solver", "pool-far"}
    assert {run.state for run in launcher.runs.values()} == {"CANCELLED"}  # they had not left in time
    page = str(artifacts(f"run-{config.name}")[0].data)
    assert page.startswith(f"# {config.name}: stopped (all policies have ended)")
    assert "| step | 0 / 400 |" in page
    assert load_run_config(open_store(config.store), config.name).problem_count == 5


def test_a_finished_run_is_resumed_to_its_figures(config: RunConfig, playing: type[PlayingLauncher]) -> None:
    experiment(config)
    figures = experiment(config, resume=True)
    assert figures["state"] == "stopped"
    assert playing.newest.runs == {}


def test_a_cancelled_experiment_cancels_its_children(config: RunConfig, playing: type[PlayingLauncher]) -> None:
    playing.interrupt = True
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        experiment(config)
    assert time.monotonic() - start < 25
    assert {run.state for run in playing.newest.runs.values()} == {"CANCELLED"}
    heading = str(artifacts(f"run-{config.name}")[0].data).splitlines()[0]
    assert heading == f"# {config.name}: cancelled; `astraflow run --resume {config.name}` goes on"


def test_an_experiment_that_is_run_again_adopts_what_it_started(
    config: RunConfig, playing: type[PlayingLauncher], monkeypatch: pytest.MonkeyPatch
) -> None:
    """«Retry» in Prefect's pages, after a crash: a second life of the same flow run, not told to resume."""
    create_run(open_store(config.store), config)
    alive = {spec.key: [ChildRun(str(uuid.uuid4()), 3, "RUNNING")] for spec in children_of(config)}
    monkeypatch.setattr(PlayingLauncher, "find", lambda self, spec: alive[spec.key])
    monkeypatch.setattr(experiment_module, "is_later_life", lambda: True)
    monkeypatch.setattr(bootstrap, "is_later_life", lambda: True)
    assert experiment(config)["state"] == "stopped"
    assert playing.newest.runs == {}, "something was started beside what lives"


def test_an_experiment_that_cannot_begin_says_why(config: RunConfig) -> None:
    nowhere = config.policies["solver"].model_copy(update={"model": "/nowhere"})
    with pytest.raises(ConfigError, match="no model folder"):
        experiment(config.model_copy(update={"policies": {"solver": nowhere}}))
