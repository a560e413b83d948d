"""One child of a run with its present flow run: what was seen of it, by its status object and its process.

Three sources say that a child is dead: Prefect's state of its flow run; its process, where that was seen on this
machine (an orphan of a killed runner dies unseen by Prefect); and, wherever it is, its status object that no longer
changes. Here are the last two; the first is asked by the supervisor, for all children at once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from astraflow.config import Region, RunConfig
from astraflow.follow import RunFollower
from flows.children import LOCAL, ChildSpec
from flows.launcher import ChildRun
from flows.lifecycle import participant_of

GONE_LOOKS = 3  # so that Prefect's word on how it ended comes first
RUNNER_START_S = 60.0
"""From a runner's taking a flow run to its process's first word: no machine has to be made, no image pulled. Doubled at
each try, since all processes of this machine may be slow."""


@dataclass(slots=True)
class Child:
    """A child with its present flow run."""

    spec: ChildSpec
    life: int = 0
    run: ChildRun | None = None
    restarts: int = 0
    steps_at_start: int = 0  # of its policy, or of the run for a manager, when this life started
    start_at: float = 0.0  # when the next life may start
    taken_at: float | None = None  # when it was first seen that a runner or worker has taken its flow run
    is_told: bool = False  # that no worker takes it
    shown_at: float = 0.0  # when this life first showed itself
    seen_at: float = 0.0  # last change of its status, or its start
    beat: int = -1  # that was seen last
    is_seen: bool = False  # whether this life has shown itself: a manager's status object is also its predecessor's
    pid: int = 0  # of its process, once seen on this machine
    gone: int = 0  # looks in a row that did not find that process
    over: str = ""  # why it is not needed any more
    asked_to_go: set[str] = field(default_factory=set)  # participants (or the flow run) of a pool that is too many

    def begin(self, run: ChildRun, follower: RunFollower, now: float, *, adopted: bool = False) -> None:
        """Another flow run lives for this child from here on: a new one, or one that an earlier experiment started."""
        self.run, self.life, self.seen_at = run, run.life, now
        self.taken_at, self.is_told = None, False
        self.beat, self.is_seen, self.pid, self.gone = -1, False, 0, 0
        self.steps_at_start = self.steps(follower)
        if self.spec.role == "manager" and not adopted:
            self.beat = max((status.beat for status in follower.of_role("manager")), default=-1)

    def names(self, follower: RunFollower) -> list[str]:
        """The participants of its present flow run that have shown themselves."""
        return [name for name in follower.statuses if name.startswith(self._participants)]

    def steps(self, follower: RunFollower) -> int:
        """Steps of a trainer's policy; for others those of the run."""
        if self.spec.role != "trainer":
            return follower.steps
        told = follower.policies.get(self.spec.name)
        return told.step if told is not None else 0

    def look(self, follower: RunFollower, now: float, is_here: Callable[[int], bool]) -> None:
        """Take in what its status object and its process tell now."""
        found = [
            status
            for name, status in follower.statuses.items()
            if name.startswith(self._participants) or (self.spec.role == "manager" and status.role == "manager")
        ]
        newest = max(found, key=lambda status: status.beat, default=None)
        if newest is not None and newest.beat != self.beat:
            if not self.is_seen:
                self.shown_at = now
            self.beat, self.seen_at, self.is_seen = newest.beat, now, True
            if newest.pid != self.pid:  # a process that died right after its beat is still the one that was seen
                self.pid = newest.pid if is_here(newest.pid) else 0
        self.gone = self.gone + 1 if self.pid and not is_here(self.pid) else 0
        if self.taken_at is None and self.run is not None and self.run.state != "SCHEDULED":
            self.taken_at = now

    def beats(self, config: RunConfig, now: float) -> bool:
        """Whether the store has heard of it lately."""
        return self.is_seen and now - self.seen_at <= config.dataflow.silence_s

    def has_got_on(self, follower: RunFollower, config: RunConfig) -> bool:
        """Whether this life did what it is there for; that of another child, or being started again, counts not."""
        if self.spec.role in ("trainer", "manager"):
            return self.steps(follower) > self.steps_at_start
        if not self.is_seen:
            return False
        if self.seen_at - self.shown_at >= config.dataflow.silence_s:
            return True
        return any(follower.has_committed(name) for name in self.names(follower))

    def late(self, config: RunConfig, now: float) -> str:
        """Why its flow run, which Prefect takes for living, must be dead or will never live; empty if it may live."""
        assert self.run is not None
        if self.gone >= GONE_LOOKS:
            return f"its process {self.pid} is gone"
        if self.is_seen:
            limit_s = config.dataflow.silence_s + 5
            return f"went silent for {limit_s:g} s" if now - self.seen_at > limit_s else ""
        if self.waits_for_worker:
            return ""
        limit_s = self.start_timeout_s(config)
        if self.run.state == "PENDING" and not self.run.work_pool:
            limit_s = min(limit_s, RUNNER_START_S * 2**self.restarts)
        is_late = now - (self.seen_at if self.taken_at is None else self.taken_at) > limit_s
        return f"never showed a sign of life for {limit_s:g} s" if is_late else ""

    @property
    def waits_for_worker(self) -> bool:
        """Whether its flow run lies in a work pool's queue, untaken: another one would only lie there too."""
        return self.run is not None and self.run.state == "SCHEDULED" and bool(self.run.work_pool)

    def start_timeout_s(self, config: RunConfig) -> float:
        """From a flow run's being taken to its first sign of life."""
        return config.regions.get(self.spec.region or LOCAL, Region()).start_timeout_s

    @property
    def _participants(self) -> str:
        """What the participant names of this flow run begin with."""
        return participant_of(self.spec.role, self.spec.name, self.run.id) if self.run else "-"
