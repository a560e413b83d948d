"""The local stack: one Prefect server and one runner on this machine, kept under a home folder.

``up`` may be called at any time: it starts what is not there and returns when both answer. ``down`` ends the
runner, its flow runs and the server, in this order, and nothing that is not this stack's. Stacks with
different homes do not know of each other.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import random
import signal
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from infra.interrupts import leaving
from infra.processes import MARKER, Process, end, marked, running, spawn
from storage.errors import ServiceError

PREFERRED_PORT = 4200
DATABASE = "PREFECT_SERVER_DATABASE_CONNECTION_URL"  # PostgreSQL, for more than about ten flow runs at once
FIXED_PORTS = range(10_000, 32_000)
START_TIMEOUT_S = 180.0
UNDONE = "What was started has been ended again: nothing of the local stack runs."
FLOW_GRACE_S = 25.0  # a cancelled pool may drain for 20 s
NOBODY = Process(0, "")  # stands in for the runner while only the server was started
_SERVER, _RUNNER = "infra.prefect_server", "infra.deployments"


@dataclass(frozen=True, slots=True)
class Stack:
    """A stack that was started: its port and its two processes."""

    port: int
    server: Process
    runner: Process

    @property
    def api_url(self) -> str:
        """What ``PREFECT_API_URL`` is set to."""
        return f"http://127.0.0.1:{self.port}/api"

    @property
    def ui_url(self) -> str:
        """Where a browser finds the pages."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def is_alive(self) -> bool:
        """Whether both processes run."""
        return self.server.is_alive and self.runner.is_alive


def stack_home() -> Path:
    """``ASTRAFLOW_HOME``, or ``.astraflow`` in the working directory."""
    return Path(os.environ.get("ASTRAFLOW_HOME") or ".astraflow").absolute()


def stack_id(home: Path) -> str:
    """The mark of everything that belongs to this home's stack."""
    return hashlib.sha256(str(home).encode()).hexdigest()[:16]


def read_stack(home: Path) -> Stack | None:
    """The stack that the state file tells of, alive or not; None if there is none."""
    try:
        state = json.loads(_state_file(home).read_text())
        return Stack(state["port"], Process(**state["server"]), Process(**state["runner"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def up(home: Path) -> tuple[Stack, bool]:
    """Start what is missing; returns the stack and whether anything was started. Raises ``ServiceError``."""
    with _locked(home):
        stack = read_stack(home)
        if stack is not None and stack.is_alive:
            _wait_until_ready(home, stack)
            return stack, False
        before = marked(stack_id(home))  # flow runs of an old runner, and a server that is kept
        with leaving("What was started has been ended again; flow runs that ran before go on." if before else UNDONE):
            try:
                stack = _start(home, stack)
                _wait_until_ready(home, stack)
            except BaseException:
                _undo(home, before)
                raise
        return stack, True


def down(home: Path) -> bool:
    """End the stack and every flow run it started; whether there was one. Nothing of it runs afterwards."""
    if not home.is_dir():
        return False
    with _locked(home), leaving("Some of the local stack may still run: `astraflow down` ends it."):
        return _end(home)


def prefect_environment(home: Path, port: int) -> dict[str, str]:
    """The environment of everything in the stack."""
    url = f"http://127.0.0.1:{port}"
    inherited = {key: value for key, value in os.environ.items() if key == DATABASE or not key.startswith("PREFECT_")}
    return inherited | {
        MARKER: stack_id(home),
        "ASTRAFLOW_HOME": str(home),
        "PREFECT_HOME": str(home / "prefect"),
        "PREFECT_API_URL": f"{url}/api",
        "PREFECT_UI_URL": url,
        "PREFECT_SERVER_UI_API_URL": f"{url}/api",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
        "PREFECT_RUNNER_POLL_FREQUENCY": "1",
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30",
        "PREFECT_LOGGING_EXTRA_LOGGERS": "astraflow",
        "PREFECT_LOGGING_SERVER_LEVEL": "WARNING",
        "DO_NOT_TRACK": "1",
        "PYTHONUNBUFFERED": "1",
    }


def _start(home: Path, old: Stack | None) -> Stack:
    """Start server and runner side by side; of ``old``, a server that runs is kept, and flow runs in any case.

    The state file is written after each start; what a start that was killed in between has left is ended first, so
    there are never two servers over one database.
    """
    mark = stack_id(home)
    for stray in running(mark, _RUNNER):
        stray.signal(signal.SIGKILL)  # at SIGTERM it would take its flow runs with it
    if old is not None and old.server.is_alive:
        port, server = old.port, old.server
    else:
        end(running(mark, _SERVER), grace_s=10)
        with _listener(old.port if old else PREFERRED_PORT) as listener:
            port = listener.getsockname()[1]
            server = spawn(
                [sys.executable, "-m", _SERVER, str(listener.fileno())],
                log=_server_log(home),
                env=prefect_environment(home, port),
                pass_fds=[listener.fileno()],
            )
        _write_state(home, Stack(port, server, NOBODY))
    _ready_file(home).unlink(missing_ok=True)
    runner = spawn(
        [sys.executable, "-m", _RUNNER, str(_ready_file(home))],
        log=_runner_log(home),
        env=prefect_environment(home, port),
    )
    stack = Stack(port, server, runner)
    _write_state(home, stack)
    return stack


def _write_state(home: Path, stack: Stack) -> None:
    state = {"port": stack.port, "server": asdict(stack.server), "runner": asdict(stack.runner)}
    temporary = _state_file(home).with_suffix(".tmp")
    temporary.write_text(json.dumps(state, indent=2))
    temporary.replace(_state_file(home))


def _undo(home: Path, before: list[Process]) -> None:
    """End what a start that failed has started: all, or beside what ran before only that."""
    with leaving("Some of the local stack may still run: `astraflow down` ends it."):
        if before:
            end([process for process in marked(stack_id(home)) if process not in before], grace_s=10)
        else:
            _end(home)


def _listener(preferred: int) -> socket.socket:
    """A listening socket on 127.0.0.1, on the preferred port if it is free, else below those of outgoing connections.

    A port that outgoing connections may get could be taken by one while the server is down.
    """
    for port in (preferred, *random.sample(FIXED_PORTS, 50)):
        listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
            listener.listen(128)
        except OSError:
            listener.close()
            continue
        return listener
    raise ServiceError("no port is free on 127.0.0.1", remedy="End some programs that listen", kind="no_port")


def _wait_until_ready(home: Path, stack: Stack) -> None:
    _wait(lambda: is_healthy(stack.api_url), stack.server, _server_log(home), "the Prefect server")
    _wait(_ready_file(home).exists, stack.runner, _runner_log(home), "the runner")


def is_healthy(api_url: str, timeout_s: float = 2.0) -> bool:
    """Whether a Prefect server answers there."""
    try:
        with urllib.request.urlopen(f"{api_url}/health", timeout=timeout_s) as answer:
            return bool(answer.status == 200)
    except (OSError, ValueError, urllib.error.URLError):
        return False


def _wait(is_ready: Callable[[], bool], process: Process, log: Path, name: str) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not is_ready():
        if not process.is_alive:
            raise ServiceError(f"{name} ended while it started", where=str(log), remedy=_tail(log), kind="start")
        if time.monotonic() > deadline:
            raise ServiceError(
                f"{name} was not ready after {START_TIMEOUT_S:g} s", where=str(log), remedy=_tail(log), kind="start"
            )
        time.sleep(0.1)


def _tail(log: Path, lines: int = 15) -> str:
    text = log.read_text(errors="replace").splitlines() if log.exists() else []
    return "The last lines of its log:\n" + "\n".join(text[-lines:])


def _end(home: Path) -> bool:
    """Flow runs first, while runner and server still take their last states; then the runner, then the server."""
    stack, mark = read_stack(home), stack_id(home)
    servers = [stack.server, stack.runner] if stack else []
    flow_runs = [process for process in marked(mark) if process not in servers]
    had_any = bool(flow_runs) or any(process.is_alive for process in servers)
    end(flow_runs, grace_s=FLOW_GRACE_S)
    if stack is not None:
        end([stack.runner], grace_s=10)
        end([process for process in marked(mark) if process != stack.server], grace_s=5)
        end([stack.server], grace_s=10)
    end(marked(mark), grace_s=2)
    _state_file(home).unlink(missing_ok=True)
    _ready_file(home).unlink(missing_ok=True)
    return had_any


@contextmanager
def _locked(home: Path) -> Iterator[None]:
    """One ``up`` or ``down`` of a home at a time; the lock ends with the process."""
    home.mkdir(parents=True, exist_ok=True)
    with (home / "stack.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _state_file(home: Path) -> Path:
    return home / "stack.json"


def _ready_file(home: Path) -> Path:
    return home / "runner.ready"


def _server_log(home: Path) -> Path:
    return home / "logs" / "server.log"


def _runner_log(home: Path) -> Path:
    return home / "logs" / "runner.log"
