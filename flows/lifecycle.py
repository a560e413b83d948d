"""What every flow of a run shares: who it is, and how it ends when Prefect cancels it.

Prefect raises ``TerminationSignal`` in the main thread of a synchronous flow and kills the process 30 s later.
Long work that can hand back its leases runs in a thread beside it and gets its stop event first.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from prefect.runtime import flow_run

from astraflow.participant import new_participant
from flows.output import own_output

if TYPE_CHECKING:
    from astraflow.config import RunConfig
    from storage.store import ObjectStore

GRACE_S = 22.0  # the process is killed 30 s after the signal; Prefect needs some of that itself


def participant_of(role: str, name: str, flow_run_id: str, life: int = 1) -> str:
    """The participant's name of one life of a flow run; another life of the same flow run has another name.

    It is told by the id's last digits: they are random in every kind of id, the first may be those of the time.
    """
    again = f"-{life}" if life > 1 else ""
    return "-".join(part for part in (role, name, flow_run_id[-8:] + again) if part)


def this_participant(role: str, name: str = "") -> str:
    """The name of the flow run that runs here; random outside of one."""
    if not flow_run.id:
        return new_participant(role, name)
    return participant_of(role, name, str(flow_run.id), int(flow_run.run_count or 1))


def is_here(pid: int) -> bool:
    """Whether process ``pid`` runs on this machine and belongs to the same local stack as this one."""
    mark = os.environ.get("ASTRAFLOW_STACK")
    if not mark or pid <= 0:
        return False
    process = Path(f"/proc/{pid}")
    try:
        state = (process / "stat").read_bytes().rpartition(b")")[2].split()[0]
        settings = (process / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return state != b"Z" and f"ASTRAFLOW_STACK={mark}".encode() in settings


def begin_life(role: str, name: str = "") -> str:
    """The first thing a flow does: it takes its participant's name, and an output that lasts as long as it does."""
    participant = this_participant(role, name)
    own_output(participant)
    return participant


def enter_run(run: str, store: str) -> tuple[ObjectStore, RunConfig]:
    """The run's store and config as one of its processes has them: its own code can be imported."""
    from astraflow.component import use_code
    from astraflow.recipe import load_run_config
    from storage import open_store

    opened = open_store(store)
    config = load_run_config(opened, run)
    use_code(config.code)
    return opened, config


def run_until_signal(work: Callable[[], None], stop: Callable[[], None], *, grace_s: float = GRACE_S) -> None:
    """Run ``work`` in a thread; if this thread is interrupted, call ``stop`` and give it ``grace_s`` to return.

    What ``work`` raises is raised here; an interruption is raised again after the wait.
    """
    failures: list[BaseException] = []
    done = threading.Event()  # not Thread.join: interrupted by a signal, it takes a running thread for an ended one

    def body() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  # carried to the flow's thread, raised there
            failures.append(error)
        finally:
            done.set()

    threading.Thread(target=body, name="flow-work", daemon=True).start()
    try:
        while not done.wait(timeout=0.5):  # short, so that a signal is seen soon
            pass
    except BaseException:
        stop()
        done.wait(timeout=grace_s)
        raise
    if failures:
        raise failures[0]
