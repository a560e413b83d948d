"""Steering, making, explaining and taking out, through the command line, against a manager that really decides."""

import json
import os
import threading
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from astraflow import open_run
from astraflow.bootstrap import check_config, create_run
from astraflow.config import RunConfig
from astraflow.dataflow.manager import run_manager
from astraflow.models import TINY_QWEN3, build_tiny_qwen3, upload_model_files
from astraflow.recipe import load_recipe
from astraflow.records import Status, encode
from infra import checkup
from infra.checkup import FAIL, NOTE, Finding
from infra.cli import app
from infra.log_lines import flow_of, flow_of_participant, is_meant
from storage import open_store
from storage.errors import AstraFlowError, StoreError
from storage.keys import RunKeys
from storage.store import ObjectStore

KEYS = RunKeys("small")
CLOCK = count(2_000_000_000)  # of log files; later than any time that a test writes into them


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("ASTRAFLOW_STORE", "ASTRAFLOW_HOME", "PREFECT_API_URL"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture
def config(place: Path) -> RunConfig:
    return RunConfig.model_validate(
        {
            "name": "small",
            "store": (place / ".astraflow" / "store").as_uri(),
            "policies": {"solver": {"model": TINY_QWEN3}, "verifier": {"model": TINY_QWEN3}},
            "workflow": {"name": "solve_and_verify"},
            "problems": {"source": "addition", "options": {"digits": 1, "count": 5}},
        }
    )


@pytest.fixture
def store(config: RunConfig) -> ObjectStore:
    opened = open_store(config.store)
    create_run(opened, config)
    return opened


@pytest.fixture
def manager(store: ObjectStore, config: RunConfig) -> Iterator[threading.Thread]:
    """The run's manager, in a thread."""
    frozen, _ = check_config(config)
    stop = threading.Event()
    thread = threading.Thread(target=run_manager, args=(store, frozen), kwargs={"holder": "test", "stop": stop})
    thread.start()
    yield thread
    stop.set()
    thread.join()


def astraflow(*words: str) -> Result:
    return CliRunner().invoke(app, words)


def paused(store: ObjectStore) -> dict[str, str]:
    return open_run(f"{store.url}/small").fold.paused


def test_pause_and_resume_a_policy_and_a_run(manager: threading.Thread, store: ObjectStore) -> None:
    said = astraflow("pause", "small", "--policy", "solver")
    assert (said.exit_code, paused(store)) == (0, {"solver": "astraflow pause"}), said.output
    assert "policy solver: paused; `astraflow resume small` goes on" in said.output
    assert json.loads(astraflow("pause", "--last", "--json").output) == {
        "run": "small",
        "policy": None,
        "region": None,
        "state": "paused",
    }
    assert set(paused(store)) == {"solver", ""}
    assert open_run(f"{store.url}/small").figures().state == "paused"
    assert astraflow("resume", "small").exit_code == 0  # everything, however it was paused
    assert paused(store) == {}
    assert astraflow("pause", "small", "--policy", "verifier").exit_code == 0
    assert astraflow("resume", "small", "--policy", "verifier").exit_code == 0
    assert paused(store) == {}
    assert astraflow("pause", "small").exit_code == 0  # again after a resume
    assert set(paused(store)) == {""}


def test_pause_and_resume_a_region(manager: threading.Thread, store: ObjectStore) -> None:
    said = astraflow("pause", "small", "--region", "local")
    assert said.output == "small, region local: paused; `astraflow resume small` goes on\n"
    figures = open_run(f"{store.url}/small").figures()
    assert (figures.state, figures.reason) == ("paused", "no region plays: local (astraflow pause)")
    assert json.loads(astraflow("status", "small", "--json").output)["regions_paused"] == {"local": "astraflow pause"}
    resumed = astraflow("resume", "small", "--region", "local", "--json")
    assert json.loads(resumed.output) == {"run": "small", "policy": None, "region": "local", "state": "resumed"}
    assert open_run(f"{store.url}/small").figures().state == "running"
    unknown = astraflow("pause", "small", "--region", "moon")
    assert isinstance(unknown.exception, AstraFlowError)
    assert "Pools are configured in: local" in str(unknown.exception)


def test_what_cannot_be_steered_is_said(manager: threading.Thread, store: ObjectStore) -> None:
    unknown = astraflow("pause", "small", "--policy", "solvr")
    assert isinstance(unknown.exception, AstraFlowError)
    assert "There are: solver, verifier" in str(unknown.exception)
    assert paused(store) == {}
    assert astraflow("stop", "small").exit_code == 0
    manager.join(timeout=30)
    over = astraflow("pause", "small")
    assert isinstance(over.exception, AstraFlowError)
    assert "the run is over: astraflow stop" in str(over.exception)


def test_regions_are_scaled(manager: threading.Thread, store: ObjectStore) -> None:
    said = astraflow("scale", "small", "local", "2")
    assert said.output == "small: pools wanted are local 2; local stays so until it is set to auto\n"
    assert json.loads(astraflow("scale", "small", "local", "auto", "--json").output) == {
        "run": "small",
        "region": "local",
        "held": False,
        "pools_wanted": {"local": 2},
    }


@pytest.mark.parametrize(
    ("region", "pools", "kind", "message"),
    [
        ("nowhere", "2", "region", "Pools are configured in: local"),
        ("local", "two", "pools", "Say 0, 1, 2, … or auto"),
        ("local", "-1", "pools", "-1 pools are not possible"),
        ("local", "0", "no_pool", "would have no pool left"),
        ("local", "auto", "not_scaled", "its scale.mode is 'off'"),
    ],
)
def test_what_cannot_be_scaled_is_said(store: ObjectStore, region: str, pools: str, kind: str, message: str) -> None:
    said = astraflow("scale", "small", region, pools)
    assert isinstance(said.exception, AstraFlowError), said.output
    assert (said.exception.kind, said.exception.exit_code) == (kind, 2)
    assert message in str(said.exception)


def test_a_wish_that_nobody_hears_has_a_deadline(store: ObjectStore) -> None:
    said = astraflow("resume", "small", "--timeout", "0.3")
    assert isinstance(said.exception, AstraFlowError)
    assert (said.exception.exit_code, said.exception.kind) == (8, "resume")


# --- init ---------------------------------------------------------------------------------------


def test_init_makes_a_project_that_passes_all_checks(place: Path) -> None:
    said = json.loads(astraflow("init", "My Project.1", "--json").output)
    folder = place / "My Project.1"
    assert said["run"] == "my-project-1"
    assert sorted(path.name for path in folder.iterdir()) == sorted(said["files"])
    recipe = load_recipe(folder / "recipe.toml")
    frozen, problems = check_config(recipe)
    assert (frozen.name, frozen.problem_count, len(problems)) == ("my-project-1", 200, 200)
    assert frozen.code == [str(folder)]
    assert "my-project-1" in (folder / "README.md").read_text()
    assert "Next: cd other && astraflow up" in astraflow("init", "other").output


def test_init_overwrites_nothing(place: Path) -> None:
    (place / "reward.py").write_text("mine")
    said = astraflow("init", ".")
    assert isinstance(said.exception, AstraFlowError)
    assert "there is reward.py already" in str(said.exception)
    assert [path.name for path in place.iterdir()] == ["reward.py"]
    (place / "file").touch()
    blocked = astraflow("init", "file")
    assert isinstance(blocked.exception, AstraFlowError)
    assert blocked.exception.exit_code == 2


# --- export, show -------------------------------------------------------------------------------


def test_export_and_show_say_what_there_is(store: ObjectStore, place: Path) -> None:
    for words, message in (
        (("export", "small", "nobody", "--to", "x"), "There are: solver, verifier"),
        (("export", "other", "solver", "--to", "x"), "no run 'other'"),
        (("export", "small", "solver", "--to", "x"), "None is published yet"),
        (("show", "1-1-0-solver-0"), "no trajectory"),
    ):
        said = astraflow(*words)
        assert isinstance(said.exception, AstraFlowError), words
        assert message in str(said.exception)
    assert not (place / "x").exists()


# --- logs ---------------------------------------------------------------------------------------


def wrote(store: ObjectStore, place: Path, participant: str, *lines: str, end: str = "\n") -> None:
    """A participant that has beaten, and its log file."""
    status = Status(participant=participant, role="pool", state="left")
    store.put(KEYS.status(participant), encode(status))
    folder = place / ".astraflow" / "logs" / "flow-runs"
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{participant}.log"
    with log.open("a") as file:
        file.write("\n".join(lines) + end)
    os.utime(log, (next(CLOCK),) * 2)  # the system's own may stand still between two files


def test_logs_come_from_files_where_no_server_answers(store: ObjectStore, place: Path) -> None:
    wrote(store, place, "trainer-solver-0000000a", "one", "two")
    wrote(store, place, "pool-us-east-0000000b-2", "three [bold]", "", "fo", end="")
    lines = json.loads(astraflow("logs", "small", "--files", "--json").output)
    assert [(line["flow"], line["text"]) for line in lines] == [
        ("trainer-solver", "one"),
        ("trainer-solver", "two"),
        ("pool-us-east", "three [bold]"),
    ]
    assert "pool-us-east three [bold]\n" in astraflow("logs", "small", "--flow", "pool").output
    assert "one" not in astraflow("logs", "small", "--flow", "pool").output
    assert astraflow("logs", "--last", "--flow", "pool-eu", "--json", "--files").output.strip() == "[]"


@pytest.mark.parametrize(
    ("participant", "flow"),
    [
        ("trainer-verifier-3f2a9c11", "trainer-verifier"),
        ("pool-2-3f2a9c11-12", "pool-2"),
        ("pool-deadbeef-3f2a9c11", "pool-deadbeef"),
        ("manager-3f2a9c11-2", "manager"),
        ("mirror-eu-west-00000000", "mirror-eu-west"),
    ],
)
def test_a_participants_name_is_that_of_its_flow_and_life(participant: str, flow: str) -> None:
    assert flow_of_participant(participant) == flow


@pytest.mark.parametrize(
    ("tags", "name", "flow"),
    [
        (["run:x", "child:trainer-solver"], "x/trainer/solver", "trainer-solver"),
        (["run:x"], "x/experiment", "experiment"),
        (["run:x", "policy:solver"], "x/pause", "operator"),
    ],
)
def test_a_flow_run_in_the_logs(tags: list[str], name: str, flow: str) -> None:
    assert flow_of(tags, name) == flow


def test_files_come_in_the_order_of_their_beginnings(store: ObjectStore, place: Path) -> None:
    wrote(store, place, "pool-a-0000000a", "pool-a-0000000a began at 2026-01-02T23:59:59.000+00:00", "two")
    wrote(store, place, "trainer-b-0000000b", "trainer-b-0000000b began at 2026-01-02T23:59:58.000+00:00", "one")
    wrote(store, place, "manager-0000000c", "three")
    lines = json.loads(astraflow("logs", "small", "--files", "--json").output)
    assert [line["text"] for line in lines if "began" not in line["text"]] == ["one", "two", "three"]


def test_followed_logs_end_with_the_run(manager: threading.Thread, store: ObjectStore, place: Path) -> None:
    wrote(store, place, "trainer-solver-0000000a", "one", "tw", end="")

    def later() -> None:
        wrote(store, place, "trainer-solver-0000000a", "o", "three")
        astraflow("stop", "small")

    timer = threading.Timer(1.5, later)
    timer.start()
    said = astraflow("logs", "small", "--follow", "--files", "--json")
    timer.join()
    assert [json.loads(line)["text"] for line in said.output.splitlines()] == ["one", "two", "three"]


def test_logs_that_are_elsewhere(store: ObjectStore) -> None:
    said = astraflow("logs", "small", "--files")
    assert isinstance(said.exception, AstraFlowError)
    assert "no logs of small here" in str(said.exception)


def test_flows_are_meant_by_role_or_name() -> None:
    assert is_meant("pool-us", None)
    assert is_meant("pool-us", "pool")
    assert is_meant("pool-us", "pool-us")
    assert not is_meant("pool-us-2", "pool-u")
    assert not is_meant("manager", "pool")


# --- doctor -------------------------------------------------------------------------------------


MORE = ["regions", "disk", "prefect", "server", "stack"]


def test_the_stores_of_regions_that_recipes_name_are_tried(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert checkup.regions(None).found == "no recipe here names a region's store"
    (place / "two.toml").write_text('extends = "tiny-add.toml"\n[regions.west]\nstore = "west"\n[regions.bare]\n')
    found = checkup.regions(None)
    assert (found.state, found.found.startswith(f"west: {(place / 'west').as_uri()} ")) == ("ok", True)
    assert [path.name for path in place.iterdir()] == ["two.toml"]

    def refuse(store: object, **_: object) -> None:
        raise StoreError("access was refused", where="west/x", remedy="Ask for write access", kind="denied")

    monkeypatch.setattr(checkup, "check_run_store", refuse)
    findings = {finding.check: finding for finding in checkup.examine(None)}
    assert (findings["regions"].state, findings["regions"].remedy) == ("fail", "Ask for write access")
    assert (findings["regions"].found, findings["regions"].code) == ("west/x: access was refused", 3)


def test_a_healthy_machine(place: Path) -> None:
    said = astraflow("doctor", "--json")
    report = json.loads(said.output)
    assert (said.exit_code, report["ok"]) == (0, True), said.output
    found = {finding["check"]: finding for finding in report["findings"]}
    assert list(found) == ["python", "packages", "torch", "engine", "store", *MORE]
    assert found["server"]["state"] == NOTE
    assert "astraflow up" in found["server"]["remedy"]
    assert list(place.iterdir()) == []  # nothing is left


def test_what_is_wrong_is_said_with_its_remedy_and_code(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Finding:
        raise RuntimeError("illegal instruction")

    def unsafe(option: str | None) -> Finding:
        raise StoreError(
            "this store creates an object that exists", where="s3://x", remedy="Use another", kind="unsafe"
        )

    monkeypatch.setattr(checkup, "torch", broken)
    monkeypatch.setattr(checkup, "engine", lambda: Finding("engine", "ok", "fine"))
    monkeypatch.setattr(checkup, "object_store", unsafe)
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    (place / ".astraflow").mkdir()
    dead = {"pid": 1, "started": "never"}
    (place / ".astraflow" / "stack.json").write_text(json.dumps({"port": 1, "server": dead, "runner": dead}))
    said = astraflow("doctor")
    for line in (
        "FAIL torch    RuntimeError: illegal instruction",
        "FAIL store    s3://x: this store creates an object that exists",
        "→ Use another",
        "FAIL server   http://127.0.0.1:1/api does not answer",
        "→ Start it, or unset PREFECT_API_URL",
        "FAIL stack    the server and the runner of",
        "ok   python",
    ):
        assert line in said.output
    assert said.exit_code == 1  # of the first that failed
    monkeypatch.setattr(checkup, "torch", lambda: Finding("torch", "ok", "fine"))
    assert astraflow("doctor").exit_code == 3


def test_little_room_is_noted_and_none_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 1_000_000_000

    monkeypatch.setattr(checkup.shutil, "disk_usage", lambda path: Usage)
    assert checkup.disk(None).state == NOTE
    Usage.free = 1_000_000
    assert (checkup.disk(None).state, checkup.disk(None).code) == (FAIL, 3)


def test_an_old_prefect_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "version", lambda name: "2.20.1")
    assert checkup.prefect().state == FAIL


def test_a_model_is_exported(store: ObjectStore, place: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    import torch

    from astraflow.models import load_causal_lm
    from astraflow.weights.publisher import Publisher

    source = tmp_path_factory.mktemp("model")
    build_tiny_qwen3(source, seed=0)
    upload_model_files(store, KEYS, "solver", source)
    weights = {name: tensor.detach() for name, tensor in load_causal_lm(source, torch.bfloat16).state_dict().items()}
    Publisher(store, KEYS, "solver", anchor_every=2).publish(weights, step=0, incarnation=1, batch=-1, skipped={})
    said = json.loads(astraflow("export", "small", "solver", "--to", "out", "--version", "0", "--json").output)
    assert (said["version"], said["folder"]) == (0, str(place / "out"))
    assert "model.safetensors" in said["files"]
    again = astraflow("export", "small", "solver", "--to", "again").output
    assert again.startswith(f"{place / 'again'}: version 0 of solver")
