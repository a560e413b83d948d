"""The local stack for real: idempotent, repairs itself, two at once, and nothing left behind."""

import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from infra import local_stack
from infra.local_stack import Stack, down, is_healthy, read_stack, stack_id, up
from infra.processes import MARKER, Process, end, marked, running, spawn, started_at
from storage.errors import ServiceError


def sleeper(log: Path, seconds: int = 60, **env: str) -> Process:
    return spawn([sys.executable, "-c", f"import time; time.sleep({seconds})"], log=log, env={**os.environ, **env})


def test_identity_of_processes(tmp_path: Path) -> None:
    process = sleeper(tmp_path / "log")
    assert process.is_alive
    assert not Process(process.pid, "another start").is_alive
    Process(process.pid, "another start").signal(signal.SIGKILL)
    assert process.is_alive
    assert end([process], grace_s=5) == 0
    assert not process.is_alive
    assert started_at(process.pid) is None


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    script = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
    )
    process = spawn([sys.executable, "-c", script], log=tmp_path / "log", env=os.environ)
    while "ready" not in (tmp_path / "log").read_text():
        pass
    assert end([process], grace_s=0.1) == 1
    assert not process.is_alive


def test_marked_processes_and_no_others(tmp_path: Path) -> None:
    mine = sleeper(tmp_path / "a", **{MARKER: "one"})
    other = sleeper(tmp_path / "b", **{MARKER: "one-more"})
    try:
        assert marked("one") == [mine]
    finally:
        end([mine, other], grace_s=5)
    assert marked("one") == []


def test_no_file_of_the_parent_is_inherited(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as held:
        os.set_inheritable(held.fileno(), True)
        script = "import os; print(sorted(os.listdir('/proc/self/fd')), flush=True)"
        process = spawn([sys.executable, "-c", script], log=tmp_path / "log", env=os.environ)
        while process.is_alive:
            pass
        assert str(held.fileno()) not in (tmp_path / "log").read_text()


def test_no_stack_and_damaged_state(tmp_path: Path) -> None:
    assert read_stack(tmp_path) is None
    assert not down(tmp_path / "nothing")
    assert not (tmp_path / "nothing").exists()
    (tmp_path / "stack.json").write_text('{"port": 1}')
    assert read_stack(tmp_path) is None
    assert not down(tmp_path)


def test_a_start_that_fails_shows_the_log_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "python"
    broken.write_text("#!/bin/sh\necho it broke; exit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr(local_stack.sys, "executable", str(broken))
    with pytest.raises(ServiceError, match="ended while it started") as caught:
        up(tmp_path / "home")
    assert "it broke" in caught.value.remedy
    assert read_stack(tmp_path / "home") is None


def test_what_a_start_that_was_killed_has_left_is_not_doubled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed between the spawns and the state file: the next start ends server and runner of the first."""
    monkeypatch.setattr(local_stack, "PREFERRED_PORT", random.choice(local_stack.FIXED_PORTS))
    left = [
        spawn(
            [sys.executable, "-c", "import time; time.sleep(60)", module],
            log=tmp_path / "log",
            env={**os.environ, MARKER: stack_id(tmp_path)},
        )
        for module in ("infra.prefect_server", "infra.deployments")
    ]
    try:
        assert running(stack_id(tmp_path), "infra.prefect_server") == left[:1]
        server_alone = Stack(1, left[0], local_stack.NOBODY)
        local_stack._write_state(tmp_path, server_alone)
        assert read_stack(tmp_path) == server_alone
        assert not server_alone.is_alive
        (tmp_path / "stack.json").unlink()
        stack = local_stack._start(tmp_path, read_stack(tmp_path))
        assert not any(process.is_alive for process in left)
        assert read_stack(tmp_path) == stack
        assert sorted(process.pid for process in marked(stack_id(tmp_path))) == sorted(
            [stack.server.pid, stack.runner.pid]
        )
    finally:
        end(marked(stack_id(tmp_path)), grace_s=0)


def test_a_process_is_found_by_its_marker_from_its_start_on(tmp_path: Path) -> None:
    """The system shows an environment a moment after its process: some in a hundred were missed."""
    for number in range(40):
        stack = f"{stack_id(tmp_path)}-{number}"
        process = spawn(
            [sys.executable, "-S", "-c", "import time; time.sleep(60)"],
            log=tmp_path / "log",
            env={**os.environ, MARKER: stack},
        )
        try:
            assert marked(stack) == [process]
        finally:
            end([process], grace_s=0)


def test_two_stacks_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_stack, "PREFERRED_PORT", random.choice(local_stack.FIXED_PORTS))  # others may want 4200
    homes = [tmp_path / "one", tmp_path / "two"]
    stacks: dict[Path, Stack] = {}

    def start(home: Path) -> None:
        stacks[home], _ = up(home)

    threads = [threading.Thread(target=start, args=(home,)) for home in homes]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        one, two = (stacks[home] for home in homes)
        assert one.port != two.port
        assert is_healthy(one.api_url)
        assert is_healthy(two.api_url)

        assert up(homes[0]) == (one, False)  # idempotent

        one.runner.signal(signal.SIGKILL)  # a dead runner: the server is kept
        _gone(one.runner)
        mended, started = up(homes[0])
        assert started
        assert (mended.server, mended.port) == (one.server, one.port)
        assert mended.is_alive

        mended.server.signal(signal.SIGKILL)  # a dead server: comes back where it was
        _gone(mended.server)
        again, started = up(homes[0])
        assert started
        assert again.port == one.port
        assert is_healthy(again.api_url)

        assert down(homes[0])
        assert marked(stack_id(homes[0])) == []
        assert not down(homes[0])
        assert is_healthy(two.api_url)  # the other one does not notice
    finally:
        for home in homes:
            down(home)
    assert marked(stack_id(homes[1])) == []


def test_up_and_down_by_command(tmp_path: Path) -> None:
    env = {**os.environ, "ASTRAFLOW_HOME": str(tmp_path / "home")}
    env.pop("PREFECT_API_URL", None)

    def astraflow(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "infra.cli", *words]
        return subprocess.run(command, capture_output=True, text=True, env=env, check=False, timeout=240)

    try:
        first, second = astraflow("up"), astraflow("up")
        assert (first.returncode, second.returncode) == (0, 0)
        assert first.stdout.startswith("Started: http://127.0.0.1:")
        assert second.stdout.startswith("Runs already: http://127.0.0.1:")
    finally:
        ended = astraflow("down")
    assert "nothing of the local stack runs" in ended.stdout
    assert "Nothing was running" in astraflow("down").stdout
    assert marked(stack_id(tmp_path / "home")) == []


def _gone(process: Process) -> None:
    while process.is_alive:
        pass
