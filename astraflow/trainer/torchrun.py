"""A trainer of several ranks on one machine, started and watched: torchrun as a child process. Imports no torch.

Over several machines, start torchrun on each yourself:
``torchrun --nnodes … -m astraflow.trainer.rank RUN STORE POLICY PARTICIPANT``.

Ranks may be killed at any instruction, so nothing is asked of them when this process must end: they are ended with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from storage import errors
from storage.errors import AstraFlowError

PARENT = "ASTRAFLOW_TRAINER_PARENT"
ERRORS = "ASTRAFLOW_RANK_ERRORS"
GRACE_S = 10.0


def run_ranks(
    run: str,
    store: str,
    policy: str,
    *,
    participant: str,
    ranks: int,
    threads: int,
    log: Callable[[str], None] = lambda text: None,
) -> None:
    """Train ``policy`` with ``ranks`` processes until it is done.

    Raises the error of the rank that failed first, ``AstraFlowError`` (kind ``rank``) if it died without a word.
    """
    with tempfile.TemporaryDirectory(prefix="astraflow-ranks-") as folder:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts=0"]
        command += [f"--nproc-per-node={ranks}", "-m", "astraflow.trainer.rank", run, store, policy, participant]
        environment = {**os.environ, PARENT: str(os.getpid()), ERRORS: folder, "OMP_NUM_THREADS": str(threads)}
        # In a session of its own, so that all ranks can be ended at once.
        process = subprocess.Popen(command, env=environment, start_new_session=True)
        log(f"torchrun {process.pid} with {ranks} ranks")
        try:
            code = process.wait()
        finally:
            _end(process)
        if code != 0:
            raise _first_error(Path(folder), code, policy)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Nothing of torchrun's is left behind."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=GRACE_S)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def write_error(error: AstraFlowError, rank: int) -> None:
    """Leave a rank's error for the process that watches it."""
    folder = os.environ.get(ERRORS)
    if folder:
        told = {"class": type(error).__name__, "what": error.what, "where": error.where}
        told |= {"remedy": error.remedy, "kind": error.kind}
        Path(folder, f"{rank}.json").write_text(json.dumps(told), encoding="utf-8")


def _first_error(folder: Path, code: int, policy: str) -> AstraFlowError:
    """The error that was left first; others usually follow from it."""
    files = sorted(folder.glob("*.json"), key=lambda file: file.stat().st_mtime_ns)
    if not files:
        return AstraFlowError(
            f"a rank of the trainer died (torchrun's code {code})",
            where=f"policy {policy}",
            remedy="The log has torchrun's report; memory is the usual reason. The next life goes on from the store",
            kind="rank",
        )
    told = json.loads(files[0].read_text(encoding="utf-8"))
    found = getattr(errors, told["class"], AstraFlowError)
    kind: type[AstraFlowError] = found
    return kind(told["what"], where=told["where"], remedy=told["remedy"], kind=told["kind"])
