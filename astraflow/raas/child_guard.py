"""Runs a command that must not outlive the process that wanted it: ``python child_guard.py DESCRIPTOR COMMAND …``.

The descriptor is a pipe that nobody writes to. When it ends, because the other side closed it or is dead by whatever
means, the command and all its process group are ended. The command's own end ends this process, with its exit code.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_GRACE_S = 5.0
_PR_SET_PDEATHSIG = 1


@dataclass(slots=True)
class Lifeline:
    """What a process that starts a guarded command holds. The command ends when this is cut, or its holder dies."""

    argv: list[str]  # start this, with ``pass_fds``, then call ``started``
    pass_fds: tuple[int]
    _holding: int

    @classmethod
    def for_command(cls, command: Sequence[str]) -> Lifeline:
        reading, holding = os.pipe()
        argv = [sys.executable, str(Path(__file__).resolve()), str(reading), *command]
        return cls(argv, (reading,), holding)

    def started(self) -> None:
        """The guard has its end now (or could not be started)."""
        os.close(self.pass_fds[0])

    def cut(self) -> None:
        """End the command."""
        if self._holding >= 0:
            os.close(self._holding)
            self._holding = -1


def _die_with_guard() -> None:
    """In the command, before it begins: killed if the guard is (where the system can do that)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _end_group(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def main() -> None:
    """Run ``sys.argv[2:]`` until it ends or the descriptor ``sys.argv[1]`` does."""
    lifeline, command = int(sys.argv[1]), sys.argv[2:]
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        child = subprocess.Popen(
            command,
            start_new_session=True,
            preexec_fn=_die_with_guard,  # noqa: PLW1509 - this process has one thread still
        )
    except OSError as error:
        sys.stderr.write(f"cannot start {command[0]}: {error}\n")
        sys.exit(127)

    def wait_for_parent() -> None:
        while os.read(lifeline, 1):
            pass
        _end_group(child.pid, signal.SIGTERM)
        try:
            child.wait(_GRACE_S)
        except subprocess.TimeoutExpired:
            _end_group(child.pid, signal.SIGKILL)

    threading.Thread(target=wait_for_parent, daemon=True).start()
    code = child.wait()
    _end_group(child.pid, signal.SIGKILL)  # what it left behind
    sys.stdout.flush()
    os._exit(code if code >= 0 else 128 - code)


if __name__ == "__main__":
    main()
