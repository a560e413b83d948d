"""A pool's life: join, play leases with the newest weights, commit what was played, leave.

Four tasks run side by side: one reads the decisions log and starts groups, one a policy pulls weights, one commits
played groups, one writes the outbox. Whatever ends one of them ends the pool. What was not committed did not
happen, so a pool may be killed at any instruction; one that is told to go plays on for a while and hands back
the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from astraflow import config as cfg
from astraflow.pace import Pace
from astraflow.participant import Beat, DecisionsReader, Outbox, beat_every_s, new_participant
from astraflow.problems import Problem, data_hash, problems_from_table
from astraflow.raas.commit import Committer
from astraflow.raas.contact import Contact
from astraflow.raas.facts import FactWriter
from astraflow.raas.group import PlayedGroup, Playing, play_group
from astraflow.raas.leases import Lease, Leases
from astraflow.raas.rows import Origin
from astraflow.raas.serving import EngineFactory, Served, make_engine, serve
from astraflow.records import Applied, Draining, Failed, Left, PoolJoined, Status
from astraflow.rewards import ScoredProblem, load_reward
from astraflow.workflows import load_workflow
from storage.errors import DataError, EpisodeError, Fenced
from storage.keys import RunKeys
from storage.store import ObjectStore
from storage.tables import read_table

HOPELESS = 20
"""So many groups in a row that the workflow's own code broke, and none that it did not: its author must look."""
_DRAIN_SHARE = 0.8  # of drain_s for playing on; the rest is for the last commit
_FIGURES_EVERY_S = 1.0


async def run_pool(
    store: ObjectStore,
    config: cfg.RunConfig,
    pool: str,
    *,
    participant: str | None = None,
    stop: asyncio.Event | None = None,
    engines: EngineFactory = make_engine,
) -> None:
    """Serve rollouts as ``pool`` of the config until the run ends, the pool is drained, or ``stop`` is set.

    Raises ``EngineError`` if an engine died, ``DataError`` if weights or problems are wrong, ``EpisodeError`` if the
    workflow's code always breaks, ``DeadlineError`` if no weights come.
    """
    name = participant or new_participant("pool", pool)
    section = config.pools[pool]
    status = Status(participant=name, role="pool", state="starting", name=pool, region=section.region)
    every_s = beat_every_s(store.url, config.dataflow.silence_s)
    beat = Beat(store, RunKeys(config.name), status, every_s=every_s)
    await asyncio.to_thread(beat.__enter__)
    try:
        with tempfile.TemporaryDirectory(prefix="astraflow-pool-") as folder:
            life = PoolLife(store, config, pool, beat, folder=Path(folder), engines=engines)
            await life.live(stop or asyncio.Event())
        beat.set(state="left", waiting="")
    except BaseException:
        beat.set(state="failed")
        raise
    finally:
        await asyncio.shield(asyncio.to_thread(beat.__exit__))


class PoolLife:
    """One life of one pool."""

    def __init__(
        self,
        store: ObjectStore,
        config: cfg.RunConfig,
        pool: str,
        beat: Beat,
        *,
        folder: Path,
        engines: EngineFactory,
    ) -> None:
        self._store = store
        self._config = config
        self._pool = pool
        self._section = config.pools[pool]
        self._participant = participant = beat.status.participant
        self._keys = RunKeys(config.name)
        self._beat = beat
        self._folder = folder
        self._engines = engines
        self._contact = Contact()
        self._pace = Pace(store.url)
        self._leases = Leases(participant)
        self._served: dict[str, Served] = {}
        self._problems: list[ScoredProblem] = []
        self._playing: Playing | None = None
        self._tasks: dict[Lease, asyncio.Task[None]] = {}
        self._failed: Counter[str] = Counter()
        self._broken_in_a_row = 0
        self._fatal: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._writer = FactWriter(Outbox(store, self._keys, participant), self._contact)
        local = store.url.startswith(("file:", "memory:"))
        flush_s = self._section.flush_s
        self._committer = Committer(
            store,
            self._keys,
            Origin(config.name, participant, self._section.region, self._section.engine),
            self._writer,
            self._contact,
            flush_s=flush_s if flush_s is not None else (0.0 if local else 5.0),
            announced=lambda policy: self._served[policy].version,
        )

    async def live(self, stop: asyncio.Event) -> None:
        """Do everything from joining to leaving."""
        # The reader must begin before the pool joins: leases only follow its joining, so none can be missed.
        reader = await self._contact.ask(DecisionsReader.from_tail, self._store, self._keys)
        reader.cursor = max(0, reader.cursor - 1)  # the newest snapshot may be of Stopped itself
        writing = asyncio.create_task(self._writer.run())
        others = [asyncio.create_task(work) for work in (self._committer.run(), self._serve_all(), self._report())]
        following = asyncio.create_task(self._follow(reader, stop))
        try:
            await self._first_of(following, [writing, *others])
            await self._first_of(asyncio.create_task(self._drain()), [writing, *others])
        except asyncio.CancelledError:
            self._hand_back()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._leave("cancelled")), timeout=2.0)
            raise
        finally:
            await _cancel([following, *others, *self._tasks.values(), writing])
            for served in self._served.values():
                await served.engine.close()

    async def _first_of(self, work: asyncio.Task[None], others: list[asyncio.Task[None]]) -> None:
        """Wait for ``work``; the end of any other task, or a dead engine, is an error that is raised here."""
        done, _ = await asyncio.wait({work, self._fatal, *others}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            if task is not work:
                work.cancel()
                task.result()
        await work

    # --- joining -----------------------------------------------------------------------------

    async def _serve_all(self) -> None:
        """Serve every policy, join, and keep all weights fresh."""
        config, policies = self._config, self._config.policies_of(self._pool)
        workflow, reward = load_workflow(config), load_reward(config.problems.reward)
        self._problems = [ScoredProblem.of(p, reward) for p in await self._contact.ask(self._read_problems)]
        for policy in policies:
            self._beat.set(state="waiting", waiting=f"version 0 of {policy}")
            self._served[policy] = await serve(
                self._store,
                self._keys,
                config,
                self._section,
                policy,
                folder=self._folder / policy,
                contact=self._contact,
                engines=self._engines,
            )
        voices = {role: config.policy_of(role) for role in workflow.roles}
        self._playing = Playing(
            workflow=workflow,
            voices={role: self._served[p].voice for role, p in voices.items() if p in self._served},
            group_size=config.dataflow.group_size,
            episode_timeout_s=config.workflow.episode_timeout_s,
            seed=config.seed,
        )
        self._join(policies)
        fresh = [self._served[policy] for policy in policies if not config.policies[policy].frozen]
        await asyncio.gather(*(served.keep_fresh(self._announce) for served in fresh), asyncio.Event().wait())

    def _join(self, policies: list[str]) -> None:
        applied = [served.applied for served in self._served.values() if served.applied]
        joined = PoolJoined(
            pool=self._pool,
            region=self._section.region,
            policies=policies,
            capacity=self._section.capacity,
            engine=self._section.engine,
            data_hash=self._config.data_hash,
        )
        self._writer.put(joined, *applied)
        self._beat.set(state="playing", waiting="")

    def _announce(self, applied: Applied) -> None:
        self._writer.put(applied)
        self._pace.reset()

    def _read_problems(self) -> list[Problem]:
        key = self._keys.problems(self._config.data_hash)
        problems = problems_from_table(read_table(self._store, key))
        if data_hash(problems) != self._config.data_hash:
            raise DataError(
                "the problems are not those that the run was created with",
                where=key,
                remedy="Restore the object, or create the run again",
                kind="digest",
            )
        return problems

    # --- playing -----------------------------------------------------------------------------

    async def _follow(self, reader: DecisionsReader, stop: asyncio.Event) -> None:
        """Take decisions in and start groups, until it is time to go."""
        while not stop.is_set():
            records = await self._contact.ask(reader.poll)
            for _, record in records:
                for void in self._leases.fold(record.decisions):
                    self._cancel(void)
            if self._leases.quarantined is not None:
                raise Fenced(
                    f"the manager does not hear this pool any more: {self._leases.quarantined}",
                    where=self._participant,
                    remedy="A record of it was wrong again and again: see Rejected in the decisions log",
                    kind="quarantined",
                )
            if self._leases.drain is not None or self._leases.stopped is not None:
                return
            self._start_groups()
            if records:
                self._pace.reset()
            else:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), self._pace.next_s())

    def _start_groups(self) -> None:
        """Play what waits, unless the store has been silent so long that the leases may be void."""
        playing = self._playing
        if playing is None or self._contact.silent_s > self._config.dataflow.silence_s:
            return
        while self._leases.waiting and len(self._tasks) < self._section.capacity:
            lease = self._leases.next()
            self._tasks[lease] = asyncio.create_task(self._play(lease, playing))

    async def _play(self, lease: Lease, playing: Playing) -> None:
        """Play one group to its fact; the end of an engine is the end of the pool."""
        try:
            self._finish(await play_group(lease, self._problem(lease), playing))
        except EpisodeError as error:
            self._fail(lease, error)
        except Exception as error:  # noqa: BLE001 - the task's boundary: raised by whoever waits for the pool
            if not self._fatal.done():
                self._fatal.set_exception(error)
        finally:
            self._tasks.pop(lease, None)
            self._leases.done(lease)
            if not self._tasks:
                self._committer.hurry()
            self._start_groups_if_wanted()

    def _start_groups_if_wanted(self) -> None:
        if self._leases.drain is None and self._leases.stopped is None and not self._fatal.done():
            self._start_groups()

    def _problem(self, lease: Lease) -> ScoredProblem:
        if not 0 <= lease.problem < len(self._problems):
            raise EpisodeError(
                f"there is no problem {lease.problem}, only {len(self._problems)}", where="lease", kind="problem"
            )
        return self._problems[lease.problem]

    def _finish(self, played: PlayedGroup) -> None:
        self._broken_in_a_row = 0
        self._committer.put(played)

    def _fail(self, lease: Lease, error: EpisodeError) -> None:
        """Hand the group back with the reason."""
        self._failed[error.kind] += 1
        self._writer.put(Failed(group=lease.group, attempt=lease.attempt, kind=error.kind, message=str(error)[:500]))
        if error.kind == "workflow":
            self._broken_in_a_row += 1
            if self._broken_in_a_row >= HOPELESS and not self._committer.groups and not self._fatal.done():
                self._fatal.set_exception(error)

    def _cancel(self, lease: Lease) -> None:
        """Stop playing a group whose lease is void."""
        task = self._tasks.get(lease)
        if task is not None:
            self._failed["void"] += 1
            task.cancel()

    # --- leaving -----------------------------------------------------------------------------

    async def _drain(self) -> None:
        """Finish or hand back, then leave; on ``Stopped`` there is nobody left to hand anything to."""
        reason = self._leases.stopped or self._leases.drain or "stopped from outside"
        drain_s = self._config.dataflow.drain_s
        self._beat.set(state="draining", waiting=f"{len(self._tasks)} groups, at most {drain_s:g} s")
        if self._leases.stopped is None:
            self._writer.put(Draining(reason=reason))
            self._give_back(list(self._leases.waiting))
            if self._tasks:
                await asyncio.wait(list(self._tasks.values()), timeout=drain_s * _DRAIN_SHARE)
            self._hand_back()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._leave(reason), timeout=drain_s)

    def _hand_back(self) -> None:
        """Stop everything that is being played or waits, and say so."""
        open_leases = [*self._tasks, *self._leases.waiting]
        for task in self._tasks.values():
            task.cancel()
        self._give_back(open_leases)

    def _give_back(self, leases: list[Lease]) -> None:
        self._leases.waiting.clear()
        self._failed["drained"] += len(leases)
        self._writer.put(*(Failed(group=x.group, attempt=x.attempt, kind="drained") for x in leases))

    async def _leave(self, reason: str) -> None:
        await self._committer.all_committed()
        self._writer.put(Left(reason=reason))
        await self._writer.written()

    async def _report(self) -> None:
        """Keep the status figures up to date."""
        before, tokens = time.monotonic(), 0.0
        while True:
            await asyncio.sleep(_FIGURES_EVERY_S)
            now, sampled = time.monotonic(), float(self._committer.tokens)
            figures: dict[str, Any] = {
                "groups": len(self._tasks),
                "committed_groups": self._committer.groups,
                "trajectories": self._committer.trajectories,
                "tokens_per_s": (sampled - tokens) / (now - before),
                "store_faults": self._contact.faults,
                "refused_updates": sum(served.refused for served in self._served.values()),
                **{f"version_{policy}": served.version for policy, served in self._served.items()},
                **{f"failed_{kind}": count for kind, count in self._failed.items()},
            }
            self._beat.set(**figures)
            before, tokens = now, sampled


async def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    """End tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
