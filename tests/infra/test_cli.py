"""The command line: exit codes, one message an error, and JSON that is only JSON."""

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from astraflow.bootstrap import create_run
from astraflow.query import newest_run
from astraflow.recipe import load_recipe, parse_toml
from astraflow.records import DecisionRecord, FactRecord, Stopped, Wanted, decode, encode
from infra import cli, regions
from storage import open_store
from storage.keys import RunKeys
from storage.store import ObjectStore

RECIPE = """
name = "small"
[policies.solver]
model = "tiny-qwen3"
[problems]
source = "addition"
options = { digits = 1, count = 30 }
[trainer]
steps = 3
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory of the test's own, with a recipe and no stack."""
    monkeypatch.chdir(tmp_path)
    for name in ("ASTRAFLOW_STORE", "ASTRAFLOW_HOME", "PREFECT_API_URL", "ASTRAFLOW_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "small.toml").write_text(RECIPE)
    return tmp_path


@pytest.fixture
def store(place: Path) -> ObjectStore:
    """The default store with one run in it."""
    config = load_recipe(place / "small.toml")
    opened = open_store(config.store)
    create_run(opened, config)
    return opened


class Said:
    """What a command printed, and its exit code."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def astraflow(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """Run the console script's ``main`` in this process."""

    def call(*words: str) -> Said:
        monkeypatch.setattr(sys, "argv", ["astraflow", *words])
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            cli.main()
        out, err = capsys.readouterr()
        return Said(int(caught.value.code or 0), out, err)

    return call


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["run", "small.toml", "trainer.stepz=3"], 2, "Did you mean 'steps'?"),
        (["run", "smal.toml"], 2, "Recipes beside it: small.toml"),
        (["run"], 2, "run needs a recipe"),
        (["run", "small.toml", "--resume", "small"], 2, "takes no recipe"),
        (["run", "small.toml", "--ranks", "2"], 2, "goes with --resume"),
        (["run", "--resume", "small"], 2, "there is no store"),
        (["run", "small.toml", "--dry-run", "policies.solver.model=/nowhere"], 2, "no model folder"),
        (["run", "small.toml"], 4, "astraflow up"),
        (["status"], 2, "there is no store"),
        (["runs", "--store", "missing"], 2, "there is no store"),
        (["stop"], 2, "--last"),
        (["query", "select 1"], 2, "there is no store"),
        (["nonsense"], 2, "nonsense"),
        (["status", "--store", "s3://user:secret@bucket/x"], 2, "credentials"),
    ],
)
def test_bad_input_is_one_message_and_a_code(astraflow, words: list[str], code: int, message: str) -> None:  # type: ignore[no-untyped-def]
    said = astraflow(*words)
    assert said.code == code
    assert message in said.err
    assert "Traceback" not in said.err
    assert "secret" not in said.err
    assert said.out == ""


def test_help_names_the_exit_codes(astraflow) -> None:  # type: ignore[no-untyped-def]
    for words in (["--help"], ["run", "--help"], ["status", "--help"]):
        said = astraflow(*words)
        assert said.code == 0
        assert "Exit codes" in said.out


def test_dry_run_prints_a_recipe_and_touches_nothing(astraflow, place: Path) -> None:  # type: ignore[no-untyped-def]
    said = astraflow("run", "small.toml", "trainer.lr=3e-4", "name=dry", "--dry-run")
    assert said.code == 0
    config = parse_toml(said.out, where="output")
    assert (config.name, config.trainer.lr, config.problem_count) == ("dry", 3e-4, 30)
    for word in ("dry/manager", "dry/trainer-solver", "dry/pool-local", "dry/run.toml"):
        assert word in said.out
    assert sorted(path.name for path in place.iterdir()) == ["small.toml"]


def test_dry_run_as_json_of_a_built_in_recipe(astraflow) -> None:  # type: ignore[no-untyped-def]
    said = astraflow("run", "tiny-add-verify", "--dry-run", "--json")
    plan = json.loads(said.out)
    assert plan["config"]["workflow"]["name"] == "solve_and_verify"
    assert [child["name"] for child in plan["starts"]] == [
        "manager",
        "trainer-solver",
        "trainer-verifier",
        "pool-local",
    ]


def test_store_by_option_environment_and_recipe(astraflow, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    def store_of(*words: str) -> str:
        return str(json.loads(astraflow("run", "small.toml", "--dry-run", "--json", *words).out)["config"]["store"])

    assert store_of().endswith("/.astraflow/store")
    monkeypatch.setenv("ASTRAFLOW_STORE", "from-env")
    assert store_of().endswith("/from-env")
    assert store_of("--store", "from-option").endswith("/from-option")
    assert store_of("store=from-key").endswith("/from-key")


def test_runs_and_status(astraflow, store: ObjectStore) -> None:  # type: ignore[no-untyped-def]
    assert [entry["run"] for entry in json.loads(astraflow("runs", "--json").out)] == ["small"]
    assert "small" in astraflow("runs").out
    figures = json.loads(astraflow("status", "--last", "--json").out)
    assert (figures["run"], figures["steps"]) == ("small", 0)
    assert {"reward_first20", "reward_last20", "reward_gain", "seconds", "lag_mean", "lag_max"} <= set(figures)
    assert {"wait_ratio", "delta_bytes", "full_bytes"} <= set(figures)
    assert "reward_gain" in astraflow("status", "small").out
    missing = astraflow("status", "other")
    assert (missing.code, "no run 'other'" in missing.err) == (2, True)


def test_query(astraflow, store: ObjectStore) -> None:  # type: ignore[no-untyped-def]
    assert json.loads(astraflow("query", "select 40 + 2 as x", "--json").out) == [{"x": 42}]
    assert "42" in astraflow("query", "select 40 + 2 as x", "--run", "small").out
    bad = astraflow("query", "select nope from batches")
    assert bad.code == 2
    assert "nope" in bad.err


def test_texts_that_look_like_markup_are_shown_as_they_are(astraflow, store: ObjectStore) -> None:  # type: ignore[no-untyped-def]
    for text in ("[/x]", "see [red] and [b]bold", "[link=x]y", r"\\[a]"):
        said = astraflow("query", f"""select '{text}' as "[/t]" """)
        assert said.code == 0, said.err
        assert [line.rstrip() for line in said.out.splitlines()] == ["[/t]", text]


def test_the_newest_run_is_found_without_a_look_into_the_others(astraflow, store: ObjectStore, place: Path) -> None:  # type: ignore[no-untyped-def]
    (place / ".astraflow" / "store" / "broken").mkdir()
    (place / ".astraflow" / "store" / "broken" / "run.toml").write_text("nonsense")
    os.utime(place / ".astraflow" / "store" / "broken" / "run.toml", (1, 1))
    assert newest_run(store) == "small"
    assert json.loads(astraflow("status", "--last", "--json").out)["run"] == "small"
    assert newest_run(open_store(str(place / "empty"))) is None


def test_a_folder_does_not_hide_a_recipe(astraflow, place: Path) -> None:  # type: ignore[no-untyped-def]
    (place / "tiny-add").mkdir()
    assert json.loads(astraflow("run", "tiny-add", "--dry-run", "--json").out)["config"]["name"] == "tiny-add"


def test_a_recipe_may_extend_a_built_in_one(astraflow, place: Path) -> None:  # type: ignore[no-untyped-def]
    (place / "mine.jsonl").write_text('{"prompt": "1+1=", "answer": "2"}\n')
    (place / "mine.toml").write_text('extends = "tiny-add.toml"\nname = "mine"\nproblems.source = "mine.jsonl"\n')
    config = json.loads(astraflow("run", "mine.toml", "--dry-run", "--json").out)["config"]
    assert (config["name"], config["trainer"]["steps"], config["problem_count"]) == ("mine", 420, 1)


REGIONS = """
extends = "tiny-add.toml"
name = "two"
[regions.west]
store = "west-bucket"
[pools.west]
region = "west"
"""


def test_a_plan_says_which_deployments_would_be_used(astraflow, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    (place / "two.toml").write_text(REGIONS)
    said = astraflow("run", "two.toml", "--dry-run")
    (line,) = [line for line in said.out.splitlines() if "two/pool-west" in line]
    assert line.startswith("#   raas_pool/west ")
    assert "or raas_pool/local where that is not registered: no Prefect server answers" in line
    assert (place / "west-bucket").as_uri() in said.out
    monkeypatch.setattr(regions, "_known", lambda deployments: {"region_mirror/west"})
    starts = json.loads(astraflow("run", "two.toml", "--dry-run", "--json").out)["starts"]
    used = {start["name"]: (start["deployment"], start["note"].partition(";")[0]) for start in starts}
    assert used["mirror-west"] == ("region_mirror/west", "")
    assert used["pool-west"] == ("raas_pool/local", "because Prefect does not know raas_pool/west")
    assert used["pool-local"] == ("raas_pool/local", "")


def test_a_pool_that_names_hardware_falls_back_on_its_region(
    astraflow,  # type: ignore[no-untyped-def]
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (place / "two.toml").write_text(REGIONS + 'hardware = "l40s"\n[trainer]\nhardware = "h100"\n')
    for known, pool, trainer in (
        ({"raas_pool/west-l40s", "raas_pool/west", "trainer/h100"}, "raas_pool/west-l40s", "trainer/h100"),
        ({"raas_pool/west"}, "raas_pool/west", "trainer/local"),
        (set(), "raas_pool/local", "trainer/local"),
    ):
        monkeypatch.setattr(regions, "_known", lambda deployments, known=known: known)
        starts = json.loads(astraflow("run", "two.toml", "--dry-run", "--json").out)["starts"]
        used = {start["name"]: start["deployment"] for start in starts}
        assert (used["pool-west"], used["trainer-solver"]) == (pool, trainer)


def test_starting_a_run_again_is_refused_before_anything_starts(
    astraflow,  # type: ignore[no-untyped-def]
    store: ObjectStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from infra import run_command
    from infra.places import Server

    monkeypatch.setattr(run_command, "find_server", lambda: Server("http://127.0.0.1:9/api", is_local=True))
    said = astraflow("run", "small.toml")
    assert said.code == 2
    assert "--resume small" in said.err


def test_stop_asks_and_waits_for_the_last_word(astraflow, store: ObjectStore) -> None:  # type: ignore[no-untyped-def]
    keys = RunKeys("small")
    heard: list[Wanted] = []

    def manager() -> None:
        while not heard:
            for info in store.list(keys.outboxes):
                heard.extend(
                    f for f in decode(store.get(info.key), FactRecord, where="").facts if isinstance(f, Wanted)
                )
            time.sleep(0.01)
        record = DecisionRecord(id="s", epoch=1, now=0, cursors={}, observations={}, decisions=[Stopped(reason="told")])
        store.create(keys.decision(0), encode(record))

    thread = threading.Thread(target=manager, daemon=True)
    thread.start()
    said = astraflow("stop", "small")
    thread.join(timeout=10)
    assert said.code == 0
    assert "small has stopped: told" in said.out
    assert [wish.what for wish in heard] == ["stop"]
    assert any(info.key.startswith(f"{keys.statuses}operator-") for info in store.list(keys.statuses))
    assert json.loads(astraflow("stop", "small", "--json").out) == {"run": "small", "stopped": "told"}


def test_stop_has_a_deadline(astraflow, store: ObjectStore) -> None:  # type: ignore[no-untyped-def]
    said = astraflow("stop", "--last", "--timeout", "0.3")
    assert said.code == 8
    assert "--resume small" in said.err


def test_down_without_a_stack(astraflow) -> None:  # type: ignore[no-untyped-def]
    assert json.loads(astraflow("down", "--json").out) == {"ended": False}


def test_unexpected_errors_have_no_traceback_unless_wanted(place: Path) -> None:
    command = [sys.executable, "-m", "infra.cli", "status"]
    (place / ".astraflow").mkdir()
    (place / ".astraflow" / "store").write_text("a file where a folder should be")
    plain = subprocess.run(command, capture_output=True, text=True, cwd=place, check=False)
    assert plain.returncode == 2
    assert plain.stderr.startswith("error: ")
    assert "Traceback" not in plain.stderr
    debug = subprocess.run(
        command, capture_output=True, text=True, cwd=place, env={**os.environ, "ASTRAFLOW_DEBUG": "1"}, check=False
    )
    assert "Traceback" in debug.stderr
