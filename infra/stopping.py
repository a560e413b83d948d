"""Ending a run from outside: an operator's wish in its own outbox, and a wait for the manager's last word."""

from __future__ import annotations

import time

from astraflow.follow import RunFollower
from astraflow.participant import Beat, Outbox, beat_every_s, new_participant
from astraflow.recipe import load_run_config
from astraflow.records import Status, Wanted
from storage.errors import DeadlineError
from storage.keys import RunKeys
from storage.store import ObjectStore

STOP_TIMEOUT_S = 120.0


def stop(store: ObjectStore, run: str, *, reason: str, timeout_s: float = STOP_TIMEOUT_S) -> str:
    """Ask the run's manager to end it and wait for ``Stopped``; returns its reason. Raises ``DeadlineError``."""
    config = load_run_config(store, run)
    view = RunFollower(store, config)
    view.poll()
    if view.stopped is not None:
        return view.stopped
    keys, participant = RunKeys(run), new_participant("operator")
    status = Status(participant=participant, role="operator", state="asking")
    with Beat(store, keys, status, every_s=beat_every_s(store.url, config.dataflow.silence_s)) as beat:
        Outbox(store, keys, participant).append([Wanted(what="stop", reason=reason)])
        deadline = time.monotonic() + timeout_s
        while view.stopped is None:
            if time.monotonic() > deadline:
                raise DeadlineError(
                    f"the run did not stop within {timeout_s:g} s; its manager will hear the wish when one runs",
                    where=run,
                    remedy=f"If nothing of it runs, `astraflow run --resume {run}` lets it end",
                    kind="stop",
                )
            time.sleep(0.2)
            view.poll()
        beat.set(state="left")
    return view.stopped
