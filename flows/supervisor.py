"""Keeping a run's children alive: start, adopt, watch, restart within bounds, cancel.

Three sources say that a child is dead: Prefect's state of its flow run; its process, where that was seen on this
machine (an orphan of a killed runner dies unseen by Prefect); and, wherever it is, its status object that no longer
changes. Restarting a child that still lives is harmless: managers
and trainers are fenced, and a group is admitted once. The budget of restarts is refilled by the child's own progress:
that of another one says nothing about it.
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
from flows.children import ChildSpec, children_of
from flows.launcher import ChildRun, Launcher
from flows.lifecycle import is_here, participant_of
from storage.errors import ServiceError

DONE = "done"
MAX_RESTARTS = 5  # of one child, without progress of its own between them
GONE_LOOKS = 3  # so that Prefect's word on how it ended comes first
START_TIMEOUT_S = 300.0  # from asking for a flow run to its first sign of life


@dataclass(slots=True)
class Child:
    """A child with its present flow run."""

    spec: ChildSpec
    life: int = 0
    run: ChildRun | None = None
    restarts: int = 0
    steps_at_start: int = 0  # of its policy, or of the run for a manager, when this life started
    start_at: float = 0.0  # when the next life may start
    shown_at: float = 0.0  # when this life first showed itself
    seen_at: float = 0.0  # last change of its status, or its start
    beat: int = -1  # that was seen last
    is_seen: bool = False  # whether this life has shown itself: a manager's status object is also its predecessor's
    pid: int = 0  # of its process, once seen on this machine
    gone: int = 0  # looks in a row that did not find that process
    over: str = ""  # why it is not needed any more
    asked_to_go: set[str] = field(default_factory=set)  # participants (or the flow run) of a pool that is too many

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
    scaling: ScaleView
    outbox: Outbox
    log: Callable[[str], None]
    is_here: Callable[[int], bool] = is_here
    clock: Callable[[], float] = time.monotonic
    children: list[Child] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    followed: int = 0  # changes of the numbers of pools that were acted upon

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
        self.scaling.poll()
        present = {child.spec.key for child in self.children}
        wanted = {spec.key for spec in self._wanted()}
        self.followed = self.scaling.book.changes
        for spec in self._ever():
            if spec.key in present:
                continue
            earlier = self.launcher.find(spec)
            child = Child(spec, life=earlier[0].life if earlier else 0)
            self.children.append(child)
            living = next((run for run in earlier if run.is_living and run.state != "CANCELLING"), None)
            if adopt and living is not None:
                child.run, child.life, child.seen_at = living, living.life, self.clock()
                child.steps_at_start = self._steps_of(child)
                self.note(f"{spec.key}: adopted the running flow run {living.id[-8:]}")
            elif spec.key not in wanted or self._is_finished(child):
                child.over = DONE
            else:
                self._start(child)

    def _wanted(self) -> list[ChildSpec]:
        """What the run consists of now, by the manager's word on the numbers of pools."""
        return children_of(self.config, self.scaling.counts())

    def _ever(self) -> list[ChildSpec]:
        """What it ever consisted of."""
        return children_of(self.config, self.scaling.ever())

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
        self.scaling.poll()
        self._scale()
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

    def _scale(self) -> None:
        """Bring the pools to the numbers that the manager decided: the last ones go, missing ones start (again).

        A pool that left or failed is started again only by a decision made since then, never by the old one.
        """
        wanted = {spec.key: spec for spec in self._wanted()}
        if self.scaling.book.changes != self.followed:
            known = {child.spec.key: child for child in self.children}
            for key, spec in wanted.items():
                child = known.get(key)
                if child is None:
                    self.children.append(Child(spec, start_at=self.clock()))
                elif child.over and child.spec.role == "pool":
                    child.over, child.run, child.restarts, child.start_at = "", None, 0, self.clock()
                    child.asked_to_go.clear()
            self.followed = self.scaling.book.changes
        for child in self.children:
            if not child.over and child.spec.key not in wanted:
                self._let_go(child)

    def _let_go(self, child: Child) -> None:
        """Ask a pool that is too many to leave: its participant, or its flow run while that has not shown itself."""
        if child.run is None:
            child.over = DONE
            return
        names = self._names(child)
        new = [name for name in names or [child.run.id] if name not in child.asked_to_go]
        if new and names:
            self.outbox.append([Wanted(what="drain", target=name, reason="fewer pools are wanted") for name in new])
        elif new:
            self.launcher.cancel(child.run.id)
        if new:
            self.note(f"{child.spec.key}: asked to leave, fewer pools are wanted")
        child.asked_to_go.update(new)

    def _has_gone(self, child: Child, how: str) -> None:
        """A pool that was asked to leave runs no more; it starts again if more are wanted by now."""
        child.asked_to_go.clear()
        is_wanted = child.spec.key in {spec.key for spec in self._wanted()}
        self.note(f"{child.spec.key}: has left ({how})" + ("; it is wanted again" if is_wanted else ""))
        child.run, child.restarts, child.start_at = None, 0, self.clock()
        child.over = "" if is_wanted else DONE

    def flow_runs(self) -> dict[str, str]:
        """The newest flow run of each child, by the child's key."""
        return {child.spec.key: child.run.id for child in self.children if child.run is not None}

    def cancel_all(self) -> None:
        """Ask every child to end that lives or may live: also one that was being started, and one presumed dead.

        One that cannot be asked is noted, and the others are asked all the same.
        """
        known = {child.spec.key: child.run for child in self.children}
        for spec in self._ever():
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

    def _look_at_status(self, child: Child, now: float) -> None:
        found = [
            status
            for name, status in self.follower.statuses.items()
            if name.startswith(child.participants) or (child.spec.role == "manager" and status.role == "manager")
        ]
        newest = max(found, key=lambda status: status.beat, default=None)
        if newest is not None and newest.beat != child.beat:
            if not child.is_seen:
                child.shown_at = now
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
        if child.asked_to_go and not self.follower.is_over:
            self._has_gone(child, run.state.lower())
        elif self._is_finished(child) or (child.spec.may_complete and run.state == "COMPLETED"):
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
            self._has_gone(child, reason)
            return
        if self._has_got_on(child):
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

    def _has_got_on(self, child: Child) -> bool:
        """Whether this life did what it is there for; that of another child, or being started again, does not count."""
        if child.spec.role in ("trainer", "manager"):
            return self._steps_of(child) > child.steps_at_start
        if not child.is_seen:
            return False
        if child.seen_at - child.shown_at >= self.config.dataflow.silence_s:
            return True
        return any(self.follower.has_committed(name) for name in self._names(child))

    def _steps_of(self, child: Child) -> int:
        """Steps of a trainer's policy; for others those of the run."""
        if child.spec.role != "trainer":
            return self.follower.steps
        told = self.follower.policies.get(child.spec.name)
        return told.step if told is not None else 0

    def _start(self, child: Child) -> None:
        child.run = self.launcher.start(child.spec, child.life + 1)
        child.life += 1
        child.seen_at, child.beat, child.is_seen, child.pid, child.gone = self.clock(), -1, False, 0, 0
        child.steps_at_start = self._steps_of(child)
        if child.spec.role == "manager":
            child.beat = max((status.beat for status in self.follower.of_role("manager")), default=-1)
        wanted = f"{child.spec.flow}/{child.spec.deployments[0]}"
        if child.run.deployment not in ("", wanted):
            self.note(f"{child.spec.key}: Prefect does not know {wanted}, so {child.run.deployment} is used")
        self.log(f"{child.spec.key}: started flow run {child.run.id[-8:]}, life {child.life}")

    def _say_lost(self, child: Child, reason: str) -> None:
        """Tell the manager that a participant's process is dead, so that its leases end at once."""
        names = self._names(child)
        if names and child.spec.role in ("pool", "trainer"):
            self.outbox.append([Wanted(what="lost", target=name, reason=reason[:200]) for name in names])

    def _names(self, child: Child) -> list[str]:
        """The participants of its present flow run that have shown themselves."""
        return [name for name in self.follower.statuses if name.startswith(child.participants)]

    def note(self, text: str) -> None:
        """Keep an event for the run's page, and log it."""
        self.notes.append(text)
        self.log(text)
