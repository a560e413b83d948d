"""Named instants between two effects, where a test can kill the process.

Without the two environment variables a call costs two dictionary look-ups.
``ASTRAFLOW_KILL_AT=name:n``: the process sends itself SIGKILL the n-th time it passes ``name``.
``ASTRAFLOW_KILL_DIR=folder``: whoever passes ``name`` while a file of that name lies in the folder removes
it and is killed, so that one run can be killed at point after point. Tests in one process set ``hook``
instead, and raise from it. Every state change that others can see has a point before and after it, so
that «killed at any instruction» can be tested.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

COMMIT_POINTS = (
    "manager.before_decision",
    "manager.after_decision",
    "manager.after_snapshot",
    "pool.before_upload",
    "pool.after_upload",
    "pool.after_commit",
    "pool.before_apply",
    "pool.after_apply",
    "trainer.before_step",
    "trainer.after_step",
    "trainer.after_blobs",
    "trainer.after_manifest",
    "trainer.after_consumed",
    "trainer.before_checkpoint_marker",
    "trainer.after_checkpoint",
    "trainer.after_claim",
    "maintenance.before_copy",
    "maintenance.after_copy",
    "maintenance.after_entry",
    "maintenance.before_delete",
    "maintenance.after_delete",
)

hook: Callable[[str], None] | None = None
_passed: dict[str, int] = {}


def commit_point(name: str) -> None:
    """Pass the instant ``name`` (one of ``COMMIT_POINTS``)."""
    if hook is not None:
        hook(name)
    at, folder = os.environ.get("ASTRAFLOW_KILL_AT"), os.environ.get("ASTRAFLOW_KILL_DIR")
    if at is None and folder is None:
        return
    if name not in COMMIT_POINTS:
        raise ValueError(f"{name!r} is not a commit point")
    if at is not None and _counted(name, at):
        os.kill(os.getpid(), signal.SIGKILL)
    if folder is not None and _claimed(Path(folder) / name):
        os.kill(os.getpid(), signal.SIGKILL)


def _counted(name: str, at: str) -> bool:
    target, _, count = at.partition(":")
    _passed[name] = _passed.get(name, 0) + 1
    return target == name and _passed[name] == int(count or 1)


def _claimed(armed: Path) -> bool:
    try:
        armed.unlink()
    except FileNotFoundError:
        return False
    return True
