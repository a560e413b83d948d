"""What touches Prefect, against a temporary server: the launcher, the run's page, the experiment flow."""

import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
from prefect.client.schemas.objects import Artifact, FlowRun
from prefect.states import Cancelled

import flows.experiment as experiment_module
from astraflow.config import RunConfig
from astraflow.recipe import load_run_config
from astraflow.records import DecisionRecord, Epoch, Stopped, encode
from flows.children import ChildSpec, children_of
from flows.experiment import experiment
from flows.launcher import ChildRun, PrefectLauncher
from infra.launch import flow_run_state, launch, raise_if_dead
from infra.places import Server
from storage import open_store
from storage.errors import ConfigError, ServiceError
from storage.keys import RunKeys
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
    assert found.name == f"{config.name}/trainer-solver life 2"
    assert {f"run:{config.name}", "policy:solver", "child:trainer-solver", "life:2"} <= set(found.tags)
    assert found.parameters == {"run": config.name, "store": config.store, "policy": "solver"}


def test_a_region_without_a_deployment_of_its_own_uses_the_local_one(config: RunConfig) -> None:
    launcher = PrefectLauncher(config.name, config.store)
    pool = next(spec for spec in children_of(config) if spec.role == "pool")
    assert pool.deployments == ("far-away", "local")
    assert "region:far-away" in flow_run(launcher.start(pool, 1).id).tags


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


def test_the_page_is_one_artifact(config: RunConfig) -> None:
    @flow
    def writes() -> None:
        page = RunPage(config.name)
        page.write("one")
        page.write("two")
        page.finish("three", {"steps": 4})

    writes()
    found = artifacts(f"run-{config.name}")
    assert len(found) == 1
    assert str(found[0].data).startswith("three")
    assert "| steps | 4 |" in str(found[0].data)


def test_begin_run_creates_once_and_resumes(config: RunConfig) -> None:
    @flow
    def begins(resume: bool) -> RunConfig:
        return begin_run(config, resume=resume)

    created = begins(False)
    assert created.problem_count == 5
    assert begins(True) == created
    with pytest.raises(ConfigError, match="already"):
        begins(False)


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
        run = self.runs.setdefault(spec.key, ChildRun(f"{spec.key:-<8.8}", life, "RUNNING"))
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
    assert page.startswith(f"# {config.name}: over (all policies have ended)")
    assert "## Figures" in page
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
    assert "ended early" in str(artifacts(f"run-{config.name}")[0].data)


def test_an_experiment_that_cannot_begin_says_why(config: RunConfig) -> None:
    nowhere = config.policies["solver"].model_copy(update={"model": "/nowhere"})
    with pytest.raises(ConfigError, match="no model folder"):
        experiment(config.model_copy(update={"policies": {"solver": nowhere}}))
