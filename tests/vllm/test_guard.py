"""What bears the mark ends with its owner, or when the guard is closed; nothing else does."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from astraflow.raas.vllm_guard import Guard, bearers

OWNER = """
import subprocess, sys, time
from astraflow.raas.vllm_guard import Guard
guard = Guard()
with guard.marking():
    child = subprocess.Popen(["sleep", "300"])
other = subprocess.Popen(["sleep", "300"])
print(child.pid, other.pid, guard._mark, flush=True)
time.sleep(300)
"""


def until_gone(mark: str) -> None:
    deadline = time.monotonic() + 60
    while bearers(mark):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_killed_owner_takes_the_marked_along() -> None:
    root = str(Path(__file__).parents[2])
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True, cwd=root)
    assert owner.stdout is not None
    child, other, mark = owner.stdout.readline().split()
    try:
        assert bearers(mark) == [int(child)]
        owner.kill()
        owner.wait()
        until_gone(mark)
        assert Path(f"/proc/{other}").exists()
    finally:
        subprocess.run(["kill", other], check=False)


def test_a_process_that_gives_itself_a_title_still_bears_the_mark() -> None:
    """As vLLM's do: the title is written over where the system shows the environment."""
    pytest.importorskip("setproctitle")
    guard = Guard()
    script = "import time, setproctitle; setproctitle.setproctitle('engine'); print(flush=True); time.sleep(300)"
    with guard.marking():
        child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    assert Path(f"/proc/{child.pid}/cmdline").read_bytes().startswith(b"engine\0")
    guard.close()
    try:
        assert child.wait(timeout=60) == -9
    finally:
        child.kill()


def test_closing_ends_what_is_left() -> None:
    guard = Guard()
    with guard.marking():
        child = subprocess.Popen(["sleep", "300"])
    guard.close()
    assert child.wait(timeout=60) == -9
    guard.close()
