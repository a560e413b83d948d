"""Keeping a run's children alive: start, adopt, watch, restart within bounds, cancel.

Restarting a child that still lives is harmless: managers and trainers are fenced, and a group is admitted once. The
budget of restarts is refilled by the child's own progress: that of another one says nothing about it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from astraflow.config import RunConfig
from astraflow.follow import RunFollower
from astraflow.participant import Outbox
from astraflow.records import Wanted
from astraflow.scale_view import ScaleView
from flows.launcher import Launcher
from flows.lifecycle import is_here
from flows.lives import Child
from flows.scaling import DONE, Scaling
from storage.errors import ServiceError

MAX_RESTARTS = 5  # of one child, without progress of its own between them


@dataclass(slots=True)
class Supervisor:
    """Keeps the children of one run alive until the run is over."""

    config: RunConfig
    launcher: Launcher
    follower: RunFollower
    scale_view: ScaleView
    outbox: Outbox
    log: Callable[[str], None]
    is_here: Callable[[int], bool] = is_here
    clock: Callable[[], float] = time.monotonic
    children: list[Child] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    scaling: Scaling = field(init=False)

    def __post_init__(self) -> None:
        self.scaling = Scaling(
            self.config, self.scale_view, self.launcher, self.follower, self.outbox, self.note, self.clock
        )

    def begin(self, *, adopt: bool) -> None:
        """Start every child; with ``adopt``, keep those that an earlier experiment started and that still run.

        What a fault of the server leaves undone, the next call or the next ``tick`` does: no child is started twice.
        """
        try:
            self._begin(adopt=adopt)
        except ServiceError:
            self.follower.poll()  # what there is to take over may get on, or end, all the same
            raise

    def _begin(self, *, adopt: bool) -> None:
        self.scale_view.poll()
        self.scaling.begin()
        present = {child.spec.key for child in self.children}
        wanted = {spec.key for spec in self.scaling.wanted()}
        for spec in self.scaling.ever():
            if spec.key in present:
                continue
            earlier = self.launcher.find(spec)
            child = Child(spec, life=earlier[0].life if earlier else 0)
            self.children.append(child)
            living = next((run for run in earlier if run.is_living and run.state != "CANCELLING"), None)
            if adopt and living is not None:
                child.begin(living, self.follower, self.clock(), adopted=True)
                self.note(f"{spec.key}: adopted the running flow run {living.id[-8:]}")
            elif spec.key not in wanted or self._is_finished(child):
                child.over = DONE
            else:
                self._start(child)

    def tick(self) -> None:
        """Look at every child once, and do what is needed. Raises ``ServiceError`` when the run can't go on.

        The store is asked even if Prefect does not answer: the end of the run and its progress are there.
        """
        try:
            states = self.launcher.states([child.run.id for child in self.children if child.run and not child.over])
        except ServiceError:
            self.follower.poll()
            if self.follower.is_over:
                return
            raise
        self.follower.poll()  # after the states: a child that ended as it should has said so before
        if self.follower.is_over:
            return
        now = self.clock()
        self.scale_view.poll()
        self.scaling.follow(self.children)
        for child in self.children:
            if child.over:
                continue
            if child.run is None:
                if now >= child.start_at:
                    self._start(child)
                continue
            child.run = states.get(child.run.id, child.run)
            child.look(self.follower, now, self.is_here)
            self._judge(child, now)
        pools = [child.over for child in self.children if child.spec.role == "pool"]
        lost = [over for over in pools if over not in ("", DONE)]
        if lost and all(pools):  # if all have left because they were asked to, the manager knows why
            raise ServiceError(
                f"no pool is left: {'; '.join(lost)}",
                where=self.config.name,
                remedy=f"Go on with `astraflow run --resume {self.config.name}`",
                kind="no_pool",
            )

    def flow_runs(self) -> dict[str, str]:
        """The newest flow run of each child, by the child's key."""
        return {child.spec.key: child.run.id for child in self.children if child.run is not None}

    def cancel_all(self) -> None:
        """Ask every child to end that lives or may live: also one that was being started, and one presumed dead.

        One that cannot be asked is noted, and the others are asked all the same.
        """
        known = {child.spec.key: child.run for child in self.children}
        for spec in self.scaling.ever():
            try:
                run = known.get(spec.key)
                # Interrupted while it asked for a flow run, it does not know it, but Prefect does.
                for each in [run] if run is not None else self.launcher.find(spec):
                    if each.is_living or each.is_presumed_dead:
                        self.launcher.cancel(each.id)
            except ServiceError as error:
                self.note(f"{spec.key} could not be cancelled: {error.what}")

    def living(self) -> list[str]:
        """Children whose flow runs have not ended, by Prefect's word now."""
        runs = {child.run.id: child.spec.key for child in self.children if child.run}
        return sorted(runs[id] for id, run in self.launcher.states(list(runs)).items() if run.is_living)

    def _judge(self, child: Child, now: float) -> None:
        run = child.run
        assert run is not None
        # After an outage of the server what the store heard outweighs its automations.
        if run.is_living or (run.is_presumed_dead and child.beats(self.config, now)):
            if late := child.late(self.config, now):
                self.launcher.cancel(run.id)
                self._restart(child, f"{late} (Prefect says {run.state.lower()})", now)
            elif child.waits_for_worker and not child.is_told:
                self._tell_of_waiting(child, now)
            return
        if child.asked_to_go and not self.follower.is_over:
            self.scaling.has_gone(child, run.state.lower())
        elif self._is_finished(child) or (child.spec.may_complete and run.state == "COMPLETED"):
            child.over = DONE
            self.note(f"{child.spec.key}: done")
        elif run.state == "CANCELLED":
            self._cancelled(child)
        else:
            self._restart(child, f"{run.state.lower()}: {run.message or 'no message'}", now)

    def _tell_of_waiting(self, child: Child, now: float) -> None:
        limit_s = child.start_timeout_s(self.config)
        if child.run is not None and now - child.seen_at > limit_s:
            child.is_told = True
            self.note(
                f"{child.spec.key}: no worker of the work pool {child.run.work_pool} took it in {limit_s:g} s; it waits"
            )

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
        if not child.spec.is_spare:
            raise ServiceError(
                f"{child.over}, and without it the run can't go on",
                where=self.config.name,
                remedy=f"Go on with `astraflow run --resume {self.config.name}`",
                kind="cancelled",
            )

    def _restart(self, child: Child, reason: str, now: float) -> None:
        """Say that the old life is dead, and start the next one at once, or later if it keeps dying."""
        self._say_lost(child, reason)
        if child.asked_to_go:
            self.scaling.has_gone(child, reason)
            return
        if child.has_got_on(self.follower, self.config):
            child.restarts = 0
        child.restarts += 1
        child.run = None
        if child.restarts <= MAX_RESTARTS:
            at_once = child.restarts == 1 and child.is_seen
            wait_s = 0.0 if at_once else min(30.0, 2.0 ** max(1, child.restarts - 1))
            child.start_at = now + wait_s
            self.note(f"{child.spec.key}: {reason}; restart {child.restarts} of {MAX_RESTARTS} in {wait_s:g} s")
            if at_once:
                self._start(child)
            return
        child.over = f"{child.spec.key} died {child.restarts} times without progress, last: {reason}"
        self.note(child.over)
        if not child.spec.is_spare:
            raise ServiceError(
                child.over,
                where=self.config.name,
                remedy=f"See its flow run's log, then `astraflow run --resume {self.config.name}`",
                kind="restarts",
            )

    def _start(self, child: Child) -> None:
        run = self.launcher.start(child.spec, child.life + 1)
        child.begin(run, self.follower, self.clock())
        wanted = f"{child.spec.flow}/{child.spec.deployments[0]}"
        if run.deployment not in ("", wanted):
            self.note(f"{child.spec.key}: Prefect does not know {wanted}, so {run.deployment} is used")
        self.log(f"{child.spec.key}: started flow run {run.id[-8:]}, life {child.life}")

    def _say_lost(self, child: Child, reason: str) -> None:
        """Tell the manager that a participant's process is dead, so that its leases end at once."""
        names = child.names(self.follower)
        if names and child.spec.role in ("pool", "trainer"):
            self.outbox.append([Wanted(what="lost", target=name, reason=reason[:200]) for name in names])

    def note(self, text: str) -> None:
        """Keep an event for the run's page, and log it."""
        self.notes.append(text)
        self.log(text)
