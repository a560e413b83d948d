"""An operator's wish in its own outbox, and a wait for the decision of the run's manager that answers it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from astraflow.config import RunConfig
from astraflow.dataflow.scaling import LARGEST_REGION
from astraflow.pace import Pace
from astraflow.participant import Beat, DecisionsReader, Outbox, beat_every_s, new_participant
from astraflow.recipe import load_run_config
from astraflow.records import (
    AnyDecision,
    DrainRequested,
    Paused,
    PoolsWanted,
    Resumed,
    Scaled,
    Status,
    Stopped,
    Wanted,
    decode,
)
from astraflow.scale_view import ScaleView
from storage.errors import ConfigError, DataError, DeadlineError, NotFound
from storage.keys import RunKeys
from storage.store import ObjectStore

STOP_TIMEOUT_S = 120.0
WISH_TIMEOUT_S = 60.0


def stop(store: ObjectStore, run: str, *, reason: str, timeout_s: float = STOP_TIMEOUT_S) -> str:
    """Ask the run's manager to end it and wait for ``Stopped``; returns its reason. Raises ``DeadlineError``."""
    config = load_run_config(store, run)
    answer = _ask(store, config, [Wanted(what="stop", reason=reason)], lambda _: False, timeout_s)
    return answer.reason if isinstance(answer, Stopped) else ""


def pause(
    store: ObjectStore, run: str, policy: str, *, region: str = "", reason: str, timeout_s: float = WISH_TIMEOUT_S
) -> None:
    """No more leases for ``policy``, or to pools of ``region``, or (both empty) at all, from the manager's answer on.

    Raises as ``drain`` does.
    """
    config = load_run_config(store, run)
    _check_pause(config, policy, region)

    def heard(decision: AnyDecision) -> bool:
        return isinstance(decision, Paused) and (decision.policy, decision.region) == (policy, region)

    wish = Wanted(what="pause", target=policy, region=region, reason=reason)
    _steer(store, config, [wish], heard, timeout_s)


def resume(store: ObjectStore, run: str, policy: str, *, region: str = "", timeout_s: float = WISH_TIMEOUT_S) -> None:
    """Leases for ``policy``, or to pools of ``region``, again; both empty: all, however it was paused."""
    config = load_run_config(store, run)
    _check_pause(config, policy, region)
    wanted = [Wanted(what="resume", target=policy, region=region)]
    if not (policy or region):
        view = ScaleView(store, config)
        view.poll()
        regions = [Wanted(what="resume", region=name) for name in view.book.regions_paused]
        wanted = [*regions, *(Wanted(what="resume", target=name) for name in config.trained), *wanted]

    def heard(decision: AnyDecision) -> bool:
        return isinstance(decision, Resumed) and (decision.policy, decision.region) == (policy, region)

    _steer(store, config, wanted, heard, timeout_s)


def drain(store: ObjectStore, run: str, participant: str, *, reason: str, timeout_s: float = WISH_TIMEOUT_S) -> None:
    """Ask one pool or trainer to finish or hand back its work and leave; returns when the manager has said so."""
    config = load_run_config(store, run)
    present = _drainable(store, RunKeys(run))
    if participant not in present:
        raise ConfigError(
            f"the run {run} has no pool or trainer {participant!r} that could leave",
            where="participant",
            remedy=f"There are: {', '.join(sorted(present)) or 'none yet'}",
            kind="participant",
        )

    def heard(decision: AnyDecision) -> bool:
        return isinstance(decision, DrainRequested) and participant in decision.participants

    _steer(store, config, [Wanted(what="drain", target=participant, reason=reason)], heard, timeout_s)


def scale(
    store: ObjectStore, run: str, region: str, pools: int | None, *, reason: str, timeout_s: float = WISH_TIMEOUT_S
) -> dict[str, int]:
    """Ask for so many pools of a region (None: as many as load reports ask for); the numbers that are wanted then.

    Returns when the manager has said so: pools start and leave afterwards. Raises as ``drain`` does.
    """
    config = load_run_config(store, run)
    view = ScaleView(store, config)
    view.poll()
    _check_scale(config, view, region, pools)

    def heard(decision: AnyDecision) -> bool:
        return isinstance(decision, Scaled) and region in decision.pools

    wish = PoolsWanted(region=region, pools=-1 if pools is None else pools, reason=reason)
    _steer(store, config, [wish], heard, timeout_s)
    view.poll()
    return view.counts()


def pools_of(text: str) -> int | None:
    """A number of pools as a person writes it; None for ``auto``."""
    if text.strip() == "auto":
        return None
    try:
        return int(text)
    except ValueError:
        raise ConfigError(
            f"{text!r} is not a number of pools", where="pools", remedy="Say 0, 1, 2, … or auto", kind="pools"
        ) from None


def scaled_text(region: str, pools: int | None, wanted: Mapping[str, int]) -> str:
    """What ``scale`` came to, in words."""
    numbers = ", ".join(f"{where} {number}" for where, number in wanted.items())
    then = f"nothing holds {region} any more" if pools is None else f"{region} stays so until it is set to auto"
    return f"pools wanted are {numbers}; {then}"


def _check_scale(config: RunConfig, view: ScaleView, region: str, pools: int | None) -> None:
    """Raise ``ConfigError`` for a number of pools that the run can't have."""
    counts, run = view.counts(), config.name
    _check_region(config, region)
    if pools is None and config.scale.mode != "act" and region not in view.book.held:
        raise ConfigError(
            f"nothing but a number moves the pools of {run}: its scale.mode is {config.scale.mode!r}",
            where="pools",
            remedy='Say a number; a run whose recipe has [scale] mode = "act" follows its load reports',
            kind="not_scaled",
        )
    if pools is not None and not 0 <= pools <= LARGEST_REGION:
        raise ConfigError(
            f"{pools} pools are not possible", where="pools", remedy=f"Say 0 to {LARGEST_REGION}", kind="pools"
        )
    if pools == 0 and sum(counts.values()) == counts[region]:
        raise ConfigError(
            f"the run {run} would have no pool left",
            where="pools",
            remedy=f"`astraflow pause {run}` lets it stand still, `astraflow stop {run}` ends it",
            kind="no_pool",
        )


def _drainable(store: ObjectStore, keys: RunKeys) -> list[str]:
    """Pools and trainers that have not left, by their own word."""
    found: list[str] = []
    for info in store.list(keys.statuses):
        try:
            status = decode(store.get(info.key), Status, where=info.key)
        except (DataError, NotFound):
            continue
        if status.role in ("pool", "trainer") and status.state != "left":
            found.append(status.participant)
    return found


def _check_pause(config: RunConfig, policy: str, region: str) -> None:
    """What a pause is of must be there. Raises ``ConfigError``."""
    if policy and region:
        raise ConfigError(
            "a pause is of a policy or of a region, not of both",
            where="--policy, --region",
            remedy="Name one of them: every pool of a region plays all policies of its workflow",
            kind="pause",
        )
    if policy and policy not in config.policies:
        raise ConfigError(
            f"the run {config.name} has no policy {policy!r}",
            where="--policy",
            remedy=f"There are: {', '.join(sorted(config.policies))}",
            kind="policy",
        )
    if region:
        _check_region(config, region)


def _check_region(config: RunConfig, region: str) -> None:
    if region not in config.pools_of_regions:
        raise ConfigError(
            f"the run {config.name} has no pool in a region {region!r}",
            where="region",
            remedy=f"Pools are configured in: {', '.join(config.pools_of_regions)}",
            kind="region",
        )


def _steer(
    store: ObjectStore,
    config: RunConfig,
    wishes: Sequence[Wanted | PoolsWanted],
    heard: Callable[[AnyDecision], bool],
    timeout_s: float,
) -> None:
    answer = _ask(store, config, wishes, heard, timeout_s)
    if isinstance(answer, Stopped):
        raise ConfigError(
            f"the run is over: {answer.reason}",
            where=config.name,
            remedy=f"Nothing of it can {_named(wishes[0])}",
            kind="over",
        )


def _ask(
    store: ObjectStore,
    config: RunConfig,
    wishes: Sequence[Wanted | PoolsWanted],
    heard: Callable[[AnyDecision], bool],
    timeout_s: float,
) -> AnyDecision:
    """Say the wishes, in one record, unless the run is over; the decision that answers, or ``Stopped``."""
    keys = RunKeys(config.name)
    reader = DecisionsReader.from_tail(store, keys)
    reader.cursor = max(0, reader.cursor - 1)  # a snapshot may stand at ``Stopped``
    seen = _Seen()
    if (over := _find(reader, lambda _: False, seen)) is not None:
        return over
    participant = new_participant("operator")
    status = Status(participant=participant, role="operator", state="asking")
    with Beat(store, keys, status, every_s=beat_every_s(store.url, config.dataflow.silence_s)) as beat:
        Outbox(store, keys, participant).append(wishes)
        deadline, pace = time.monotonic() + timeout_s, Pace(store.url)
        while (answer := _find(reader, heard, seen)) is None:
            if time.monotonic() > deadline:
                raise _late(config.name, _named(wishes[0]), timeout_s, is_draining=seen.draining)
            time.sleep(max(0.1, pace.next_s()))
        beat.set(state="left")
    return answer


def _named(wish: Wanted | PoolsWanted) -> str:
    return wish.what if isinstance(wish, Wanted) else "scale"


@dataclass(slots=True)
class _Seen:
    """What was read on the way to an answer."""

    draining: bool = False


def _find(reader: DecisionsReader, heard: Callable[[AnyDecision], bool], seen: _Seen) -> AnyDecision | None:
    """The first unread decision that was waited for, or ``Stopped``; reads to the end of the log otherwise."""
    while records := reader.poll():
        for _, record in records:
            for decision in record.decisions:
                if isinstance(decision, Stopped) or heard(decision):
                    return decision
                if isinstance(decision, DrainRequested) and not decision.participants:
                    seen.draining = True
    return None


def _late(run: str, what: str, timeout_s: float, *, is_draining: bool) -> DeadlineError:
    if is_draining:
        return DeadlineError(
            f"the run is draining and did not end within {timeout_s:g} s: a trainer may finish its step first",
            where=run,
            remedy=f"Nothing more need be said; `astraflow status {run}` tells whom it waits for",
            kind=what,
        )
    return DeadlineError(
        f"the run did not {what} within {timeout_s:g} s; its manager will hear the wish when one runs",
        where=run,
        remedy=f"If nothing of it runs, `astraflow run --resume {run}` lets it go on and hear",
        kind=what,
    )
