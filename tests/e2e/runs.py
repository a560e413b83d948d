"""A small run that a test starts, watches from the store alone, disturbs, and checks at its end."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
from prefect.settings import PREFECT_API_URL, temporary_settings

from astraflow import open_run
from astraflow.config import RunConfig
from astraflow.follow import RunFollower
from astraflow.query import Run
from astraflow.query.figures import RunFigures
from astraflow.recipe import load_run_config
from astraflow.records import Status
from astraflow.weights.subscriber import Subscriber
from infra.processes import Process
from storage import open_store
from storage.errors import ConfigError, StoreError
from storage.keys import RunKeys
from storage.log import NumberedLog
from storage.store import ObjectStore
from tests.e2e.stack import Answer, LocalStack, finish
from tests.simulation.invariants import check_run

RECIPE = """
name = "small"
[problems]
source = "addition"
options = { digits = 1, count = 64 }
[policies.solver]
model = "tiny-qwen3"
sampling = { max_tokens = 2 }
[dataflow]
group_size = 4
silence_s = 30
drain_s = 4
snapshot_every = 25
report_every = 5
[trainer]
steps = 6
batch_size = 2
lr = 1e-3
checkpoint_every = 4
anchor_every = 5
[pools.local]
capacity = 4
max_batch = 16
flush_s = 0.0
"""

UNHURRIED = """
extends = "small.toml"
name = "unhurried"
problems.reward = { name = "tests.e2e.rewards:Unhurried", options = { seconds = 0.3 } }
"""

TWO_POLICIES = """
extends = "unhurried.toml"
name = "two"
[policies.verifier]
model = "tiny-qwen3"
sampling = { max_tokens = 1 }
[workflow]
name = "solve_and_verify"
options = { rounds = 2, accept = "1", reject = "0", retry_prompt = "{prompt}{answer}-", verify_prompt = "{prompt}?" }
"""

# For one thing to happen, on a machine that does much else: a flow run whose runner is killed before its process
# begins is asked for again after 60 s only (flows/lives.py).
PATIENCE_S = 300.0
ROWS = "select (select count(*) from trajectories) as there, sum(rows) as said from parts"
LIVES = ("manager", "pool", "trainer")


def write_recipes(folder: Path) -> None:
    (folder / "small.toml").write_text(RECIPE)
    (folder / "unhurried.toml").write_text(UNHURRIED)
    (folder / "two.toml").write_text(TWO_POLICIES)


class RunUnderTest:
    """One run. Its decisions are recorded, byte by byte, as they appear."""

    def __init__(self, stack: LocalStack, name: str, store: str | None = None) -> None:
        self.stack, self.name = stack, f"{name}-{secrets.token_hex(2)}"  # a test that is run again has a run of its own
        self.keys = RunKeys(self.name)
        self.store_url = store or str(stack.folder / "store")
        self._hold = stack.folder / f"hold-{self.name}"
        self.commands: list[subprocess.Popen[str]] = []
        self.records: list[bytes] = []
        self._follower: RunFollower | None = None
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._record, name="recorder", daemon=True)

    # --- starting and ending ----------------------------------------------------------------------

    def start(self, recipe: str, *overrides: str) -> RunUnderTest:
        """``astraflow run RECIPE``, followed in the background."""
        write_recipes(self.stack.folder)
        own = [f"name={self.name}", f"store={self.store_url}"]
        if recipe != "small":
            own.append(f"problems.reward.options.hold={self._hold}")
        self._command("run", f"{recipe}.toml", *own, *overrides, "--json")
        wait_for(self._exists, self, "the run to begin")
        self._thread.start()
        return self

    def resume(self, *options: str) -> None:
        """``astraflow run --resume NAME``, followed in the background."""
        self._command("run", "--resume", self.name, "--store", self.store_url, "--json", *options)

    def wait_for_steps(self, more: int = 1) -> None:
        """Let the run go on until so many more steps are done, then hold it up again."""
        goal = self.steps + more
        self.let_go()
        wait_for(lambda: self.steps >= goal or self.view().is_over, self, f"step {goal}")
        self.hold()

    def hold(self) -> None:
        """From here on no answer of an ``unhurried`` run is scored, so that what is being played stays so."""
        self._hold.touch()

    def let_go(self) -> None:
        """Answers are scored again."""
        self._hold.unlink(missing_ok=True)

    def answers(self) -> list[Answer]:
        """What the commands said in the end, in the order of their start; nothing is held up any more."""
        self.let_go()
        answers = [finish(command, timeout_s=PATIENCE_S) for command in self.commands]
        self.commands.clear()
        return answers

    def answer(self) -> Answer:
        """What the command said that was started first; the run stays held up if it is."""
        return finish(self.commands.pop(0), timeout_s=PATIENCE_S)

    def abandon(self) -> None:
        """End what may still run of it: commands, and by the stop wish everything else."""
        self._end.set()
        for command in self.commands:
            command.kill()
            command.communicate()
        if self._follower is not None and not self._follower.is_over:
            for process in self.lives():
                process.signal(signal.SIGKILL)

    def _command(self, *arguments: str) -> None:
        self.commands.append(self.stack.start(*arguments))

    def _exists(self) -> bool:
        try:
            self._follower = RunFollower(self.store, load_run_config(self.store, self.name))
        except (ConfigError, StoreError):
            return False
        return True

    # --- watching ---------------------------------------------------------------------------------

    @property
    def store(self) -> ObjectStore:
        return open_store(self.store_url)

    def opened(self) -> Run:
        """The run's records, for questions."""
        return open_run(f"{self.store_url}/{self.name}")

    def view(self) -> RunFollower:
        """The run as its store tells it now."""
        assert self._follower is not None
        self._follower.poll()
        return self._follower

    @property
    def steps(self) -> int:
        return self.view().steps

    def statuses(self, role: str) -> list[Status]:
        return self.view().of_role(role)

    def lives(self, *roles: str, name: str = "") -> list[Process]:
        """The running processes of manager, pools, trainers (and experiments) by their status objects."""
        wanted = roles or (*LIVES, "experiment")
        running = {process.pid: process for process in self.stack.processes()}
        found = [
            running[status.pid]
            for status in self.view().statuses.values()
            if status.role in wanted and status.pid in running and name in ("", status.name)
            if status.state not in ("left", "failed", "fenced", "stopped", "ended")
        ]
        return list(dict.fromkeys(found))

    def a_life(self, role: str, *, name: str = "") -> Process:
        """The newest running process of a role, waited for if there is none."""
        wait_for(lambda: bool(self.lives(role, name=name)), self, f"a {role} {name} that lives")
        found = self.lives(role, name=name)
        return found[-1] if found else self.a_life(role, name=name)

    def prefect(self) -> SyncPrefectClient:
        """The stack's server."""
        with temporary_settings({PREFECT_API_URL: self.stack.stack.api_url}):
            return get_client(sync_client=True)

    def artifact(self, key: str) -> Any:
        """The data of the newest artifact of a key; None while there is none."""
        with self.prefect() as client:
            found = client.read_artifacts(artifact_filter=ArtifactFilter(key=ArtifactFilterKey(any_=[key])))
        return max(found, key=lambda one: one.created).data if found else None

    @property
    def is_followed(self) -> bool:
        """Whether the command that started it still follows it."""
        return all(command.poll() is None for command in self.commands)

    def log(self) -> str:
        """The last lines of what the runner and the newest flow runs said."""
        logs = self.stack.home / "logs"
        newest = sorted((logs / "flow-runs").glob("*.log"), key=lambda path: path.stat().st_mtime)[-5:]
        tails = [
            f"--- {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-25:])
            for path in (logs / "runner.log", *newest)
        ]
        return "\n".join(tails)

    def _record(self) -> None:
        log = NumberedLog(self.store, self.keys.decision)
        while not self._end.wait(0.05):
            while (data := log.read(len(self.records))) is not None:
                self.records.append(data)

    # --- disturbing -------------------------------------------------------------------------------

    def kill(self, process: Process) -> None:
        process.signal(signal.SIGKILL)
        wait_for(lambda: not process.is_alive, self, f"the end of {process}")

    def pause(self, seconds: float) -> None:
        """Let the run go on undisturbed for a while."""
        time.sleep(seconds)

    # --- checking ---------------------------------------------------------------------------------

    def check_finished(self, *, steps: int, kills: bool = False) -> RunFigures:
        """The run is over and whole: every step once, nothing lost or doubled, no record ever changed."""
        self._end.set()
        self._thread.join()
        config = load_run_config(self.store, self.name)
        counts = check_run(self.store, config)
        assert counts["consumed"] == steps * len(config.trained)
        assert counts["Stopped"] == 1
        assert len(self.records) > steps, "the decisions were not recorded as they came"
        for seq, data in enumerate(self.records):
            assert self.store.get(self.keys.decision(seq)) == data, f"decision {seq} has changed"
        whole = self.opened()
        figures = whole.figures()
        assert figures.state == "stopped"
        for policy, own in figures.policies.items():
            assert (own.steps, own.ended) == (steps, "done"), f"{policy}: {own}"
            assert own.parts == {k: v for k, v in own.parts.items() if k in ("consumed", "dropped")}
            assert own.versions >= steps + 1
            if not kills:
                assert own.versions == steps + 1
            head = Subscriber(self.store, self.keys, policy)
            assert head.fetch(head.newest()).version == own.versions - 1
        assert figures.rejected == {}
        (counted,) = whole.sql(ROWS).to_pylist()
        assert counted["there"] == counted["said"] >= self._least_rows(config, steps)
        return figures

    def _least_rows(self, config: RunConfig, steps: int) -> int:
        """Rows that were trained on at least: each part has a row for each of its group's episodes."""
        batches = [config.trainer_of(policy).batch_size * steps for policy in config.trained]
        return sum(batches) * config.dataflow.group_size


def wait_for(done: Callable[[], bool], run: RunUnderTest, what: str, timeout_s: float = PATIENCE_S) -> None:
    """Poll until ``done``; a command that ended with an error, or the deadline, is a failure that shows the log."""
    deadline = time.monotonic() + timeout_s
    while not done():
        dead = [command for command in run.commands if command.poll() not in (None, 0)]
        if dead:
            answer = finish(dead[0])
            raise AssertionError(f"waiting for {what}: exit {answer.code}\n{answer.out}\n{answer.err}\n{run.log()}")
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {timeout_s:g} s for {what}\n{_state(run)}\n{run.log()}")
        time.sleep(0.1)


def until(done: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Poll until ``done``; the deadline is a failure."""
    deadline = time.monotonic() + timeout_s
    while not done():
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s for {what}"
        time.sleep(0.1)


def _state(run: RunUnderTest) -> str:
    try:
        lines = [f"{s.participant} pid {s.pid} {s.state} {s.waiting} {s.figures}" for s in run.view().statuses.values()]
    except (AssertionError, StoreError) as error:
        return str(error)
    return "\n".join([f"steps {run.steps}", *lines, f"own pid {os.getpid()}"])
