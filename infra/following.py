"""Following a run from the terminal until it is over; Ctrl-C leaves it running, a second one stops it."""

from __future__ import annotations

import time
from collections.abc import Callable

from rich.console import Console
from rich.live import Live
from rich.text import Text

from astraflow.follow import RunFollower
from astraflow.recipe import load_run_config
from infra.display import line, page
from infra.interrupts import farewell
from infra.launch import Launched, cancel, flow_run_state, raise_if_dead
from infra.wishes import stop
from storage.errors import ConfigError, DeadlineError
from storage.store import ObjectStore

CREATE_TIMEOUT_S = 120.0
SECOND_PRESS_S = 4.0
LEAVE_TIMEOUT_S = 45.0
_ASK_PREFECT_EVERY_S = 3.0
_LINE_EVERY_S = 10.0


def follow(store: ObjectStore, run: str, launched: Launched, console: Console) -> bool:
    """Show the run until it is over; False if the reader left it running."""
    try:
        watch(store, run, launched, console)
    except KeyboardInterrupt:
        _interrupted(store, run, launched, console)
        return False
    return True


def watch(store: ObjectStore, run: str, launched: Launched, console: Console) -> None:
    """Show the run until it is over and its experiment has ended; Ctrl-C is the caller's."""
    view = _when_created(store, run, launched)
    show(view, console, alive=lambda: raise_if_dead(launched, run, exists=True))
    _wait_for_experiment(launched)


def show(view: RunFollower, console: Console, *, alive: Callable[[], None]) -> None:
    """Draw ``view`` until the run is over; ``alive`` raises if nobody drives it any more."""
    start = asked = time.monotonic()
    said = 0.0
    with Live(console=console, auto_refresh=False, transient=False) if console.is_terminal else _NoLive() as live:
        while True:
            view.poll()
            now = time.monotonic()
            if isinstance(live, Live):
                live.update(page(view, "over" if view.is_over else "running", now - start), refresh=True)
            elif now - said >= _LINE_EVERY_S or view.is_over:
                said = now
                console.print(Text(line(view, now - start)), soft_wrap=True)
            if view.is_over:
                return
            if now - asked >= _ASK_PREFECT_EVERY_S:
                asked = now
                alive()
            time.sleep(1.0)


class _NoLive:
    """Stands in for the live page where there is no terminal."""

    def __enter__(self) -> _NoLive:
        return self

    def __exit__(self, *_: object) -> None:
        return None


def _when_created(store: ObjectStore, run: str, launched: Launched) -> RunFollower:
    """A follower once the experiment has written the run. Raises ``ServiceError`` if it ended before that."""
    deadline = time.monotonic() + CREATE_TIMEOUT_S
    while True:
        try:
            return RunFollower(store, load_run_config(store, run))
        except ConfigError as error:
            if error.kind != "no_run":
                raise
        raise_if_dead(launched, run, exists=False)
        if time.monotonic() > deadline:
            raise DeadlineError(
                f"the experiment did not begin within {CREATE_TIMEOUT_S:g} s",
                where=launched.url,
                remedy="Is a runner there? `astraflow up` starts it",
                kind="start",
            )
        time.sleep(0.5)


def _wait_for_experiment(launched: Launched) -> None:
    """Give the experiment time to write its last page; it ends by itself."""
    deadline = time.monotonic() + LEAVE_TIMEOUT_S
    while flow_run_state(launched) in ("RUNNING", "PENDING", "SCHEDULED") and time.monotonic() < deadline:
        time.sleep(0.5)


def _interrupted(store: ObjectStore, run: str, launched: Launched, console: Console) -> None:
    """Say what goes on; a second Ctrl-C soon after, however soon, stops it."""
    try:
        farewell(
            f"The run goes on. See it with `astraflow status {run}`, end it with `astraflow stop {run}`.\n"
            f"Press Ctrl-C again within {SECOND_PRESS_S:g} s to stop it now."
        )
        time.sleep(SECOND_PRESS_S)
    except KeyboardInterrupt:
        console.print("Stopping the run; Ctrl-C does not wait for it …", highlight=False, markup=False)
        try:
            said = f"Stopped: {_stop(store, run, launched)}"
        except KeyboardInterrupt:
            said = f"The wish to stop {run} stays: its manager will hear it."
        console.print(said, highlight=False, markup=False)


def _stop(store: ObjectStore, run: str, launched: Launched) -> str:
    """End the run, or its experiment if that has not created the run yet; why it ended."""
    try:
        return stop(store, run, reason="stopped from the terminal")
    except ConfigError as error:
        if error.kind != "no_run":
            raise
    cancel(launched)
    return f"the experiment is being cancelled; there was no run {run} yet"
