"""Ctrl-C at every moment: no traceback, exit code 130, and a word about what is left."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from astraflow.bootstrap import create_run
from astraflow.recipe import load_recipe
from infra import interrupts
from infra.local_stack import down, read_stack, stack_id
from infra.processes import marked
from storage import open_store
from storage.keys import RunKeys

RECIPE = """
name = "small"
[policies.solver]
model = "tiny-qwen3"
[problems]
source = "addition"
options = { digits = 1, count = 5 }
"""
ROOT = Path(__file__).parents[2]


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    """The console script, once Python itself has started, with SIGINT as it comes to a foreground process."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "ASTRAFLOW_"))}
    script = (
        "import os, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from infra.entry import main; os.write(2, b'here\\n'); main()"
    )
    command = subprocess.Popen(
        [sys.executable, "-c", script, *words],
        cwd=folder,
        env={**kept, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert command.stderr is not None
    assert command.stderr.readline() == "here\n"
    return command


def interrupted(command: subprocess.Popen[str], when: Callable[[], bool] | float) -> tuple[int, str, str]:
    """Send SIGINT at a moment; what the command said and its exit code (130 if the signal itself ended it)."""
    if callable(when):
        deadline = time.monotonic() + 120
        while not when():
            assert command.poll() is None, command.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.02)
    else:
        time.sleep(when)
    command.send_signal(signal.SIGINT)
    out, err = command.communicate(timeout=120)
    return 130 if command.returncode == -signal.SIGINT else command.returncode, out, err


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A folder with a run in the default store that nobody drives."""
    (tmp_path / "small.toml").write_text(RECIPE)
    here = Path.cwd()
    os.chdir(tmp_path)
    try:
        config = load_recipe(tmp_path / "small.toml")
        create_run(open_store(config.store), config)
    finally:
        os.chdir(here)
    return tmp_path


def asked(folder: Path) -> bool:
    """Whether an operator has said a wish."""
    store = open_store(str(folder / ".astraflow" / "store"))
    return any("operator" in info.key for info in store.list(RunKeys("small").outboxes))


@pytest.mark.parametrize("delay_s", [0.02, 0.2, 0.5, 0.9, 1.5])
@pytest.mark.parametrize("words", [["doctor"], ["stop", "small"], ["logs", "small", "--follow"]])
def test_early_interruptions_are_quiet(run: Path, words: Sequence[str], delay_s: float) -> None:
    code, _, err = interrupted(start(run, *words), delay_s)
    if words[0] == "logs" and code == 4:  # quicker than the signal: there are no logs
        return
    assert code == 130, err
    assert "Traceback" not in err
    assert marked(stack_id(run / ".astraflow")) == []


@pytest.mark.parametrize("what", ["stop", "pause", "resume"])
def test_a_wish_that_was_said_stays(run: Path, what: str) -> None:
    code, out, err = interrupted(start(run, what, "small"), lambda: asked(run))
    assert (code, out) == (130, "")
    assert f"Interrupted. The wish to {what} small stays: its manager will hear it" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("moment", ["lock", "server", "state"])
def test_a_start_that_is_interrupted_is_undone(tmp_path: Path, moment: str) -> None:
    home = tmp_path / ".astraflow"
    moments: dict[str, Callable[[], bool]] = {
        "lock": (home / "stack.lock").exists,
        "server": (home / "logs" / "server.log").exists,
        "state": (home / "stack.json").exists,
    }
    try:
        code, out, err = interrupted(start(tmp_path, "up"), moments[moment])
        assert (code, out) == (130, ""), err
        assert "Traceback" not in err
        assert moment == "lock" or "nothing of the local stack runs" in err
        assert read_stack(home) is None
        assert marked(stack_id(home)) == []
    finally:
        down(home)


def test_only_the_innermost_note_is_said(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts._Interruption, "is_said", False)
    with pytest.raises(KeyboardInterrupt), interrupts.leaving("outer"), interrupts.leaving("inner"):
        raise KeyboardInterrupt
    interrupts.farewell()
    assert capsys.readouterr().err == "\nInterrupted. inner\n"
    monkeypatch.setattr(interrupts._Interruption, "is_said", False)
    with pytest.raises(ValueError, match="other"), interrupts.leaving("never"):
        raise ValueError("other")
    interrupts.farewell()
    assert capsys.readouterr().err == "\nInterrupted.\n"
