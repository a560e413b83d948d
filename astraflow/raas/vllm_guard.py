"""Ends the processes of an engine when the one that started them is gone, by whatever means and even while they start.

vLLM's processes notice such an end only once they serve. They inherit a mark in their environment; a guard process
waits at a pipe that its owner holds, and when that ends it kills whoever bears the mark. Standard library alone.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

MARK = "ASTRAFLOW_ENGINE_MARK"
_KEEP = "SPT_NOENV"
"""With this variable a process that gives itself a title, as vLLM's do, does not write over the environment."""
_ROUNDS = 3  # one that is just starting another is met again
_PAUSE_S = 0.5


class Guard:
    """Held by the owner. Processes started inside ``with guard.marking()`` end with it, or when it is closed."""

    def __init__(self) -> None:
        self._mark = uuid.uuid4().hex
        reading, self._holding = os.pipe()
        command = [sys.executable, str(Path(__file__).resolve()), str(reading), self._mark]
        self._guard = subprocess.Popen(command, pass_fds=(reading,), start_new_session=True, stdin=subprocess.DEVNULL)
        os.close(reading)

    @contextlib.contextmanager
    def marking(self) -> Iterator[None]:
        """Processes that are started meanwhile bear the mark."""
        marks = {MARK: self._mark, _KEEP: "1"}
        os.environ.update(marks)
        try:
            yield
        finally:
            for name in marks:
                os.environ.pop(name, None)

    def close(self) -> None:
        """End what is left of them, and the guard."""
        if self._holding >= 0:
            os.close(self._holding)
            self._holding = -1
            self._guard.wait()


def bearers(mark: str) -> list[int]:
    """The processes that have the mark in their environment, where the system shows it.

    Not Python's resource tracker, which ends by itself and takes away the shared memory that others left.
    """
    wanted, found = f"{MARK}={mark}".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            is_tracker = b"resource_tracker" in (folder / "cmdline").read_bytes()
            if not is_tracker and wanted in (folder / "environ").read_bytes().split(b"\0"):
                found.append(int(folder.name))
    return found


def main() -> None:
    """Wait until the descriptor ``sys.argv[1]`` ends, then kill the bearers of ``sys.argv[2]``."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    while os.read(int(sys.argv[1]), 1):
        pass
    for turn in range(_ROUNDS):
        pids = bearers(sys.argv[2])
        if not pids and turn:
            return
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(_PAUSE_S)


if __name__ == "__main__":
    main()
