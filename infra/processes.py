"""Background processes by identity: pid and start time, so that a pid that was given again is never touched.

Every process of a local stack carries ``ASTRAFLOW_STACK=<id>`` in its environment, and so do its children: that is
how what a killed parent left behind is found, and nothing else is.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

MARKER = "ASTRAFLOW_STACK"


@dataclass(frozen=True, slots=True)
class Process:
    """One process on this machine; ``started`` tells it from a later one with the same pid."""

    pid: int
    started: str

    @property
    def is_alive(self) -> bool:
        """Whether exactly this process still runs (a zombie does not)."""
        return started_at(self.pid) == self.started

    def signal(self, number: int) -> None:
        """Send a signal if it is still this process."""
        if self.is_alive:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return


def spawn(command: Sequence[str], *, log: Path, env: Mapping[str, str], pass_fds: Sequence[int] = ()) -> Process:
    """Start a process in a session of its own: output to ``log``, no input, no inherited file but ``pass_fds``.

    ``env`` has the stack's marker, so that ``marked`` finds it from now on.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(env),
            start_new_session=True,
            close_fds=True,
            pass_fds=pass_fds,
        )
    _children[child.pid] = child
    _wait_until_shown(child.pid)
    return Process(child.pid, started_at(child.pid) or "")


def _wait_until_shown(pid: int) -> None:
    """Until the system shows the environment by which ``marked`` knows it: a moment after the process is there."""
    deadline = time.monotonic() + 5.0
    while sys.platform == "linux" and time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/environ").read_bytes():
                return
        except OSError:
            return  # it has ended
        time.sleep(0.001)


_children: dict[int, subprocess.Popen[bytes]] = {}  # own children, so that ended ones are reaped


def started_at(pid: int) -> str | None:
    """The start time of a running process as the system writes it; None if there is none or it is a zombie."""
    child = _children.get(pid)
    if child is not None and child.poll() is not None:
        return None
    if sys.platform == "linux":
        try:
            fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in "ZX" and _threads(pid) <= 1 else fields[19]
    answer = subprocess.run(
        ["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True, check=False
    ).stdout.split(maxsplit=1)
    return answer[1].strip() if len(answer) == 2 and not answer[0].startswith("Z") else None


def _threads(pid: int) -> int:
    """Threads of a process; a killed one whose last threads still end shows as a zombie and holds its port."""
    try:
        return sum(1 for _ in Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return 0


def marked(stack: str) -> list[Process]:
    """All running processes that carry the stack's marker, this one left out."""
    found = [pid for pid in _pids_with(f"{MARKER}={stack}") if pid != os.getpid()]
    return [Process(pid, started) for pid in found if (started := started_at(pid)) is not None]


def running(stack: str, module: str) -> list[Process]:
    """The stack's processes that were started as ``python -m MODULE``, known to its state file or not."""
    return [process for process in marked(stack) if module in _command(process.pid)]


def end(processes: Iterable[Process], *, grace_s: float) -> int:
    """SIGTERM, wait up to ``grace_s``, then SIGKILL what is left; returns how many had to be killed."""
    waiting = list(processes)
    for process in waiting:
        process.signal(signal.SIGTERM)
    waiting = _wait(waiting, grace_s)
    for process in waiting:
        process.signal(signal.SIGKILL)
    _wait(waiting, 5)
    return len(waiting)


def _wait(processes: list[Process], timeout_s: float) -> list[Process]:
    """Those that still run after ``timeout_s``; returns as soon as none does."""
    deadline = time.monotonic() + timeout_s
    alive = [process for process in processes if process.is_alive]
    while alive and time.monotonic() < deadline:
        time.sleep(0.05)
        alive = [process for process in alive if process.is_alive]
    return alive


def _pids_with(setting: str) -> list[int]:
    if sys.platform == "linux":
        wanted = setting.encode()
        return [int(folder.name) for folder in Path("/proc").glob("[0-9]*") if wanted in _environment(folder)]
    rows = subprocess.run(["ps", "-axEww", "-o", "pid=,command="], capture_output=True, text=True, check=False).stdout
    return [int(row.split(maxsplit=1)[0]) for row in rows.splitlines() if setting in row.split()]


def _command(pid: int) -> list[str]:
    if sys.platform == "linux":
        try:
            return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        except OSError:
            return []
    command = ["ps", "-o", "command=", "-p", str(pid)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()


def _environment(folder: Path) -> list[bytes]:
    try:
        return (folder / "environ").read_bytes().split(b"\0")
    except OSError:
        return []
