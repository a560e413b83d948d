"""Ending on a signal, names of participants, and what importing the layers brings along."""

import os
import subprocess
import sys
import time
import uuid

import pytest

from flows.lifecycle import is_here, participant_of, run_until_signal, this_participant
from storage.keys import NAME


def test_participant_names() -> None:
    assert participant_of("pool", "east", "0123456789ab") == "pool-east-456789ab"
    assert participant_of("manager", "", "0123456789ab", life=2) == "manager-456789ab-2"
    assert NAME.match(participant_of("trainer", "solver", "0123456789ab", life=3))
    assert this_participant("pool", "x") != this_participant("pool", "x")


def test_names_of_one_moment_differ_where_ids_begin_with_the_time() -> None:
    """As version 7 of UUIDs does."""
    ids = (f"0192f3a4-5b6c-7{uuid.uuid4().hex[:3]}-8{uuid.uuid4().hex[:3]}-{uuid.uuid4().hex[:12]}" for _ in range(50))
    assert len({participant_of("pool", "east", id) for id in ids}) == 50


def test_work_that_returns() -> None:
    done = []
    run_until_signal(lambda: done.append(1), lambda: done.append(2))
    assert done == [1]


def test_what_work_raises_is_raised() -> None:
    def work() -> None:
        raise ValueError("inside")

    with pytest.raises(ValueError, match="inside"):
        run_until_signal(work, lambda: None)


def test_an_interruption_stops_the_work_first() -> None:
    script = """
import os, signal, threading
from prefect.exceptions import TerminationSignal
from flows.lifecycle import run_until_signal
def on_signal(number, frame): raise TerminationSignal(number)
signal.signal(signal.SIGTERM, on_signal)
stop = threading.Event()
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
def work():
    stop.wait(20)
    print("handed back", stop.is_set(), flush=True)
try:
    run_until_signal(work, stop.set)
except TerminationSignal:
    print("terminated", flush=True)
"""
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout.split("\n")[:2] == ["handed back True", "terminated"]


def test_work_that_does_not_stop_is_left_after_the_grace() -> None:
    script = """
import os, signal, threading
from flows.lifecycle import run_until_signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
try:
    run_until_signal(lambda: threading.Event().wait(), lambda: print("asked", flush=True), grace_s=0.1)
except KeyboardInterrupt:
    print("left", flush=True)
"""
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout.split() == ["asked", "left"]


def test_processes_of_this_stack_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASTRAFLOW_STACK", raising=False)
    assert not is_here(os.getpid())
    monkeypatch.setenv("ASTRAFLOW_STACK", "this-test")
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    deadline = time.monotonic() + 30
    while not is_here(sleeper.pid):  # its environment is there a moment after it is
        assert time.monotonic() < deadline
    assert not is_here(os.getppid())
    assert not is_here(0)
    sleeper.kill()
    while is_here(sleeper.pid):
        pass
    assert sleeper.returncode is None  # a zombie until it is waited for, and yet not here
    sleeper.wait()
    assert not is_here(sleeper.pid)


def modules_after(*imports: str) -> set[str]:
    script = f"import sys; import {', '.join(imports)}; print(' '.join(sys.modules))"
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    return {name.split(".")[0] for name in answer.stdout.split()}


def test_flows_import_without_torch() -> None:
    found = modules_after(
        "flows.experiment", "flows.dataflow_manager", "flows.raas_pool", "flows.trainer", "infra.deployments"
    )
    assert "prefect" in found
    assert found.isdisjoint({"torch", "transformers", "duckdb"})


def test_the_core_imports_no_prefect() -> None:
    found = modules_after(
        "astraflow.bootstrap",
        "astraflow.follow",
        "astraflow.report",
        "astraflow.query",
        "astraflow.dataflow.manager",
        "astraflow.raas.pool",
        "astraflow.trainer.loop",
        "storage.s3",
    )
    assert "prefect" not in found


def test_the_command_line_imports_neither_until_it_must() -> None:
    assert modules_after("infra.cli").isdisjoint({"prefect", "torch", "pyarrow", "duckdb"})
    assert modules_after("infra.run_command", "infra.wishes", "flows.children").isdisjoint({"prefect", "torch"})
