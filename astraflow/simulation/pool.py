"""A virtual pool: plays leased groups on virtual engines, applies versions, commits whole groups."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from astraflow import records as r
from astraflow.simulation.agent import Agent
from astraflow.simulation.engine import Answer, VirtualEngine
from astraflow.simulation.scenario import PoolPlan

if TYPE_CHECKING:
    from astraflow.simulation.world import World

DRAIN_SHARE = 0.8
"""How much of the time that it has for leaving a pool goes on playing."""


@dataclass(slots=True)
class Said:
    """One trajectory: who spoke, how long, and the versions that sampled its first and last token."""

    policy: str
    episode: int
    slot: int
    tokens: int
    reward: float
    first: int = -1
    last: int = -1


@dataclass(slots=True)
class Play:
    """A group being played. ``answers`` are under way, ``open`` counts its unfinished episodes."""

    group: int
    attempt: int
    success: float
    open: int
    fails: bool
    said: list[Said] = field(default_factory=list)
    answers: dict[int, tuple[VirtualEngine, Answer]] = field(default_factory=dict)
    is_void: bool = False


class VirtualPool(Agent):
    """One pool's life. Figures for the report are public: ``groups, episodes, tokens, plays, lag_steps``."""

    role = "pool"

    def __init__(self, world: World, name: str, plan: PoolPlan) -> None:
        now = world.timeline.now
        super().__init__(world, name, [(now, now + plan.starts_in_s), *plan.away])
        config, scenario = world.config, world.scenario
        section = plan.pool or next(iter(config.pools))
        self.plan = plan
        self.policies = config.policies_of(section)
        self.speakers = [policy for policy in world.speakers if policy in self.policies]
        self.capacity = config.pools[section].capacity
        own = {policy: VirtualEngine(world.timeline, scenario.engine, plan.speed) for policy in self.policies}
        shared = next(iter(own.values()))
        self.engines = own if scenario.sharing == "own" else dict.fromkeys(self.policies, shared)
        flush_s = config.pools[section].flush_s
        self._flush_s = 0.0 if flush_s is None else flush_s
        self._flushed_at = float("-inf")
        self._is_flushing = False
        self._done: list[Play] = []
        self._failed: list[r.Failed] = []
        self.plays: dict[int, Play] = {}
        self.applied: dict[str, tuple[int, int]] = {}  # policy -> version, step
        self._available: dict[str, int] = {}  # policy -> version that has arrived here
        self.has_begun = self._has_left = False
        self._leaves_at: float | None = None
        self.groups = self.episodes = self.trajectories = self.tokens = 0
        self._joined = r.PoolJoined(
            pool=section,
            region=plan.region,
            policies=self.policies,
            capacity=self.capacity,
            engine="virtual",
            data_hash=config.data_hash,
        )

    def act(self) -> None:
        if not self.has_begun:
            self.begin_at_tail()
            self.say(self._joined)
            self.has_begun = True
        self._apply_versions()
        for decision in self.decisions():
            self._hear(decision)
        if self._failed:
            self.say(*self._failed)
            self._failed = []
        if self.is_told_to_go and not self._has_left:
            self._leave()
        if self._has_left:
            self._send()
            self.die()

    # --- weights --------------------------------------------------------------------------------

    def arrives(self, policy: str, version: int) -> None:
        """A version has been transferred here."""
        if policy in self.policies and version > self._available.get(policy, -1):
            self._available[policy] = version
            self.wake_in(0.0)

    def _apply_versions(self) -> None:
        for policy, version in self._available.items():
            if version > self.applied.get(policy, (-1, 0))[0]:
                found = self.manifest(policy, version)
                if found is not None:
                    self.applied[policy] = (version, found["step"])
                    self.say(r.Applied(policy=policy, version=version, step=found["step"], digest=found["digest"]))

    # --- playing --------------------------------------------------------------------------------

    def _hear(self, decision: r.AnyDecision) -> None:
        match decision:
            case r.Leased(pool=self.name):
                leases = zip(decision.groups, decision.problems, decision.attempts, strict=True)
                for group, problem, attempt in leases:
                    self._start(group, problem, attempt)
            case r.Expired(pool=self.name):
                for group in decision.groups:
                    self._void(group)
            case r.DrainRequested() if self.is_meant(decision):
                self.is_told_to_go = True
            case r.Stopped():
                self.is_told_to_go = True
            case _:
                pass

    def _start(self, group: int, problem: int, attempt: int) -> None:
        size = self.world.config.dataflow.group_size
        fails = self.rng.random() < self.world.scenario.failures
        play = Play(group, attempt, self.world.success_rate(problem), size, fails)
        self.plays[group] = play
        first = [self._answer(play, episode, 0) for episode in range(size)]
        self.engines[self.speakers[0]].submit(*first)

    def _answer(self, play: Play, episode: int, turn: int) -> Answer:
        """The ``turn``-th answer of an episode: round by round, each policy speaks in turn."""
        policy = self.speakers[turn % len(self.speakers)]
        tokens = self.world.laws[policy].draw(self.rng, self.world.progress(policy))
        said = Said(policy, episode, turn // len(self.speakers), tokens, float(self.rng.random() < play.success))

        def started() -> None:
            said.first = self.applied[policy][0]

        def done() -> None:
            del play.answers[episode]
            said.last = self.applied[policy][0]
            play.said.append(said)
            wait_s = self.world.scenario.environment_s
            delay_s = self.rng.expovariate(1.0 / wait_s) if wait_s else 0.0
            if delay_s:
                self.world.timeline.after(delay_s, lambda: self._next(play, episode, turn + 1))
            else:
                self._next(play, episode, turn + 1)

        answer = Answer(tokens, done, started)
        play.answers[episode] = (self.engines[policy], answer)
        return answer

    def _next(self, play: Play, episode: int, turn: int) -> None:
        if play.is_void or self.is_over:
            return
        scenario = self.world.scenario
        rounds, speaker = divmod(turn, len(self.speakers))
        if speaker == 0 and (rounds >= scenario.rounds or self.rng.random() >= scenario.retry):
            play.open -= 1
            if play.open == 0:
                self._finish(play)
            return
        answer = self._answer(play, episode, turn)
        self.engines[self.speakers[speaker]].submit(answer)

    def _void(self, group: int) -> None:
        play = self.plays.pop(group, None)
        if play is not None:
            play.is_void = True
            for engine, answer in play.answers.values():
                engine.cancel(answer)

    def _finish(self, play: Play) -> None:
        if play.fails:
            del self.plays[play.group]
            self._failed.append(r.Failed(group=play.group, attempt=play.attempt, kind="environment"))
            self.wake_in(0.0)
            return
        self._done.append(play)
        self._flush_soon()

    # --- committing -----------------------------------------------------------------------------

    def _flush_soon(self) -> None:
        if not self._is_flushing:
            self._is_flushing = True
            now = self.world.timeline.now
            self.world.timeline.at(max(now, self._flushed_at + self._flush_s), self._upload)

    def _upload(self) -> None:
        """What is done by now goes into one commit; it can be said once its objects are written."""
        self._flushed_at = self.world.timeline.now
        plays, self._done = self._done, []
        self.world.timeline.after(self.world.scenario.network.upload_s, lambda: self._commit(plays))

    def _commit(self, plays: list[Play]) -> None:
        if self.is_over:
            return
        self._is_flushing = False
        plays = [play for play in plays if not play.is_void]
        if plays:
            for play in plays:
                del self.plays[play.group]
            objects = [thing for policy in self.policies if (thing := self._object(policy, plays)) is not None]
            groups, attempts = [play.group for play in plays], [play.attempt for play in plays]
            self.say(r.Committed(groups=groups, attempts=attempts, objects=objects))
            self.world.committed(objects)
            self.groups += len(plays)
            self.episodes += len(plays) * self.world.config.dataflow.group_size
            self.wake_in(0.0)
        if self._done:
            self._flush_soon()

    def _object(self, policy: str, plays: list[Play]) -> r.PartsObject | None:
        parts = [
            (play.group, sorted((s for s in play.said if s.policy == policy), key=lambda s: (s.episode, s.slot)))
            for play in plays
        ]
        parts = [(group, rows) for group, rows in parts if rows]
        rows = [row for _, part in parts for row in part]
        if not rows:
            return None
        starts = [0]
        for _, part in parts:
            starts.append(starts[-1] + len(part))
        oldest = min(row.first for row in rows)
        unique = f"{self.rng.getrandbits(48):012x}"
        self.trajectories += len(rows)
        self.tokens += sum(row.tokens for row in rows)
        return r.PartsObject(
            policy=policy,
            path=self.keys.trajectory(policy, oldest, self.name, unique),
            size_bytes=4 * sum(row.tokens for row in rows),
            hash=f"virtual-{unique}",
            groups=[group for group, _ in parts],
            row_starts=starts[:-1],
            row_counts=[len(part) for _, part in parts],
            episodes=[row.episode for row in rows],
            roles=[policy] * len(rows),
            slots=[row.slot for row in rows],
            version_min=[row.first for row in rows],
            version_max=[row.last for row in rows],
            rewards=[row.reward for row in rows],
            prompt_tokens=[self.world.scenario.prompt_tokens] * len(rows),
            response_tokens=[row.tokens for row in rows],
        )

    def _leave(self) -> None:
        """Finish what ends soon, hand the rest back, go."""
        now = self.world.timeline.now
        if self._leaves_at is None:
            soon_s = self.world.config.dataflow.drain_s * DRAIN_SHARE
            self._leaves_at = now + soon_s
            self.say(r.Draining(reason="asked to"))
            self.wake_in(soon_s)
        if self.plays and now < self._leaves_at:
            return
        handed = [r.Failed(group=play.group, attempt=play.attempt, kind="drained") for play in self.plays.values()]
        for group in list(self.plays):
            self._void(group)
        self.say(*handed, r.Left(reason="drained"))
        self._has_left = True

    @property
    def load(self) -> float:
        """Mean sequences in its engines' batches so far."""
        return sum(engine.busy for engine in set(self.engines.values())) / max(1e-9, self.life_s)
