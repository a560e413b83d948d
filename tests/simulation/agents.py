"""Virtual pools and trainers: they keep the protocol over a bad network, die, hang, lie and come back.

Each has its own faulty client of the store and acts only in ``tick``; nothing blocks. What they do is drawn from
the world's seeded generator, so a seed is a run.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

import msgspec

from astraflow import records as r
from astraflow.config import RunConfig
from storage.errors import NotFound, StoreError
from storage.keys import RunKeys
from storage.log import NumberedLog, Patience
from storage.store import ObjectStore

NO_PATIENCE = Patience(total_s=0.0, sleep=lambda _: None, clock=lambda: 0.0)


@dataclass
class Agent:
    """A participant: an outbox that sends the same bytes until they are there, a beat, a reader of decisions."""

    store: ObjectStore
    config: RunConfig
    name: str
    rng: random.Random
    outbox: list[bytes] = field(default_factory=list)
    sent: int = 0
    read: int = 0
    beat: int = 0
    beat_at: float = 0.0
    is_mute: bool = False  # no beats: a partition of one object, say
    is_over: bool = False
    is_told_to_go: bool = False

    def __post_init__(self) -> None:
        self.keys = RunKeys(self.config.name)
        self.log = NumberedLog(self.store, lambda seq: self.keys.outbox(self.name, seq), patience=NO_PATIENCE)

    def say(self, *facts: r.AnyFact) -> None:
        record = r.FactRecord(id=f"{self.rng.getrandbits(64):016x}", participant=self.name, facts=list(facts))
        self.outbox.append(r.encode(record))

    def tick(self, now: float) -> None:
        try:
            if now >= self.beat_at and not self.is_mute:
                self.beat += 1
                self.beat_at = now + 1.0
                status = r.Status(participant=self.name, role="x", state="running", beat=self.beat)
                self.store.put(self.keys.status(self.name), r.encode(status))
            self.act(now)
            while self.sent < len(self.outbox):
                assert self.log.create(self.sent, self.outbox[self.sent]) is None
                self.sent += 1
        except StoreError:
            return

    def act(self, now: float) -> None:
        raise NotImplementedError

    def decisions(self) -> Iterator[r.AnyDecision]:
        while True:
            try:
                data = self.store.get(self.keys.decision(self.read))
            except NotFound:
                return
            self.read += 1
            yield from r.decode(data, r.DecisionRecord, where="").decisions

    def manifest(self, policy: str, version: int) -> dict | None:
        try:
            return json.loads(self.store.get(self.keys.manifest(policy, version)))
        except NotFound:
            return None


@dataclass
class Play:
    """A group being played."""

    group: int
    attempt: int
    done_at: float
    versions: dict[str, int]


@dataclass
class VirtualPool(Agent):
    """Plays leases for heavy-tailed times; some fail, some hang, some records are nonsense."""

    capacity: int = 4
    region: str = "local"
    pace: float = 1.0
    mischief: float = 0.0
    sameness: float = 0.2  # how often all rewards of a part are equal
    ahead: int = 0  # leases beyond its capacity
    waiting: list[tuple[int, int]] = field(default_factory=list)  # leases that no place is free for: group, attempt
    applied: dict[str, int] = field(default_factory=dict)
    plays: dict[int, Play] = field(default_factory=dict)
    items: dict[int, tuple[int, float, str]] = field(default_factory=dict)  # of evaluations: attempt, end, name
    has_left: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        joined = r.PoolJoined(
            pool=self.config.pools_of_regions[self.region][0],
            region=self.region,
            policies=sorted(self.config.policies),
            capacity=self.capacity,
            engine="virtual",
            data_hash=self.config.data_hash,
        )
        self.say(joined)

    def act(self, now: float) -> None:
        self._apply_versions()
        for decision in self.decisions():
            self._hear(decision, now)
        self._finish(now)
        self._start(now)
        if self.rng.random() < 0.02:
            self.ahead = self.rng.randint(0, self.capacity)
            self.say(r.LeasesWanted(ahead=self.ahead))
        if self.is_told_to_go and not self.has_left and self.rng.random() < 0.5:
            held = [*((play.group, play.attempt) for play in self.plays.values()), *self.waiting]
            for group, attempt in held:
                self.say(r.Failed(group=group, attempt=attempt, kind="drained"))
            self.plays.clear()
            self.waiting.clear()
            for item, (attempt, _, _) in self.items.items():
                self.say(r.EvalFailed(item=item, attempt=attempt, kind="drained"))
            self.items.clear()
            self.say(r.Left())
            self.has_left = True
        self.is_over = self.has_left and self.sent == len(self.outbox)

    def _apply_versions(self) -> None:
        for policy in sorted(self.config.policies):
            if policy in self.applied and self.rng.random() < 0.5:
                continue
            version = self.applied.get(policy, -1)
            while (found := self.manifest(policy, version + 1)) is not None:
                version += 1
                newest = found
            if version != self.applied.get(policy, -1):
                self.applied[policy] = version
                self.say(r.Applied(policy=policy, version=version, step=newest["step"], digest=newest["digest"]))

    def _hear(self, decision: r.AnyDecision, now: float) -> None:
        match decision:
            case r.Leased(pool=self.name):
                self.waiting += zip(decision.groups, decision.attempts, strict=True)
            case r.EvalLeased(pool=self.name):
                for item, attempt in zip(decision.items, decision.attempts, strict=True):
                    done_at = now + self.pace * self.rng.choice([0.5, 2.0, 4.0, 1e9])
                    self.items[item] = (attempt, done_at, decision.evaluation)
            case r.EvalReported():
                self.items = {item: found for item, found in self.items.items() if found[2] != decision.evaluation}
            case r.Expired(pool=self.name) if self.rng.random() < 0.5:  # else it goes on, and commits late
                for group, attempt in zip(decision.groups, decision.attempts, strict=True):
                    self.plays.pop(group, None)
                    self.waiting = [lease for lease in self.waiting if lease != (group, attempt)]
            case r.DrainRequested() if not decision.participants or self.name in decision.participants:
                self.is_told_to_go = True
            case r.Stopped():
                self.has_left = self.is_over = True

    def _start(self, now: float) -> None:
        """Begin what waits, as far as there are places."""
        while self.waiting and len(self.plays) < self.capacity:
            group, attempt = self.waiting.pop(0)
            time_s = self.pace * min(30.0, self.rng.paretovariate(1.3))
            if self.rng.random() < 0.05:
                time_s = self.rng.choice([26.0, 35.0, 1e9])  # past its timeout, or never
            self.plays[group] = Play(group, attempt, now + time_s, dict(self.applied))

    def _finish_items(self, now: float) -> None:
        for item, (attempt, done_at, name) in list(self.items.items()):
            if done_at > now:
                continue
            del self.items[item]
            if self.rng.random() < 0.1:
                self.say(r.EvalFailed(item=item, attempt=attempt, kind="environment"))
                continue
            repeats = self.config.evaluations[name].repeats
            self.say(
                r.Evaluated(
                    evaluation=name,
                    item=item,
                    attempt=attempt,
                    scores=[float(self.rng.random() < 0.5) for _ in range(repeats)],
                    low=dict(self.applied),
                    high=dict(self.applied),
                )
            )

    def _finish(self, now: float) -> None:
        self._finish_items(now)
        done = [play for play in self.plays.values() if play.done_at <= now]
        failed = [play for play in done if self.rng.random() < 0.05]
        for play in failed:
            self.say(r.Failed(group=play.group, attempt=play.attempt, kind="environment"))
        played = [play for play in done if play not in failed]
        for play in done:
            del self.plays[play.group]
        if played:
            objects = [self._object(policy, played) for policy in sorted(self.config.policies)]
            groups, attempts = [p.group for p in played], [p.attempt for p in played]
            self._commit(r.Committed(groups=groups, attempts=attempts, objects=[o for o in objects if o]))

    def _commit(self, fact: r.Committed) -> None:
        for thing in fact.objects:
            for _ in range(200):  # uploads are retried until they are there
                try:
                    self.store.put(thing.path, b"torn" if self.rng.random() < 0.05 else thing.hash.encode())
                    break
                except StoreError:
                    continue
        if self.rng.random() < self.mischief:
            self._lie(fact)
        else:
            self.say(fact)

    def _lie(self, fact: r.Committed) -> None:
        lies = self.rng.randrange(7)
        if lies == 0:
            self.outbox.append(b'{"id": "x", nonsense' + str(self.rng.random()).encode())
        elif lies == 1:
            self.say(r.Committed(groups=[10**6], attempts=[1], objects=[]))
        elif lies == 2:
            self.say(r.Committed(groups=fact.groups, attempts=fact.attempts, objects=[]))
        elif lies < 5:
            change = {"store": "nonsense://x"} if lies == 3 else {"rewards": [1e39] * len(fact.objects[0].rewards)}
            first = msgspec.structs.replace(fact.objects[0], **change)
            self.say(msgspec.structs.replace(fact, objects=[first, *fact.objects[1:]]))
        elif lies == 5:
            self.say(r.LeasesWanted(ahead=self.rng.choice([-1, self.capacity + 1, 10**6])))
        else:
            self.say(r.Applied(policy=sorted(self.config.policies)[0], version=10**6, step=10**6, digest="no"))

    def _object(self, policy: str, plays: list[Play]) -> r.PartsObject | None:
        size = self.config.dataflow.group_size
        plays = [play for play in plays if policy in play.versions]
        low = [play.versions[policy] for play in plays for _ in range(size)]
        high = [self.applied[policy]] * len(low)
        unique = f"{self.rng.getrandbits(32):08x}"
        oldest = min(low)
        same = self.rng.random() < self.sameness
        lengths = [self.rng.choice([5, 5, 5, 5, 5, 5, 0, 90]) for _ in plays]
        return r.PartsObject(
            policy=policy,
            path=self.keys.trajectory(policy, oldest, self.name, unique),
            size_bytes=4,
            hash=f"hash-{unique}",
            groups=[play.group for play in plays],
            row_starts=[i * size for i in range(len(plays))],
            row_counts=[size] * len(plays),
            episodes=list(range(size)) * len(plays),
            roles=[policy] * len(low),
            slots=[0] * len(low),
            version_min=low,
            version_max=high,
            rewards=[1.0 if same else float(i % 2) for i in range(len(low))],
            prompt_tokens=[3] * len(low),
            response_tokens=[length for length in lengths for _ in range(size)],
        )


@dataclass
class VirtualTrainer(Agent):
    """Claims its policy, trains batches in order, publishes; the manifest says how far it came."""

    policy: str = ""
    pace: float = 1.0
    version: int = -1
    step: int = 0
    incarnation: int = 0
    has_claimed: bool = False
    is_fenced: bool = False
    batches: dict[int, r.Batched] = field(default_factory=dict)
    trained_at: float = -1.0
    making: dict | None = None
    head: dict | None = None
    skipped: dict[str, list[int]] = field(default_factory=dict)  # of the last 8 batches, as real manifests have it

    def act(self, now: float) -> None:
        if not self.has_claimed:
            self._claim()
        for decision in self.decisions():
            match decision:
                case r.Batched(policy=self.policy):
                    self.batches[decision.n] = decision
                case r.DrainRequested() if not decision.participants or self.name in decision.participants:
                    self.is_told_to_go = True
                case r.Stopped():
                    self.is_told_to_go = True
        steps = self.config.trainer_of(self.policy).steps
        if self.making is None and (self.step >= steps or self.is_told_to_go):
            if not self.is_fenced and not self.is_over:
                self.say(r.Ended(policy=self.policy), r.Left())
            self.is_over = True
        elif self.making is not None or self.step in self.batches:
            self._train(now)

    def _claim(self) -> None:
        while (found := self.manifest(self.policy, self.version + 1)) is not None:
            self.head, self.version = found, self.version + 1
        before = self.head
        self.incarnation = before["incarnation"] + 1 if before else 0
        self.step = before["step"] if before else 0
        self.skipped = dict(before["skipped"]) if before else {}
        made = self._make(before["batch"] if before else -1)
        if not self._publish(made):
            return
        self.has_claimed = True
        self.say(r.TrainerJoined(policy=self.policy, incarnation=self.incarnation), self._published(made))
        repeated = sorted(int(n) for n, groups in self.skipped.items() if groups and int(n) < made["batch"])
        facts = [self._consumed(made, n) for n in repeated] + [self._consumed(made, made["batch"])]
        if made["batch"] >= 0:
            self.say(*facts)

    def _train(self, now: float) -> None:
        if self.making is None:
            batch = self.batches[self.step]
            objects = zip(batch.paths, batch.hashes, strict=True)
            torn = [self.store.get(path) != digest.encode() for path, digest in objects]
            skipped = [group for group, at in zip(batch.groups, batch.objects, strict=True) if torn[at]]
            self.trained_at = now + self.pace * self.rng.uniform(0.5, 2.0)
            self.step += 1
            self.skipped[str(batch.n)] = skipped
            self.skipped.pop(str(batch.n - 8), None)
            self.making = self._make(batch.n)
        if now < self.trained_at:
            return
        if not self._publish(self.making):
            self.is_fenced = self.is_over = True  # a higher incarnation is at work
            return
        self.say(self._published(self.making), self._consumed(self.making, self.making["batch"]))
        self.making = None

    def _make(self, batch: int) -> dict:
        return {
            "version": self.version + 1,
            "step": self.step,
            "incarnation": self.incarnation,
            "batch": batch,
            "skipped": dict(self.skipped),
            "digest": f"{self.policy}-{self.version + 1}-{self.incarnation}-{self.step}",
        }

    def _publish(self, made: dict) -> bool:
        log = NumberedLog(self.store, lambda v: self.keys.manifest(self.policy, v), patience=NO_PATIENCE)
        if log.create(made["version"], json.dumps(made).encode()) is not None:
            return False
        self.version = made["version"]
        return True

    def _published(self, made: dict) -> r.Published:
        fields = {name: made[name] for name in ("version", "step", "incarnation", "digest")}
        return r.Published(policy=self.policy, **fields)

    def _consumed(self, made: dict, batch: int) -> r.Consumed:
        skipped = made["skipped"].get(str(batch), [])
        return r.Consumed(
            policy=self.policy,
            batch=batch,
            step=batch + 1,
            incarnation=made["incarnation"],
            skipped=skipped,
            reasons=["hash"] * len(skipped),
            metrics={"step_s": self.pace},
        )
