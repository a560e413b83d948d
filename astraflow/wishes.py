"""An operator's wish in its own outbox, and a wait for the decision of the run's manager that answers it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from astraflow.pace import Pace
from astraflow.participant import Beat, DecisionsReader, Outbox, beat_every_s, new_participant
from astraflow.recipe import load_run_config
from astraflow.records import AnyDecision, DrainRequested, Paused, Resumed, Status, Stopped, Wanted
from storage.errors import ConfigError, DeadlineError
from storage.keys import RunKeys
from storage.store import ObjectStore

STOP_TIMEOUT_S = 120.0
WISH_TIMEOUT_S = 60.0


def stop(store: ObjectStore, run: str, *, reason: str, timeout_s: float = STOP_TIMEOUT_S) -> str:
    """Ask the run's manager to end it and wait for ``Stopped``; returns its reason. Raises ``DeadlineError``."""
    answer = _ask(store, run, [Wanted(what="stop", reason=reason)], lambda _: False, timeout_s)
    return answer.reason if isinstance(answer, Stopped) else ""


def pause(store: ObjectStore, run: str, policy: str, *, reason: str, timeout_s: float = WISH_TIMEOUT_S) -> None:
    """No more leases for ``policy`` (empty: for any) from the manager's answer on. Raises as ``stop`` does."""

    def heard(decision: AnyDecision) -> bool:
        return isinstance(decision, Paused) and decision.policy == policy

    _steer(store, run, [Wanted(what="pause", target=policy, reason=reason)], heard, timeout_s)


def resume(store: ObjectStore, run: str, policy: str, *, timeout_s: float = WISH_TIMEOUT_S) -> None:
    """Leases for ``policy`` again; empty: for all, however they were paused."""
    policies = [policy] if policy else [*load_run_config(store, run).trained, ""]

    def heard(decision: AnyDecision) -> bool:
        return isinstance(decision, Resumed) and decision.policy == policy

    _steer(store, run, [Wanted(what="resume", target=name) for name in policies], heard, timeout_s)


def drain(store: ObjectStore, run: str, participant: str, *, reason: str, timeout_s: float = WISH_TIMEOUT_S) -> None:
    """Ask one pool or trainer to finish or hand back its work and leave; returns when the manager has said so."""
    present = {RunKeys(run).status_participant(info.key) for info in store.list(RunKeys(run).statuses)}
    if participant not in present:
        raise ConfigError(
            f"the run {run} has no participant {participant!r}",
            where="participant",
            remedy=f"There are: {', '.join(sorted(present)) or 'none yet'}",
            kind="participant",
        )

    def heard(decision: AnyDecision) -> bool:
        return isinstance(decision, DrainRequested) and participant in decision.participants

    _steer(store, run, [Wanted(what="drain", target=participant, reason=reason)], heard, timeout_s)


def _steer(
    store: ObjectStore, run: str, wishes: Sequence[Wanted], heard: Callable[[AnyDecision], bool], timeout_s: float
) -> None:
    policies, wish = load_run_config(store, run).policies, wishes[0]
    if wish.what != "drain" and wish.target and wish.target not in policies:
        raise ConfigError(
            f"the run {run} has no policy {wish.target!r}",
            where="--policy",
            remedy=f"There are: {', '.join(sorted(policies))}",
            kind="policy",
        )
    answer = _ask(store, run, wishes, heard, timeout_s)
    if isinstance(answer, Stopped):
        raise ConfigError(
            f"the run is over: {answer.reason}", where=run, remedy=f"Nothing of it can {wish.what}", kind="over"
        )


def _ask(
    store: ObjectStore, run: str, wishes: Sequence[Wanted], heard: Callable[[AnyDecision], bool], timeout_s: float
) -> AnyDecision:
    """Say the wishes, in one record, unless the run is over; the decision that answers, or ``Stopped``."""
    config, keys, what = load_run_config(store, run), RunKeys(run), wishes[0].what
    reader = DecisionsReader.from_tail(store, keys)
    reader.cursor = max(0, reader.cursor - 1)  # a snapshot may stand at ``Stopped``
    if (over := _find(reader, lambda _: False)) is not None:
        return over
    participant = new_participant("operator")
    status = Status(participant=participant, role="operator", state="asking")
    with Beat(store, keys, status, every_s=beat_every_s(store.url, config.dataflow.silence_s)) as beat:
        Outbox(store, keys, participant).append(wishes)
        deadline, pace = time.monotonic() + timeout_s, Pace(store.url)
        while (answer := _find(reader, heard)) is None:
            if time.monotonic() > deadline:
                raise DeadlineError(
                    f"the run did not {what} within {timeout_s:g} s; its manager will hear the wish when one runs",
                    where=run,
                    remedy=f"If nothing of it runs, `astraflow run --resume {run}` lets it go on and hear",
                    kind=what,
                )
            time.sleep(max(0.1, pace.next_s()))
        beat.set(state="left")
    return answer


def _find(reader: DecisionsReader, heard: Callable[[AnyDecision], bool]) -> AnyDecision | None:
    """The first unread decision that was waited for, or ``Stopped``; reads to the end of the log otherwise."""
    while records := reader.poll():
        for _, record in records:
            for decision in record.decisions:
                if isinstance(decision, Stopped) or heard(decision):
                    return decision
    return None
