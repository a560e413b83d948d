"""One simulated run: it wires the real manager, virtual pools and trainers to one timeline and one store in memory.

Who reads what, and when, is as in a real run: an append is seen one hop later, a version is applied once it is
transferred, the manager looks for beats at its own pace. An agent is woken by what is addressed to it; everything else
it reads the next time it looks, which is what polling comes to. Everything is drawn from the seeds.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

from astraflow import records as r
from astraflow.config import RunConfig
from astraflow.dataflow.figures import wait_reasons
from astraflow.dataflow.manager import Manager
from astraflow.simulation.agent import NO_PATIENCE, RETRY_S, Agent
from astraflow.simulation.network import make_client
from astraflow.simulation.pool import VirtualPool
from astraflow.simulation.report import PolicyFigures, Report, make_report
from astraflow.simulation.scenario import PoolPlan, Scenario
from astraflow.simulation.timeline import Alarm, Timeline
from astraflow.simulation.trainer import VirtualTrainer
from storage.errors import DeadlineError, StoreError
from storage.keys import RunKeys
from storage.memory import MemoryStore
from storage.store import ObjectStore

SCANS_A_BEAT = 4.0
FROZEN = b'{"version":0,"step":0,"incarnation":0,"batch":-1,"digest":"frozen"}'
Controller = Callable[["World", r.LoadReported], None]


class World:
    """A run under way. ``run`` plays it to its end; ``controllers`` hear every load report and may move pools."""

    def __init__(self, config: RunConfig, scenario: Scenario, controllers: tuple[Controller, ...] = ()) -> None:
        problems = {"problem_count": scenario.problems, "data_hash": "simulated"}
        self.config = config.model_copy(update=problems)
        self.scenario = scenario
        self.timeline = Timeline()
        self.beat_s = min(scenario.network.beat_s, config.dataflow.silence_s / 4)
        self.speakers = sorted(config.policies)
        self.laws = {
            name: scenario.law_of(name, policy.sampling.max_tokens) for name, policy in config.policies.items()
        }
        self.pools: list[VirtualPool] = []
        self.trainers: dict[str, VirtualTrainer] = {}
        self.figures = {policy: PolicyFigures() for policy in config.trained}
        self.trainer_gpu_s = 0.0
        self.deaths: Counter[str] = Counter()
        self.ended_at = 0.0  # when the last step was published
        self.keys = RunKeys(config.name)
        self.base = MemoryStore()
        self._clean = self.base.client()
        self._controllers = controllers
        self._rng = random.Random(f"{config.seed}/{scenario.seed}/world")
        self._decoded: dict[int, r.DecisionRecord] = {}
        self._heard = 0  # decision records that were passed on
        self._success: dict[int, float] = {}
        self._tokens: dict[str, dict[int, int]] = {policy: {} for policy in config.policies}
        self._steps_of: dict[str, list[int]] = {policy: [] for policy in config.policies}
        self._names: Counter[str] = Counter()
        self._manager: Manager | None = None
        self._has_started = False
        self._alarm = Alarm(self.timeline, self._manage)
        own = [PoolPlan(pool=name, region=section.region) for name, section in self.config.pools.items()]
        self._plans = scenario.pools or own
        self._leaving: list[VirtualPool] = []  # that were asked to go
        self._begin()

    # --- beginning ------------------------------------------------------------------------------

    def _begin(self) -> None:
        for policy in self.config.policies:
            if self.config.policies[policy].frozen:
                self._clean.put(self.keys.manifest(policy, 0), FROZEN)
                self._steps_of[policy].append(0)
        self._new_manager()
        for policy in self.config.trained:
            self._new_trainer(policy)
            for at in self.scenario.trainer.dies_at_s:
                self.timeline.at(at, lambda policy=policy: self._kill_trainer(policy))  # type: ignore[misc]
        for plan in self._plans:
            for _ in range(plan.count):
                self.timeline.at(plan.joins_at_s, lambda plan=plan: self._join(plan))  # type: ignore[misc]
        for at in self.scenario.manager_dies_at_s:
            self.timeline.at(at, self._kill_manager)

    def _join(self, plan: PoolPlan) -> None:
        pool = self.add_pool(plan)
        if plan.dies_at_s is not None:
            self.timeline.at(plan.dies_at_s, lambda: self._kill_pool(pool))
        if plan.drains_at_s is not None:
            self.timeline.at(plan.drains_at_s, lambda: self.drain(pool))

    def _name(self, *parts: str) -> str:
        stem = "-".join(parts)
        self._names[stem] += 1
        return f"{stem}-{self._names[stem]:08x}"

    # --- what controllers do ----------------------------------------------------------------------

    def add_pool(self, plan: PoolPlan) -> VirtualPool:
        """A pool starts now; it plays once it has all weights."""
        pool = VirtualPool(self, self._name("pool", plan.region), plan)
        self.pools.append(pool)
        pool.wake_in(self.hop_s())
        for policy, steps in self._steps_of.items():
            if steps:
                self._transfer(pool, policy, len(steps) - 1)
        return pool

    def drain(self, pool: VirtualPool) -> None:
        """Ask a pool to leave, as an operator does; one that has not begun is just not started."""
        if pool.has_begun:
            self.wish(r.Wanted(what="drain", target=pool.name))
        else:
            pool.die()

    def _scale(self, wanted: dict[str, int]) -> None:
        """Do what a supervisor does with the manager's word: start what is missing, let the newest go."""
        for region, count in wanted.items():
            there = [pool for pool in self.living() if pool.plan.region == region and pool not in self._leaving]
            plan = next((plan for plan in self._plans if plan.region == region), PoolPlan(region=region))
            for _ in range(count - len(there)):
                self.add_pool(plan)
            for pool in there[count:]:
                self._leaving.append(pool)
                self.drain(pool)

    def wish(self, wish: r.Wanted | r.PoolsWanted) -> None:
        """Somebody says something to the manager, and leaves."""
        name = self._name("operator")
        record = r.FactRecord(id=name, participant=name, facts=[wish, r.Left()])
        self._clean.put(self.keys.outbox(name, 0), r.encode(record))
        self._clean.put(self.keys.status(name), r.encode(r.Status(participant=name, role="operator", state="x")))
        self.manager_hears()

    def living(self) -> list[VirtualPool]:
        """Pools that have not died, left or been asked to leave."""
        return [pool for pool in self.pools if not (pool.is_over or pool.is_told_to_go)]

    # --- what agents ask and tell -----------------------------------------------------------------

    def client(self, rng: random.Random) -> ObjectStore:
        """A way to the store, as bad as the scenario says."""
        return make_client(self.base, self.scenario.network.faults, rng)

    def hop_s(self) -> float:
        """Time from an append to its being read."""
        return self.scenario.network.hop_s * self._rng.uniform(0.5, 1.5)

    def decoded(self, seq: int, data: bytes) -> r.DecisionRecord:
        """A decision record: the same bytes are decoded once for all."""
        found = self._decoded.get(seq)
        if found is None:
            found = self._decoded[seq] = r.decode(data, r.DecisionRecord, where=self.keys.decision(seq))
            self._decoded.pop(seq - 4096, None)
        return found

    def progress(self, policy: str) -> float:
        """Share of the policy's steps that is done."""
        steps = self._steps_of[policy]
        return steps[-1] / self.config.trainer_of(policy).steps if steps else 0.0

    def success_rate(self, problem: int) -> float:
        """How often an answer to this problem is right."""
        if problem not in self._success:
            rng = random.Random(f"{self.scenario.seed}/problem/{problem}")
            self._success[problem] = rng.betavariate(self.scenario.spread, self.scenario.spread)
        return self._success[problem]

    def manager_hears(self) -> None:
        """Something was appended to an outbox."""
        self._alarm.ring_in(self.hop_s())

    def committed(self, objects: list[r.PartsObject]) -> None:
        """Remember how many tokens each part has: what a trainer's step costs."""
        for thing in objects:
            tokens, row = self._tokens[thing.policy], 0
            for group, count in zip(thing.groups, thing.row_counts, strict=True):
                tokens[group] = sum(thing.response_tokens[row : row + count])
                row += count

    def tokens_of(self, policy: str, groups: list[int]) -> int:
        """Response tokens of these parts."""
        tokens = self._tokens[policy]
        return sum(tokens[group] for group in groups)

    def published(self, policy: str, version: int) -> None:
        """A version is in the store: it is on its way to every pool."""
        steps = self._steps_of[policy]
        if version == len(steps):
            steps.append(self.trainers[policy].step)
            for pool in self.pools:
                if not pool.is_over:
                    self._transfer(pool, policy, version)

    def _transfer(self, pool: VirtualPool, policy: str, version: int) -> None:
        network = self.scenario.network
        self.timeline.after(self.hop_s() + network.transfer_s, lambda: pool.arrives(policy, version))

    def took_step(self, policy: str, batch: r.Batched, metrics: dict[str, float]) -> None:
        """A batch was trained and published."""
        steps = self._steps_of[policy]
        lags = [batch.n - steps[version] for version in batch.versions]
        self.figures[policy].add_step(lags, self.tokens_of(policy, batch.groups), metrics)
        self.trainer_gpu_s += self.scenario.trainer.gpus * sum(metrics.values())
        self.ended_at = self.timeline.now

    # --- deaths -------------------------------------------------------------------------------------

    def _kill_pool(self, pool: VirtualPool) -> None:
        if not pool.is_over:
            pool.die()
            self.deaths["pool"] += 1

    def _new_trainer(self, policy: str) -> None:
        trainer = VirtualTrainer(self, self._name("trainer", policy), policy)
        self.trainers[policy] = trainer
        trainer.wake_in(self.hop_s())

    def _kill_trainer(self, policy: str) -> None:
        if not self.trainers[policy].is_over:
            self.trainers[policy].die()
            self.deaths["trainer"] += 1
            self.timeline.after(self.scenario.trainer.restart_s, lambda: self._new_trainer(policy))

    def _kill_manager(self) -> None:
        self._manager = None
        self.deaths["manager"] += 1
        self.timeline.after(self.scenario.manager_restart_s, self._new_manager)

    # --- the manager --------------------------------------------------------------------------------

    def _new_manager(self) -> None:
        self._manager = Manager(
            self.client(self._rng),
            self.config,
            holder=self._name("manager"),
            clock=lambda: self.timeline.now,
            patience=NO_PATIENCE,
            commit=lambda name: None,
        )
        self._has_started = False
        self._alarm.ring_in(0.0)

    def _manage(self) -> None:
        manager = self._manager
        if manager is None:
            return
        try:
            if not self._has_started:
                manager.start()
                self._has_started = True
            is_busy = manager.tick()
        except StoreError:
            self._alarm.ring_in(RETRY_S)
            return
        self._pass_on()
        if not manager.stopped:
            self._alarm.ring_in(self.hop_s() if is_busy else self.beat_s / SCANS_A_BEAT)

    def _pass_on(self) -> None:
        """Wake those to whom the new decisions are addressed."""
        assert self._manager is not None
        while self._heard <= self._manager.state.ledger.seq:
            data = self._clean.get(self.keys.decision(self._heard))
            for decision in self.decoded(self._heard, data).decisions:
                self._wake_for(decision)
            self._heard += 1

    def _wake_for(self, decision: r.AnyDecision) -> None:
        match decision:
            case r.Leased(pool=name) | r.Expired(pool=name):
                self._wake(lambda agent: agent.name == name)
            case r.Batched(policy=policy):
                self._wake(lambda agent: agent is self.trainers[policy])
            case r.DrainRequested(participants=names):
                self._wake(lambda agent: not names or agent.name in names)
            case r.Stopped():
                self._wake(lambda agent: True)
            case r.Scaled(pools=wanted):
                self.timeline.after(self.hop_s(), lambda: self._scale(wanted))
            case r.LoadReported():
                for controller in self._controllers:
                    controller(self, decision)
            case r.Paused(policy=policy, region=""):  # somebody looks, and lets it go on
                self.timeline.after(self.beat_s, lambda: self.wish(r.Wanted(what="resume", target=policy)))
            case _:
                pass

    def _wake(self, is_meant: Callable[[Agent], bool]) -> None:
        for agent in (*self.pools, *self.trainers.values()):
            if not agent.is_over and is_meant(agent):
                agent.wake_in(self.hop_s())

    # --- running ------------------------------------------------------------------------------------

    def run(self) -> Report:
        """Play to the end. Raises ``DeadlineError`` if the run does not end within the scenario's hours."""
        limit_s = self.scenario.limit_h * 3600
        if not self.timeline.run(lambda: self._manager is not None and self._manager.stopped, limit_s):
            why = wait_reasons(self._manager.state) if self._manager else "its manager is dead"
            raise DeadlineError(
                f"the simulated run does not end: {why}",
                where=f"virtual time {self.timeline.now:.0f} s",
                remedy="Give it pools that live longer, or a larger limit_h",
                kind="simulation",
            )
        return make_report(self)

    @property
    def records(self) -> int:
        """Decision records of the run."""
        return self._heard

    def dropped(self, policy: str) -> dict[str, int]:
        """Parts dropped by reason: the manager's own counts."""
        assert self._manager is not None
        return dict(self._manager.state.policies[policy].dropped)


def simulate(config: RunConfig, scenario: Scenario) -> Report:
    """Play one run of ``config`` in ``scenario``; the same arguments give the same report."""
    return World(config, scenario).run()
