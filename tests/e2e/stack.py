"""A local stack of a test's own, used through the command line as a person would, and ended whatever happens."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.local_stack import Stack, read_stack, stack_id
from infra.processes import Process, end, marked

ROOT = Path(__file__).parents[2]
PYTHON = sys.executable


@dataclass(frozen=True)
class Answer:
    """What a command said."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    def ok(self) -> Answer:
        assert self.code == 0, f"exit code {self.code}\n{self.out}\n{self.err}"
        return self


class Shell:
    """A working folder and an environment in which commands run: nothing of the machine's own settings."""

    def __init__(self, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self.folder = folder
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "ASTRAFLOW_", "AWS_"))}
        self.environment = {
            **kept,
            "ASTRAFLOW_HOME": str(folder / "home"),
            "ASTRAFLOW_STORE": str(folder / "store"),
            "PYTHONPATH": str(ROOT),
            "COLUMNS": "200",
            **(environment or {}),
        }

    def start(self, *arguments: str, **environment: str) -> subprocess.Popen[str]:
        """Start ``astraflow`` with these arguments; end it with ``finish`` or ``quiet``."""
        return subprocess.Popen(
            [PYTHON, "-m", "infra.cli", *arguments],
            cwd=self.folder,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def astraflow(self, *arguments: str, timeout_s: float = 300, **environment: str) -> Answer:
        """Run ``astraflow`` with these arguments to its end."""
        command = self.start(*arguments, **environment)
        return finish(command, timeout_s=timeout_s)


def finish(command: subprocess.Popen[str], *, timeout_s: float = 300) -> Answer:
    """Wait for a command's end and take what it said."""
    try:
        out, err = command.communicate(timeout=timeout_s)
    except BaseException as error:
        command.kill()
        out, err = command.communicate()
        raise AssertionError(f"{command.args} did not end: {out}\n{err}") from error
    return Answer(command.returncode, out, err)


class LocalStack(Shell):
    """A Prefect server and a runner; ``astraflow up`` was called."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self.kill_folder = folder / "kill"
        self.kill_folder.mkdir(parents=True)
        super().__init__(folder, {"ASTRAFLOW_KILL_DIR": str(self.kill_folder), **environment})
        self.home = folder / "home"

    def up(self) -> None:
        self.astraflow("up").ok()

    @property
    def stack(self) -> Stack:
        stack = read_stack(self.home)
        assert stack is not None
        return stack

    def processes(self) -> list[Process]:
        """Everything of this stack that runs now."""
        return marked(stack_id(self.home))

    def process(self, pid: int) -> Process | None:
        """The running process of that number, if it is one of this stack's."""
        return next((process for process in self.processes() if process.pid == pid), None)

    def down(self) -> None:
        """End everything, by command first; whatever is left then is killed and is a failure."""
        try:
            self.astraflow("down").ok()
        finally:
            left = self.processes()
            for process in left:
                process.signal(signal.SIGCONT)
            end(left, grace_s=1)
        assert not left, f"astraflow down left {left}"


@contextlib.contextmanager
def local_stack(folder: Path, environment: Mapping[str, str]) -> Iterator[LocalStack]:
    """A stack for the length of a block."""
    stack = LocalStack(folder, environment)
    try:
        stack.up()
        yield stack
    finally:
        stack.down()
