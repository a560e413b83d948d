"""An operator's day: Ctrl-C, pause and resume, logs, a cancelled run that drains, a server that dies and comes back."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable

import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterTags
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Cancelling

from astraflow.records import FactRecord, Left, decode
from tests.e2e.runs import RunUnderTest, until, wait_for
from tests.e2e.stack import LocalStack, finish

pytestmark = [pytest.mark.e2e, pytest.mark.kill]

STEPS = 12


@pytest.fixture
def run(request: pytest.FixtureRequest, stack: LocalStack, started: list[RunUnderTest]) -> RunUnderTest:
    """A run that is two steps old and held up."""
    run = RunUnderTest(stack, request.node.name.removeprefix("test_").replace("_", "-")[:60])
    started.append(run)
    steps = 1000 if "stops" in run.name else STEPS  # one that is stopped must not end by itself before
    run.start("unhurried", f"trainer.steps={steps}")
    run.wait_for_steps(2)
    return run


def in_terminal(run: RunUnderTest, *words: str) -> subprocess.Popen[str]:
    """A command that hears Ctrl-C, wherever the tests run."""
    script = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from infra.entry import main; main()"
    )
    return subprocess.Popen(
        [sys.executable, "-c", script, *words],
        cwd=run.stack.folder,
        env=run.stack.environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_server_dies_and_comes_back_and_nobody_minds(run: RunUnderTest) -> None:
    run.kill(run.stack.stack.server)
    run.wait_for_steps(2)
    assert run.is_followed, "the command gave up"
    run.stack.up()
    run.wait_for_steps(1)
    for answer in run.answers():
        answer.ok()
    figures = run.check_finished(steps=STEPS)
    assert figures.epochs == 1, "a manager that lived was replaced"


def test_a_cancelled_run_drains_by_itself_and_can_be_resumed(run: RunUnderTest) -> None:
    lives = run.lives()
    assert len(lives) == 4
    with temporary_settings({PREFECT_API_URL: run.stack.stack.api_url}), get_client(sync_client=True) as client:
        tagged = FlowRunFilter(tags=FlowRunFilterTags(all_=[f"run:{run.name}"]))
        (experiment,) = [
            flow_run
            for flow_run in client.read_flow_runs(flow_run_filter=tagged)
            if flow_run.name == f"{run.name}/experiment"
        ]
        client.set_flow_run_state(experiment.id, Cancelling())
    until(lambda: not any(process.is_alive for process in lives), "the end of all", timeout_s=60)
    assert run.answer().code == 4
    # Nobody had to be killed: each has said its last word, and the pool has handed back what it could not finish.
    states = {status.role: status.state for status in run.view().statuses.values()}
    assert states["pool"] == "left"
    assert states["experiment"] == "cancelled"
    pools = [status.participant for status in run.statuses("pool")]
    for pool in pools:
        keys = [info.key for info in run.store.list(run.keys.outboxes) if pool in info.key]
        assert isinstance(decode(run.store.get(keys[-1]), FactRecord, where="").facts[-1], Left)
    run.let_go()
    run.resume()
    (answer,) = run.answers()
    answer.ok()
    run.check_finished(steps=STEPS, kills=True)


def test_ctrl_c_leaves_a_run_and_ctrl_c_twice_stops_it(run: RunUnderTest) -> None:
    follower = in_terminal(run, "run", "--resume", run.name, "--store", run.store_url)
    assert follower.stdout is not None
    assert follower.stdout.readline().startswith(f"run {run.name}")
    follower.send_signal(signal.SIGINT)
    left = finish(follower)
    assert left.code == 130
    assert "The run" in left.err
    assert f"astraflow status {run.name}" in left.err
    assert "Traceback" not in left.err
    run.wait_for_steps(1)  # it does go on

    paused = run.stack.astraflow("pause", run.name, "--store", run.store_url, "--json").ok()
    assert paused.json["state"] == "paused"
    status = run.stack.astraflow("status", run.name, "--store", run.store_url, "--json").ok()
    assert status.json["state"] == "paused"
    run.stack.astraflow("resume", run.name, "--store", run.store_url).ok()

    lines = run.stack.astraflow("logs", run.name, "--store", run.store_url, "--json").ok().json
    assert {"experiment", "manager", "trainer-solver", "pool-local"} <= {line["flow"] for line in lines}
    files = run.stack.astraflow("logs", run.name, "--store", run.store_url, "--files", "--json").ok().json
    assert files

    second = in_terminal(run, "run", "--resume", run.name, "--store", run.store_url)
    press_twice(second, lambda: second.stdout is not None and all(second.stdout.readline() for _ in "12"))
    run.let_go()
    stopped = finish(second)
    assert stopped.code == 130
    assert "Stopping the run" in stopped.out
    assert "Stopped: stopped from the terminal" in stopped.out
    wait_for(lambda: run.view().is_over, run, "the end")
    assert json.loads(run.stack.astraflow("runs", "--store", run.store_url, "--json").ok().out)
    run.answers()


def press_twice(command: subprocess.Popen[str], begun: Callable[[], bool]) -> None:
    """Ctrl-C once it follows, and again as soon as it has said what that means."""
    assert begun(), command.communicate()
    command.send_signal(signal.SIGINT)
    assert command.stderr is not None
    while "Press Ctrl-C again" not in command.stderr.readline():
        assert command.poll() is None, command.communicate()
    command.send_signal(signal.SIGINT)
