"""A run on one thread: real managers, virtual pools and trainers, a virtual clock, a network with ≥ 15 % faults.

Everything is drawn from one seed: who is slow, who dies when, which request is lost. A manager is killed in the
middle of any request or at a commit point and replaced; sometimes two run at once.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from astraflow import records as r
from astraflow.config import Component, Dataflow, Evaluation, Policy, Pool, Problems, RunConfig, Scale, Trainer
from astraflow.dataflow.figures import wait_reasons
from astraflow.dataflow.manager import Manager
from astraflow.query import Run
from astraflow.recipe import dump_toml
from astraflow.scale_view import ScaleView
from storage.errors import Fenced, StoreError
from storage.keys import RunKeys
from storage.memory import FaultPlan, MemoryStore
from storage.store import Created, ObjectInfo, ObjectStore
from tests.simulation.agents import NO_PATIENCE, Agent, VirtualPool, VirtualTrainer


class Killed(BaseException):
    """The process is gone, here."""


@dataclass
class Mortal:
    """A store whose user dies at the ``lives``-th request, before or after it has effect."""

    inner: ObjectStore
    lives: int
    rng: random.Random

    @property
    def url(self) -> str:
        return self.inner.url

    def pass_point(self, name: str = "") -> None:
        self.lives -= 1
        if self.lives == 0:
            raise Killed(name)

    def get(self, key: str) -> bytes:
        self.pass_point()
        return self.inner.get(key)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self.get(key)[start : start + length]

    def put(self, key: str, data: bytes) -> None:
        self.pass_point()
        self.inner.put(key, data)

    def create(self, key: str, data: bytes) -> Created:
        is_late = self.rng.random() < 0.5
        if not is_late:
            self.pass_point()
        created = self.inner.create(key, data)
        if is_late:
            self.pass_point()
        return created

    def list(self, prefix: str, *, after: str | None = None, limit: int | None = None) -> Iterator[ObjectInfo]:
        self.pass_point()
        return self.inner.list(prefix, after=after, limit=limit)

    def delete(self, key: str) -> None:
        self.pass_point()
        self.inner.delete(key)


def draw_config(seed: int) -> RunConfig:
    """A small run: one or two policies, one of which may be slow, short or frozen."""
    rng = random.Random(seed * 7919 + 1)
    max_staleness = rng.choice([0, 1, 1, 2, 3])
    policies = {"solver": Policy(model="none")}
    if rng.random() < 0.5:
        kind = rng.choice(["same", "short", "frozen"])
        override = {"steps": 2} if kind == "short" else {}
        policies["verifier"] = Policy(model="none", frozen=kind == "frozen", trainer=override)
    replay = rng.choice(["none", "none", "latest", "uniform", "prioritized"])
    options = {} if replay == "none" else {"ratio": 0.5, "max_uses": rng.choice([1, 2])}
    is_dynamic = rng.random() < 0.4
    filters = [Component(name="zero_advantage")] if is_dynamic else []
    if rng.random() < 0.3:
        filters.append(Component(name="failed"))
    if rng.random() < 0.2:
        filters.append(Component(name="overlong", options={"max_tokens": 50}))
    evaluations = {}
    if rng.random() < 0.3:
        evaluations["held"] = Evaluation(
            problems=Problems(source="none"),
            repeats=rng.choice([1, 2]),
            every=rng.choice([0, 1, 2]),
            at_start=rng.random() < 0.7,
            at_end=rng.random() < 0.7,
            timeout_s=rng.choice([5, 60]),
            data_hash="held",
            problem_count=rng.choice([1, 3, 8]),
        )
    return RunConfig(
        name="run",
        seed=seed,
        evaluations=evaluations,
        policies=policies,
        problems=Problems(source="none"),
        problem_count=rng.choice([3, 7, 50]),
        data_hash="abc",
        pools=draw_pools(random.Random(seed * 15485863 + 3)),
        scale=draw_scale(random.Random(seed * 104729 + 2)),
        trainer=Trainer(steps=rng.choice([3, 4, 6]), batch_size=rng.choice([1, 2, 4]), batch_timeout_s=60),
        dataflow=Dataflow(
            group_size=rng.choice([2, 3] if is_dynamic else [1, 2, 3]),
            max_staleness=max_staleness,
            prefetch=rng.randint(1, max(1, max_staleness)),
            filters=filters,
            curator=Component(name=rng.choice(["shuffled", "sequential", "filter_solved", "greso", "curriculum"])),
            order=Component(name=rng.choice(["edf", "fifo", "lifo"])),
            replay=Component(name=replay, options=options),
            coupling=rng.choice(["none", "none", "slowest"]),
            max_redraw=rng.choice([1, 2, 8]),
            max_attempts=rng.choice([2, 3]),
            group_timeout_s=25,
            silence_s=6,
            drain_s=3,
            report_every=2,
            snapshot_every=rng.choice([3, 10, 40]),
        ),
    )


def draw_pools(rng: random.Random) -> dict[str, Pool]:
    """In one region or in two."""
    far = {"west": Pool(region="west")} if rng.random() < 0.5 else {}
    return {"local": Pool(), **far}


def draw_scale(rng: random.Random) -> Scale:
    """As the config says, or by load reports; with little patience, so that a short run meets it."""
    mode = rng.choice(["off", "off", "advise", "act", "act"])
    rule = rng.choice(["matched", "three_zone"])
    return Scale(mode=mode, rule=rule, cool_down=rng.choice([0, 2]), most=rng.choice([2, 4]))  # type: ignore[arg-type]


@dataclass
class World:
    """One seed's run."""

    seed: int
    config: RunConfig
    make_manager: Callable[..., Manager] = Manager
    stalled: str = ""  # a policy whose trainer never finishes a step
    now: float = 0.0
    deaths: Counter = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.base = MemoryStore()
        self.keys = RunKeys(self.config.name)
        self._heap: list[tuple[float, int, Callable[[], float | None]]] = []
        self._order = itertools.count()
        self._names = itertools.count()
        self.managers: list[Manager] = []
        self.living: list[VirtualPool] = []
        self.leaving: set[str] = set()  # pools that were too many
        self.clean = self.base.client()
        for policy, settings in self.config.policies.items():
            if settings.frozen:
                self.clean.put(self.keys.manifest(policy, 0), b'{"version":0,"step":0,"digest":"frozen"}')
            else:
                self._spawn_trainer(policy, slow=1e6 if policy == self.stalled else self.rng.choice([1, 1, 5, 20]))
        self.regions = list(self.config.pools_of_regions)
        for _ in range(self.rng.choice([1, 2, 3])):
            self._spawn_pool(self.rng.choice(self.regions))
        self._spawn_manager()
        self.at(10.0, self._resume)
        self.scaling = ScaleView(self.clean, self.config)
        self.at(1.0, self._scale)
        if self.rng.random() < 0.3:
            self.at(self.rng.uniform(2, 20), self._want_pools)
        self.pauses = self.rng.choice([0, 0, 1, 3])  # of regions, still to come
        self.at(self.rng.uniform(1, 15), self._pause_regions)
        self.stop_at = self.rng.uniform(5, 40) if self.rng.random() < 0.15 else None

    # --- time -----------------------------------------------------------------------------------

    def at(self, delay: float, act: Callable[[], float | None]) -> None:
        """Do ``act`` after ``delay``; again after what it returns, if it does."""
        heapq.heappush(self._heap, (self.now + delay, next(self._order), act))

    def run(self, limit_s: float = 1500.0) -> None:
        """Until ``Stopped``, or an error that says who waited for what."""
        while not self._is_stopped():
            self.now, _, act = heapq.heappop(self._heap)
            assert self.now < limit_s, f"seed {self.seed} does not end: {self._complaint()}"
            again = act()
            if again is not None:
                self.at(again, act)

    def _is_stopped(self) -> bool:
        return any(manager.stopped for manager in self.managers)

    def _complaint(self) -> str:
        state = self.managers[-1].state
        return f"{wait_reasons(state)}, draining: {state.draining}, {state.leases}"

    # --- who lives in it --------------------------------------------------------------------------

    def client(self) -> MemoryStore:
        """A bad way to the store: ≥ 15 % of its requests meet a fault."""
        plan = FaultPlan(
            seed=self.rng.getrandbits(32), error_before=0.05, lost_answer=0.06, duplicate=0.04, late=0.05, delay=0.01
        )
        plan.sleep = lambda _: None
        return self.base.client(plan)

    def _spawn_manager(self) -> None:
        lives = self.rng.choice([10**9, 10**9, 10**9, self.rng.randint(1, 300), self.rng.randint(1, 3000)])
        if self.deaths["manager"] > 6:
            lives = 10**9
        store = Mortal(self.client(), lives, self.rng)
        manager = self.make_manager(
            store,
            self.config,
            holder=f"m{next(self._names)}",
            clock=lambda: self.now,
            patience=NO_PATIENCE,
            commit=store.pass_point,
        )
        self.managers.append(manager)
        has_started = False

        def act() -> float | None:
            nonlocal has_started
            try:
                if not has_started:
                    manager.start()
                    has_started = True
                manager.tick()
            except StoreError:
                return 0.1
            except Fenced:
                self.deaths["fenced"] += 1
                return None
            except Killed:
                self.deaths["manager"] += 1
                self.managers.remove(manager)
                self.at(self.rng.uniform(0, 5), self._spawn_manager)
                return None
            return None if manager.stopped else self.rng.uniform(0.05, 0.4)

        self.at(self.rng.uniform(0, 1), act)
        if self.rng.random() < 0.15:
            self.at(self.rng.uniform(1, 20), self._spawn_manager)  # a second one, while the first lives

    def _spawn_pool(self, region: str) -> None:
        pool = VirtualPool(
            store=self.client(),
            config=self.config,
            name=f"pool-{region}-{next(self._names):04d}",
            region=region,
            rng=random.Random(self.rng.getrandbits(32)),
            capacity=self.rng.choice([2, 5, 9]),
            pace=self.rng.choice([0.3, 1.0]),
            sameness=self.rng.choice([0.1, 0.5, 0.8]),
            mischief=self.rng.choice([0.0, 0.0, 0.0, 0.1, 0.5]),
        )
        fate = self.rng.choice(["lives", "lives", "lives", "dies", "mute", "drains"])
        if self.deaths["pool"] > 6:
            fate = "lives"
        die_at = self.now + self.rng.uniform(1, 25)
        self.living.append(pool)

        def act() -> float | None:
            if self.now >= die_at and fate == "dies":
                self.living.remove(pool)
                self.deaths["pool"] += 1
                if self.rng.random() < 0.5:
                    self._wish(r.Wanted(what="lost", target=pool.name))
                self.at(self.rng.uniform(0, 3), lambda: self._spawn_pool(region))
                return None
            pool.is_mute = fate == "mute" and die_at <= self.now < die_at + 15
            pool.is_told_to_go = pool.is_told_to_go or (fate == "drains" and self.now >= die_at)
            pool.tick(self.now)
            if pool.is_over or (pool.name in self._quarantined()):
                self.living.remove(pool)
                if pool.name in self.leaving:
                    self.deaths["let_go"] += 1
                elif not self._is_draining():
                    self.deaths["pool"] += 1
                    self._spawn_pool(region)
                return None
            return self.rng.uniform(0.1, 0.5)

        self.at(self.rng.uniform(0, 4), act)

    def _spawn_trainer(self, policy: str, slow: float) -> None:
        trainer = VirtualTrainer(
            store=self.client(),
            config=self.config,
            name=f"trainer-{policy}-{next(self._names):04d}",
            rng=random.Random(self.rng.getrandbits(32)),
            policy=policy,
            pace=slow,
        )
        die_at = self.now + self.rng.uniform(1, 30) if self.rng.random() < 0.3 else 1e9
        is_zombie = self.rng.random() < 0.3

        def act() -> float | None:
            nonlocal die_at
            if self.now >= die_at:
                self.deaths["trainer"] += 1
                die_at = 1e9
                self.at(self.rng.uniform(0, 3), lambda: self._spawn_trainer(policy, slow))
                return self.rng.uniform(3, 10) if is_zombie else None
            trainer.tick(self.now)
            if trainer.is_over and trainer.sent == len(trainer.outbox):
                return None
            return self.rng.uniform(0.1, 0.5)

        self.at(self.rng.uniform(0, 3), act)

    def _wish(self, wish: r.Wanted | r.PoolsWanted) -> None:
        """An operator says something, and leaves."""
        name = f"operator-{next(self._names):04d}"
        record = r.FactRecord(id=f"{self.rng.getrandbits(64):x}", participant=name, facts=[wish, r.Left()])
        self.clean.put(self.keys.outbox(name, 0), r.encode(record))
        self.clean.put(self.keys.status(name), r.encode(r.Status(participant=name, role="operator", state="x")))

    def _scale(self) -> float:
        """The supervisor: as many pools as the decisions say, from the first of them on."""
        self.scaling.poll()
        if self.scaling.book.changes and not self._is_draining():
            for region, wanted in self.scaling.counts().items():
                self._have_pools(region, wanted)
        return 1.0

    def _have_pools(self, region: str, wanted: int) -> None:
        staying = [pool for pool in self.living if pool.region == region and pool.name not in self.leaving]
        for _ in range(wanted - len(staying)):
            self._spawn_pool(region)
        for pool in staying[wanted:]:
            self.leaving.add(pool.name)
            self._wish(r.Wanted(what="drain", target=pool.name))

    def _want_pools(self) -> float | None:
        """A person says a number, and later leaves it to the reports again."""
        held = self.scaling.book.held
        region = held[0] if held else self.rng.choice(self.regions)
        self._wish(r.PoolsWanted(region=region, pools=-1 if held else self.rng.choice([1, 2, 3])))
        return None if held else 10.0

    def _pause_regions(self) -> float | None:
        """A person pauses a region, or all one after the other, and lets each go on after a while."""
        if not self.pauses:
            return None
        self.pauses -= 1
        for region in self.rng.sample(self.regions, self.rng.randint(1, len(self.regions))):
            self._wish(r.Wanted(what="pause", region=region, reason=self.rng.choice(["", "lunch"])))
            self.at(self.rng.uniform(0.2, 12), lambda region=region: self._resume_region(region))  # type: ignore[misc]
        return self.rng.uniform(4, 30)

    def _resume_region(self, region: str) -> None:
        self._wish(r.Wanted(what="resume", region=region))

    def _resume(self) -> float:
        """Somebody looks every now and then, and lets a paused policy go on."""
        for policy in self.config.trained:
            if self.managers and self.managers[-1].state.policies[policy].paused:
                self.deaths["resumed"] += 1
                self._wish(r.Wanted(what="resume", target=policy))
        return 10.0

    def _quarantined(self) -> set[str]:
        people = self.managers[-1].state.participants if self.managers else {}
        return {name for name, participant in people.items() if participant.quarantined}

    def _is_draining(self) -> bool:
        return bool(self.managers) and self.managers[-1].state.draining


def run_world(seed: int, make_manager: Callable[..., Manager] = Manager) -> World:
    """Play one seed to its end."""
    world = World(seed, draw_config(seed), make_manager)
    if world.stop_at is not None:
        world.at(world.stop_at, lambda: world._wish(r.Wanted(what="stop")))
    world.run()
    return world


def recorded_run(seed: int) -> Run:
    """One seed's run, to be asked like any other."""
    world = run_world(seed)
    store = world.base.client()
    store.put(world.keys.config, dump_toml(world.config).encode())
    return Run(store, world.config.name)


__all__ = ["Agent", "Killed", "World", "draw_config", "recorded_run", "run_world"]
