"""Where a flow run's process writes: to something that is there for as long as the process is.

Runners and workers read what their flow runs say from pipes, and a flow run outlives them, but not its pipe: Prefect's
console ends the process at the first line that it cannot write. So in a local stack a flow run writes to a file of its
own, and elsewhere, where the output is for the machine's own logs, to nowhere once nobody reads it any more.
"""

from __future__ import annotations

import logging
import os
import select
import stat
import sys
import threading
from datetime import UTC, datetime
from pathlib import Path

from prefect.runtime import flow_run

_STANDARD = (1, 2)


def own_output(participant: str) -> None:
    """Make the output of this process last as long as it does."""
    home = os.environ.get("ASTRAFLOW_HOME")
    if home and os.environ.get("ASTRAFLOW_STACK") and flow_run.id:
        _write_to(Path(home) / "logs" / "flow-runs" / f"{participant}.log", participant)
    elif flow_run.id:
        outlive_readers()


def outlive_readers() -> None:
    """From the moment on at which nobody reads the standard output or error any more, they lead nowhere."""
    pipes = [standard for standard in _STANDARD if _is_pipe(standard)]
    if pipes and hasattr(select, "poll"):
        threading.Thread(target=_watch, args=(pipes,), name="output", daemon=True).start()


def _watch(pipes: list[int]) -> None:
    poll = select.poll()
    for descriptor in pipes:
        poll.register(descriptor, 0)  # no event is asked for: what is left is the other side's end
    for _ in pipes:
        for descriptor, _why in poll.poll():
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, descriptor)
            os.close(nowhere)
            poll.unregister(descriptor)


def _is_pipe(descriptor: int) -> bool:
    try:
        return stat.S_ISFIFO(os.fstat(descriptor).st_mode)
    except OSError:
        return False


def _write_to(file: Path, participant: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    with file.open("a", encoding="utf-8") as output:  # logs are shown in this order
        output.write(f"{participant} began at {now}\n")
    sys.stdout.flush()
    sys.stderr.flush()
    _log_to(file)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for standard in _STANDARD:
        os.dup2(descriptor, standard)
    os.close(descriptor)


def _log_to(file: Path) -> None:
    """What the core logs goes to Prefect, by the stack's settings, and to the file of this flow run."""
    log = logging.getLogger("astraflow")
    log.setLevel(logging.INFO)  # Prefect attaches its handler to it, and leaves the level alone
    handler = logging.FileHandler(file, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s.%(msecs)03d | %(levelname)-7s | %(message)s", "%H:%M:%S"))
    log.addHandler(handler)
