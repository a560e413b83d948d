"""Following a run while it goes: what its participants say of themselves, read little by little from the store.

A poll reads the status objects that changed, the new records of each trainer's outbox and the last decision. It is
early rather than exact: what a trainer said counts before a manager took it in. Pages show it, and the supervisor and
mirrors go by it (who beats, how far a trainer is, whether the run is over); nothing of it enters a decision of the
manager, and the exact figures of a run are ``astraflow.query``'s.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from astraflow.config import RunConfig
from astraflow.records import (
    Committed,
    Consumed,
    DecisionRecord,
    Ended,
    FactRecord,
    Published,
    Status,
    Stopped,
    decode,
)
from storage.errors import DataError, NotFound
from storage.keys import RunKeys
from storage.log import NumberedLog
from storage.store import ObjectStore

REWARD_METRIC = "reward_mean"


@dataclass(slots=True)
class PolicyProgress:
    """How far one policy's training is."""

    policy: str
    steps_total: int
    step: int = 0
    version: int = -1
    incarnation: int = 0
    rewards: dict[int, float] = field(default_factory=dict)  # step -> mean reward of its batch
    steps_seen: set[int] = field(default_factory=set)  # outboxes of several lives come in any order
    metrics: dict[str, float] = field(default_factory=dict)  # of the newest step
    wait_s: float = 0.0
    step_s: float = 0.0
    lag_max: float = 0.0
    delta_bytes: int = 0
    full_bytes: int = 0
    ended: str | None = None

    @property
    def curve(self) -> list[float]:
        """Mean reward per step, in step order."""
        return [self.rewards[step] for step in sorted(self.rewards)]

    @property
    def wait_ratio(self) -> float | None:
        """Share of the trainer's time that it waited for data."""
        total_s = self.wait_s + self.step_s
        return self.wait_s / total_s if total_s > 0 else None


class RunFollower:
    """The newest view of one run; ``poll`` brings it up to date."""

    def __init__(self, store: ObjectStore, config: RunConfig) -> None:
        self.config = config
        self.policies = {name: PolicyProgress(name, config.trainer_of(name).steps) for name in config.trained}
        self.statuses: dict[str, Status] = {}
        self.stopped: str | None = None
        self._store = store
        self._keys = RunKeys(config.name)
        self._e_tags: dict[str, str] = {}
        self._outboxes: dict[str, int] = {}
        self._decisions = NumberedLog(store, self._keys.decision)
        self._tail = 0
        self._versions: set[tuple[str, int]] = set()

    def poll(self) -> bool:
        """Read what is new; whether anything was. Raises ``StoreError``, and ``DataError`` for a damaged last decision:
        who goes by a run whose decisions cannot be read must not go on.
        """
        changed = self._poll_statuses()
        for participant, status in self.statuses.items():
            if status.role == "trainer":
                changed |= self._poll_outbox(participant)
        return self.poll_end() or changed

    def poll_end(self) -> bool:
        """Read the last decision alone, for who needs only ``is_over``; whether there was a new one."""
        tail = self._decisions.tail(self._tail)
        if tail in (0, self._tail):
            return False
        data = self._decisions.read(tail - 1)
        if data is not None:
            record = decode(data, DecisionRecord, where=self._decisions.key(tail - 1))
            stopped = [decision for decision in record.decisions if isinstance(decision, Stopped)]
            if stopped:
                self.stopped = stopped[0].reason or "stopped"
        self._tail = tail
        return True

    @property
    def is_over(self) -> bool:
        """Whether the decisions log ends with ``Stopped``."""
        return self.stopped is not None

    @property
    def steps(self) -> int:
        """Optimizer steps of all policies together: the mark of progress."""
        return sum(progress.step for progress in self.policies.values())

    def has_committed(self, participant: str) -> bool:
        """Whether a pool has handed in a group; reads its outbox up to the record that says so."""
        log = NumberedLog(self._store, lambda seq: self._keys.outbox(participant, seq))
        seq = 0
        while (data := log.read(seq)) is not None:
            try:
                record = decode(data, FactRecord, where=log.key(seq))
            except DataError:
                record = None
            if record is not None and any(isinstance(fact, Committed) for fact in record.facts):
                return True
            seq += 1
        return False

    def waiting(self) -> list[str]:
        """What participants wait for, one line each."""
        return [f"{name}: {status.waiting}" for name, status in sorted(self.statuses.items()) if status.waiting]

    def of_role(self, role: str) -> list[Status]:
        """The statuses of one role, those that have left last."""
        found = [status for status in self.statuses.values() if status.role == role]
        return sorted(found, key=lambda status: (status.state == "left", status.participant))

    def _poll_statuses(self) -> bool:
        changed = False
        for info in self._store.list(self._keys.statuses):
            if self._e_tags.get(info.key) == info.e_tag:
                continue
            try:
                status = decode(self._store.get(info.key), Status, where=info.key)
            except (DataError, NotFound):
                continue
            self._e_tags[info.key] = info.e_tag
            self.statuses[status.participant] = status
            changed = True
        return changed

    def _poll_outbox(self, participant: str) -> bool:
        log = NumberedLog(self._store, lambda seq: self._keys.outbox(participant, seq))
        start = self._outboxes.get(participant, 0)
        for seq, data in log.read_from(start):
            self._outboxes[participant] = seq + 1
            try:
                record = decode(data, FactRecord, where=log.key(seq))
            except DataError:
                continue
            for fact in record.facts:
                self._take(fact)
        return self._outboxes.get(participant, 0) > start

    def _take(self, fact: object) -> None:
        progress = self.policies.get(getattr(fact, "policy", ""))
        if progress is None:
            return
        if isinstance(fact, Published):
            progress.version = max(progress.version, fact.version)
            progress.incarnation = max(progress.incarnation, fact.incarnation)
            if (fact.policy, fact.version) not in self._versions:
                self._versions.add((fact.policy, fact.version))
                progress.delta_bytes += fact.delta_bytes
                progress.full_bytes += fact.full_bytes
        elif isinstance(fact, Consumed):
            if fact.step > progress.step:
                progress.step = fact.step
                progress.metrics = fact.metrics
            if fact.step not in progress.steps_seen:
                progress.steps_seen.add(fact.step)
                progress.wait_s += fact.metrics.get("wait_s", 0.0)
                progress.step_s += fact.metrics.get("step_s", 0.0)
                progress.lag_max = max(progress.lag_max, fact.metrics.get("lag_max", 0.0))
            if REWARD_METRIC in fact.metrics:
                progress.rewards.setdefault(fact.step, fact.metrics[REWARD_METRIC])
        elif isinstance(fact, Ended):
            progress.ended = fact.reason or "done"
