"""Two managers of one run, two trainers of one policy, as real processes: the newer has effect, the older says so."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from astraflow.bootstrap import create_run
from astraflow.config import RunConfig
from astraflow.follow import RunFollower
from astraflow.recipe import load_recipe
from astraflow.records import DecisionRecord, Epoch, decode
from storage import open_store
from storage.errors import Fenced
from storage.keys import RunKeys
from storage.log import NumberedLog
from storage.store import ObjectStore
from tests.e2e.runs import until, write_recipes
from tests.e2e.stack import PYTHON, ROOT
from tests.simulation.invariants import check_run

pytestmark = pytest.mark.e2e

STEPS = 10
PROGRAM = """
import asyncio, sys
from astraflow.recipe import load_run_config
from storage import open_store
from storage.errors import AstraFlowError

role, url, run, name = sys.argv[1:]
store = open_store(url)
config = load_run_config(store, run)
try:
    if role == "manager":
        from astraflow.dataflow.manager import run_manager
        run_manager(store, config, holder=name)
    elif role == "trainer":
        from astraflow.trainer.loop import run_trainer
        run_trainer(store, config, "solver", participant=name)
    else:
        from astraflow.raas.pool import run_pool
        asyncio.run(run_pool(store, config, "local", participant=name))
except AstraFlowError as error:
    print(f"{type(error).__name__}: {error}", file=sys.stderr)
    sys.exit(error.exit_code)
"""


class Processes:
    """The processes of one run, started by hand."""

    def __init__(self, store: ObjectStore, config: RunConfig) -> None:
        self.store, self.config = store, config
        self.all: dict[str, subprocess.Popen[str]] = {}
        self.follower = RunFollower(store, config)

    def start(self, role: str, name: str) -> None:
        self.all[name] = subprocess.Popen(
            [PYTHON, "-c", PROGRAM, role, self.store.url, self.config.name, name],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def end_of(self, name: str) -> tuple[int, str]:
        """Exit code and last line."""
        _, err = self.all[name].communicate(timeout=240)
        return self.all[name].returncode, (err.splitlines() or [""])[-1]

    @property
    def step(self) -> int:
        self.follower.poll()
        return self.follower.steps

    @property
    def incarnation(self) -> int:
        self.follower.poll()
        return self.follower.policies["solver"].incarnation

    @property
    def epochs(self) -> list[str]:
        """The holders of the epochs so far."""
        log, seq, holders = NumberedLog(self.store, RunKeys(self.config.name).decision), 0, []
        while (data := log.read(seq)) is not None:
            record = decode(data, DecisionRecord, where=str(seq))
            holders += [decision.holder for decision in record.decisions if isinstance(decision, Epoch)]
            seq += 1
        return holders


def test_the_newer_of_two_has_effect_and_the_older_exits(tmp_path: Path) -> None:
    write_recipes(tmp_path)
    store = open_store(str(tmp_path / "store"))
    recipe = load_recipe(tmp_path / "unhurried.toml", ["name=twice", f"trainer.steps={STEPS}"])
    run = Processes(store, create_run(store, recipe))
    try:
        for role, name in (("manager", "first"), ("trainer", "trainer-solver-1"), ("pool", "pool-local-1")):
            run.start(role, name)
        until(lambda: run.step >= 2, "two steps")
        older = run.all["trainer-solver-1"]
        older.send_signal(signal.SIGSTOP)  # a process that hangs while it is replaced, and then wakes up
        run.start("manager", "second")
        run.start("trainer", "trainer-solver-2")
        until(lambda: run.incarnation == 1, "the second trainer's first version")
        older.send_signal(signal.SIGCONT)

        code, words = run.end_of("first")
        assert (code, words.startswith("Fenced: ")) == (Fenced.exit_code, True), words
        assert "manager epoch 2 took over from epoch 1" in words
        code, words = run.end_of("trainer-solver-1")
        assert (code, words.startswith("Fenced: ")) == (Fenced.exit_code, True), words
        assert "incarnation 1" in words
        for name in ("trainer-solver-2", "pool-local-1", "second"):
            code, words = run.end_of(name)
            assert code == 0, f"{name}: {words}"
    finally:
        for process in run.all.values():
            process.kill()
            process.communicate()
    assert run.epochs == ["first", "second"]
    counts = check_run(store, run.config)
    assert (counts["consumed"], counts["Stopped"]) == (STEPS, 1)
