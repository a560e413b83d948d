"""Keeping a run's children alive: start, adopt, watch, restart within bounds, cancel.

Three sources say that a child is dead: Prefect's state of its flow run; its process, where that was seen on this
machine (an orphan of a killed runner dies unseen by Prefect); and, wherever it is, its status object that no longer
changes. Restarting a child that still lives is harmless: managers
and trainers are fenced, and a group is admitted once. The budget of restarts is refilled by progress.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from astraflow.config import RunConfig
from astraflow.follow import RunFollower
from astraflow.participant import Outbox
from astraflow.records import Wanted
from flows.children import ChildSpec, children_of
from flows.launcher import ChildRun, Launcher
from flows.lifecycle import is_here, participant_of
from storage.errors import ServiceError

DONE = "done"
SPARE = ("pool", "mirror")  # without one of these a run goes on: others play, weights come from the run's store
MAX_RESTARTS = 5  # of one child, without a step of progress between them
GONE_LOOKS = 3  # so that Prefect's word on how it ended comes first
START_TIMEOUT_S = 300.0  # from asking for a flow run to its first sign of life


@dataclass(slots=True)
class Child:
    """A child with its present flow run."""

    spec: ChildSpec
    life: int = 0
    run: ChildRun | None = None
    restarts: int = 0
    steps_at_restart: int = -1
    start_at: float = 0.0  # when the next life may start
    seen_at: float = 0.0  # last change of its status, or its start
    beat: int = -1  # that was seen last
    is_seen: bool = False  # whether this life has shown itself: a manager's status object is also its predecessor's
    pid: int = 0  # of its process, once seen on this machine
    gone: int = 0  # looks in a row that did not find that process
    over: str = ""  # why it is not needed any more

    @property
    def participants(self) -> str:
        """What the participant names of this flow run begin with."""
        return participant_of(self.spec.role, self.spec.name, self.run.id) if self.run else "-"


@dataclass(slots=True)
class Supervisor:
    """Keeps the children of one run alive until the run is over."""

    config: RunConfig
    launcher: Launcher
    follower: RunFollower
    outbox: Outbox
    log: Callable[[str], None]
    is_here: Callable[[int], bool] = is_here
    clock: Callable[[], float] = time.monotonic
    children: list[Child] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def begin(self, *, adopt: bool) -> None:
        """Start every child; with ``adopt``, keep those that an earlier experiment started and that still run."""
        for spec in children_of(self.config):
            child = Child(spec)
            self.children.append(child)
            earlier = self.launcher.find(spec)
            child.life = earlier[0].life if earlier else 0
            living = next((run for run in earlier if run.is_living and run.state != "CANCELLING"), None)
            if adopt and living is not None:
                child.run, child.life, child.seen_at = living, living.life, self.clock()
                self.note(f"{spec.key}: adopted the running flow run {living.id[:8]}")
            elif not self._is_finished(child):
                self._start(child)

    def tick(self) -> None:
        """Look at every child once, and do what is needed. Raises ``ServiceError`` when the run can't go on."""
        states = self.launcher.states([child.run.id for child in self.children if child.run and not child.over])
        self.follower.poll()  # after the states: a child that ended as it should has said so before
        if self.follower.is_over:
            return
        now = self.clock()
        for child in self.children:
            if child.over:
                continue
            if child.run is None:
                if now >= child.start_at:
                    self._start(child)
                continue
            child.run = states.get(child.run.id, child.run)
            self._look_at_status(child, now)
            self._judge(child, now)
        pools = [child.over for child in self.children if child.spec.role == "pool"]
        if all(over not in ("", DONE) for over in pools):  # one that has left was asked to: the manager knows why
            raise ServiceError(
                f"no pool is left: {'; '.join(pools)}",
                where=self.config.name,
                remedy=f"Go on with `astraflow run --resume {self.config.name}`",
                kind="no_pool",
            )

    def flow_runs(self) -> dict[str, str]:
        """The newest flow run of each child, by the child's key."""
        return {child.spec.key: child.run.id for child in self.children if child.run is not None}

    def cancel_all(self) -> None:
        """Ask every living child to end."""
        for child in self.children:
            if child.run is not None and child.run.is_living:
                self.launcher.cancel(child.run.id)

    def living(self) -> list[str]:
        """Children whose flow runs have not ended, by Prefect's word now."""
        runs = {child.run.id: child.spec.key for child in self.children if child.run}
        return sorted(runs[id] for id, run in self.launcher.states(list(runs)).items() if run.is_living)

    def _look_at_status(self, child: Child, now: float) -> None:
        found = [
            status
            for name, status in self.follower.statuses.items()
            if name.startswith(child.participants) or (child.spec.role == "manager" and status.role == "manager")
        ]
        newest = max(found, key=lambda status: status.beat, default=None)
        if newest is not None and newest.beat != child.beat:
            child.beat, child.seen_at, child.is_seen = newest.beat, now, True
            if newest.pid != child.pid:  # a process that died right after its beat is still the one that was seen
                child.pid = newest.pid if self.is_here(newest.pid) else 0
        child.gone = child.gone + 1 if child.pid and not self.is_here(child.pid) else 0

    def _judge(self, child: Child, now: float) -> None:
        run = child.run
        assert run is not None
        is_living = run.is_living or (run.is_presumed_dead and self._beats(child, now))
        if is_living and child.gone >= GONE_LOOKS:
            self.launcher.cancel(run.id)
            self._restart(child, f"its process {child.pid} is gone (Prefect says {run.state.lower()})", now)
            return
        if is_living:
            limit_s = self.config.dataflow.silence_s + 5 if child.is_seen else START_TIMEOUT_S
            if now - child.seen_at > limit_s:
                self.launcher.cancel(run.id)
                what = "went silent" if child.is_seen else "never showed a sign of life"
                self._restart(child, f"{what} for {limit_s:g} s (Prefect says {run.state.lower()})", now)
            return
        if self._is_finished(child) or (child.spec.may_complete and run.state == "COMPLETED"):
            child.over = DONE
            self.note(f"{child.spec.key}: done")
        elif run.state == "CANCELLED":
            self._cancelled(child)
        else:
            self._restart(child, f"{run.state.lower()}: {run.message or 'no message'}", now)

    def _beats(self, child: Child, now: float) -> bool:
        """Whether the store has heard of it lately: after an outage of the server that outweighs its automations."""
        return child.is_seen and now - child.seen_at <= self.config.dataflow.silence_s

    def _is_finished(self, child: Child) -> bool:
        if self.follower.is_over:
            return True
        told = self.follower.policies.get(child.spec.name) if child.spec.role == "trainer" else None
        return told is not None and told.ended is not None

    def _cancelled(self, child: Child) -> None:
        """A person cancelled the child: that is a wish, not a fault."""
        child.over = f"{child.spec.key} was cancelled"
        self.note(child.over)
        self._say_lost(child, "cancelled")
        if child.spec.role not in SPARE:
            raise ServiceError(
                f"{child.over}, and without it the run can't go on",
                where=self.config.name,
                remedy=f"Go on with `astraflow run --resume {self.config.name}`",
                kind="cancelled",
            )

    def _restart(self, child: Child, reason: str, now: float) -> None:
        """Say that the old life is dead, and start the next one at once, or later if it keeps dying."""
        self._say_lost(child, reason)
        if self.follower.steps > child.steps_at_restart:
            child.restarts = 0
        child.steps_at_restart = self.follower.steps
        child.restarts += 1
        child.run = None
        if child.restarts <= MAX_RESTARTS:
            wait_s = 0.0 if child.restarts == 1 else min(30.0, 2.0 ** (child.restarts - 1))
            child.start_at = now + wait_s
            self.note(f"{child.spec.key}: {reason}; restart {child.restarts} of {MAX_RESTARTS} in {wait_s:g} s")
            if wait_s == 0:
                self._start(child)
            return
        child.over = f"{child.spec.key} died {child.restarts} times without progress, last: {reason}"
        self.note(child.over)
        if child.spec.role not in SPARE:
            raise ServiceError(
                child.over,
                where=self.config.name,
                remedy=f"See its flow run's log, then `astraflow run --resume {self.config.name}`",
                kind="restarts",
            )

    def _start(self, child: Child) -> None:
        child.run = self.launcher.start(child.spec, child.life + 1)
        child.life += 1
        child.seen_at, child.beat, child.is_seen, child.pid, child.gone = self.clock(), -1, False, 0, 0
        if child.spec.role == "manager":
            child.beat = max((status.beat for status in self.follower.of_role("manager")), default=-1)
        self.log(f"{child.spec.key}: started flow run {child.run.id[:8]}, life {child.life}")

    def _say_lost(self, child: Child, reason: str) -> None:
        """Tell the manager that a participant's process is dead, so that its leases end at once."""
        names = [name for name in self.follower.statuses if name.startswith(child.participants)]
        if names and child.spec.role in ("pool", "trainer"):
            self.outbox.append([Wanted(what="lost", target=name, reason=reason[:200]) for name in names])

    def note(self, text: str) -> None:
        """Keep an event for the run's page, and log it."""
        self.notes.append(text)
        self.log(text)
