"""Commit points do nothing until told, and then kill at the n-th passing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from storage import commit_points
from storage.commit_points import COMMIT_POINTS, commit_point

PROGRAM = """
from storage.commit_points import commit_point
for count in range(3):
    commit_point("pool.before_upload"); commit_point("pool.after_upload"); print(count, flush=True)
"""


def run(kill_at: str | None) -> tuple[int, str]:
    environment = {name: value for name, value in os.environ.items() if name != "ASTRAFLOW_KILL_AT"}
    if kill_at is not None:
        environment["ASTRAFLOW_KILL_AT"] = kill_at
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("kill_at", "code", "printed"),
    [
        (None, 0, "0\n1\n2\n"),
        ("pool.after_upload", -signal.SIGKILL, ""),
        ("pool.before_upload:3", -signal.SIGKILL, "0\n1\n"),
        ("pool.before_upload:9", 0, "0\n1\n2\n"),
        ("trainer.after_step:1", 0, "0\n1\n2\n"),
    ],
)
def test_killed_where_it_was_told(kill_at: str | None, code: int, printed: str) -> None:
    assert run(kill_at) == (code, printed)


def test_unknown_points_are_mistakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ASTRAFLOW_KILL_AT", raising=False)
    commit_point("nothing")  # not looked at while nothing is to be killed
    monkeypatch.setenv("ASTRAFLOW_KILL_AT", "trainer.after_step:1000000")
    commit_point("pool.after_commit")
    with pytest.raises(ValueError, match="nothing"):
        commit_point("nothing")


def test_the_count_is_per_point(monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr("os.kill", lambda pid, number: killed.append((pid, number)))
    monkeypatch.setattr("storage.commit_points._passed", {})
    monkeypatch.setenv("ASTRAFLOW_KILL_AT", "pool.after_apply:2")
    for name in ("pool.after_apply", "pool.before_apply", "pool.before_apply"):
        commit_point(name)
    assert killed == []
    commit_point("pool.after_apply")
    assert killed == [(os.getpid(), signal.SIGKILL)]


def test_an_armed_point_kills_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    killed: list[int] = []
    monkeypatch.setattr("os.kill", lambda _, number: killed.append(number))
    monkeypatch.delenv("ASTRAFLOW_KILL_AT", raising=False)
    monkeypatch.setenv("ASTRAFLOW_KILL_DIR", str(tmp_path))
    commit_point("pool.after_apply")
    assert killed == []
    (tmp_path / "pool.after_apply").touch()
    for name in ("pool.before_apply", "pool.after_apply", "pool.after_apply"):
        commit_point(name)
    assert killed == [signal.SIGKILL]


def test_a_hook_sees_every_point(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr(commit_points, "hook", seen.append)
    for name in COMMIT_POINTS:
        commit_point(name)
    assert seen == list(COMMIT_POINTS)


def test_points_are_named_by_who_passes_them() -> None:
    assert len(set(COMMIT_POINTS)) == len(COMMIT_POINTS)
    assert {name.split(".")[0] for name in COMMIT_POINTS} == {"manager", "pool", "trainer", "maintenance"}
