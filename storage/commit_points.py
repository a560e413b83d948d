"""Named instants between two effects, where a test can kill the process.

A call costs one dictionary look-up. With ``ASTRAFLOW_KILL_AT=name:n`` in the environment the process sends itself
SIGKILL the n-th time it passes ``name``; nothing else reads that variable. Every state change that
others can see has a point before and after it, so that «killed at any instruction» can be tested.
"""

from __future__ import annotations

import os
import signal

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
)

_passed: dict[str, int] = {}


def commit_point(name: str) -> None:
    """Pass the instant ``name`` (one of ``COMMIT_POINTS``)."""
    wanted = os.environ.get("ASTRAFLOW_KILL_AT")
    if wanted is None:
        return
    if name not in COMMIT_POINTS:
        raise ValueError(f"{name!r} is not a commit point")
    _passed[name] = _passed.get(name, 0) + 1
    target, _, count = wanted.partition(":")
    if target == name and _passed[name] == int(count or 1):
        os.kill(os.getpid(), signal.SIGKILL)
