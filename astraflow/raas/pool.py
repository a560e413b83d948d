"""A pool's life: join, play leases with the newest weights, commit what was played, leave.

Four tasks run side by side: one reads the decisions log and starts groups, one a policy pulls weights, one commits
played groups, one writes the outbox. Whatever ends one of them ends the pool. What was not committed did not
happen, so a pool may be killed at any instruction; one that is told to go plays on for a while and hands back
the rest.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import tempfile
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from astraflow import config as cfg
from astraflow.pace import Pace
from astraflow.participant import Beat, DecisionsReader, Outbox, beat_every_s, new_participant
from astraflow.problems import Problem, data_hash, problems_from_table
from astraflow.raas.commit import Committer
from astraflow.raas.contact import Contact
from astraflow.raas.depot import Depot
from astraflow.raas.evaluating import Exam, make_exam
from astraflow.raas.facts import FactWriter
from astraflow.raas.gateway import Gateway
from astraflow.raas.group import Playing
from astraflow.raas.leases import Leases
from astraflow.raas.player import Player
from astraflow.raas.rows import Origin
from astraflow.raas.serving import EngineFactory, Served, make_engine, serve
from astraflow.records import (
    Admitted,
    Applied,
    DecisionRecord,
    Draining,
    LeasesWanted,
    Left,
    PoolJoined,
    Status,
)
from astraflow.rewards import ScoredProblem, load_reward
from astraflow.workflows import load_workflow
from storage import is_near
from storage.errors import DataError, Fenced
from storage.keys import RunKeys
from storage.store import ObjectStore
from storage.tables import read_table

log = logging.getLogger("astraflow.raas")

_DRAIN_SHARE = 0.8  # of drain_s for playing on; the rest, or _LAST_COMMIT_S, is for the last commit
_LAST_COMMIT_S = 4.0
_LONGEST_DRAIN_S = 18.0  # when stopped from outside: the process is killed some 22 s after the word
_FIGURES_EVERY_S = 1.0


GC_THRESHOLDS = (10_000, 10, 10)
"""Garbage in cycles is looked for seldom: each look goes through every token of what is played and not yet uploaded."""


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
    gc.set_threshold(*GC_THRESHOLDS)
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
        self._gateway: Gateway | None = None
        self._joined_at = 0.0
        self._writer = FactWriter(Outbox(store, self._keys, participant), self._contact)
        self._is_far = not is_near(store.url)
        flush_s = self._section.flush_s
        self._depot = Depot.of(store, config, self._section, self._contact)
        self._committer = Committer(
            self._depot,
            self._keys,
            Origin(
                run=config.name,
                pool=participant,
                region=self._section.region,
                engine=self._section.engine,
                engines={policy: f"http:{server.dialect}" for policy, server in self._section.servers.items()},
            ),
            self._writer,
            self._contact,
            flush_s=flush_s if flush_s is not None else (5.0 if self._is_far else 0.0),
            announced=lambda policy: self._served[policy].version,
        )
        self._player = Player(
            self._leases,
            self._writer,
            self._committer,
            capacity=self._section.capacity,
            may_start=self._may_start,
        )

    async def live(self, stop: asyncio.Event) -> None:
        """Do everything from joining to leaving."""
        # The reader must begin before the pool joins: leases only follow its joining, so none can be missed.
        reader = await self._contact.ask(DecisionsReader.from_tail, self._store, self._keys)
        reader.cursor = max(0, reader.cursor - 1)  # the newest snapshot may be of Stopped itself
        writing = asyncio.create_task(self._writer.run())
        others = [asyncio.create_task(work) for work in (self._committer.run(), self._serve_all(), self._report())]
        others.append(writing)
        try:
            await self._unless_ended(self._follow(reader, stop), others)
            await self._unless_ended(self._drain(), others)
        except asyncio.CancelledError:
            self._player.hand_back(playing=True)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._leave("cancelled")), timeout=2.0)
            raise
        finally:
            await _cancel([*self._player.tasks.values(), *others])
            if self._gateway is not None:
                await self._gateway.close()
            for served in self._served.values():
                await served.engine.close()
            self._contact.close()

    async def _unless_ended(self, work: Coroutine[Any, Any, None], others: list[asyncio.Task[None]]) -> None:
        """Do ``work``; the end of any other task, or a dead engine, is an error that is raised here."""
        task = asyncio.create_task(work)
        try:
            done, _ = await asyncio.wait({task, self._player.fatal, *others}, return_when=asyncio.FIRST_COMPLETED)
            for ended in done - {task}:
                ended.result()
            await task
        finally:
            await _cancel([task])

    # --- joining -----------------------------------------------------------------------------

    async def _serve_all(self) -> None:
        """Serve every policy, join, and keep all weights fresh."""
        config, policies = self._config, self._config.policies_of(self._pool)
        workflow, reward = load_workflow(config), load_reward(config.problems.reward)
        problems = [ScoredProblem.of(p, reward) for p in await self._read_problems(config.data_hash)]
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
        self._gateway = Gateway(self._section.serve, {p: served.voice for p, served in self._served.items()})
        if self._section.serve.at_start:
            log.info("%s serves at %s", self._participant, await self._gateway.start())
        voices = {role: config.policy_of(role) for role in workflow.roles}
        playing = Playing(
            workflow=workflow,
            voices={role: self._served[p].voice for role, p in voices.items() if p in self._served},
            group_size=config.dataflow.group_size,
            episode_timeout_s=config.workflow.episode_timeout_s,
            seed=config.seed,
            host=self._gateway.doors,
        )
        self._player.prepare(playing, problems, await self._exams(playing))
        gc.collect()
        gc.freeze()  # models and libraries stay for life; walking them at each full collection costs 0.3 s
        self._join(policies)
        fresh = [self._served[policy] for policy in policies if not config.policies[policy].frozen]
        await asyncio.gather(*(served.keep_fresh(self._announce) for served in fresh), asyncio.Event().wait())

    def _join(self, policies: list[str]) -> None:
        """Say so in one record; a pool applies versions only once it has joined."""
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
        self._joined_at = time.monotonic()
        self._beat.set(state="playing", waiting="")

    def _announce(self, applied: Applied) -> None:
        self._writer.put(applied)
        self._pace.reset()

    async def _exams(self, playing: Playing) -> dict[str, Exam]:
        """What each evaluation of the run is played with."""
        exams: dict[str, Exam] = {}
        for name, evaluation in self._config.evaluations.items():
            reward = load_reward(evaluation.problems.reward)
            found = await self._read_problems(evaluation.data_hash)
            exams[name] = make_exam(playing, evaluation, [ScoredProblem.of(problem, reward) for problem in found])
        return exams

    async def _read_problems(self, wanted: str) -> list[Problem]:
        """The frozen problems of that hash."""
        key = self._keys.problems(wanted)
        problems = problems_from_table(await self._contact.ask(read_table, self._store, key))
        if data_hash(problems) != wanted:
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
                    self._player.void(void)
                self._ask_ahead(record)
            if self._leases.quarantined is not None:
                raise Fenced(
                    f"the manager does not hear this pool any more: {self._leases.quarantined}",
                    where=self._participant,
                    remedy="A record of it was wrong again and again: see Rejected in the decisions log",
                    kind="quarantined",
                )
            if self._leases.drain is not None or self._leases.stopped is not None:
                return
            self._player.start()
            if records:
                self._pace.reset()
            else:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(stop.wait(), self._pace.next_s())

    def _ask_ahead(self, record: DecisionRecord) -> None:
        """Tell the manager how many leases it takes to have the next one there when a place is free, if that changed.

        A store nearby answers at once, so that a place is not idle for long there.
        """
        if not self._is_far:
            return
        prefetch = self._player.prefetch
        for decision in record.decisions:
            if isinstance(decision, Admitted) and decision.participant == self._participant:
                for group in decision.groups:
                    prefetch.admitted(group, time.monotonic())
        if (ahead := prefetch.asks()) is not None:
            self._writer.put(LeasesWanted(ahead=ahead))

    def _may_start(self) -> bool:
        """Not when told to go, nor when the store has been silent so long that the leases may be void."""
        going = self._leases.drain is not None or self._leases.stopped is not None or self._player.fatal.done()
        return not going and self._contact.silent_s <= self._config.dataflow.silence_s

    # --- leaving -----------------------------------------------------------------------------

    async def _drain(self) -> None:
        """Finish or hand back, then leave; on ``Stopped`` there is nobody left to hand anything to."""
        reason = self._leases.stopped or self._leases.drain or "stopped from outside"
        drain_s = self._config.dataflow.drain_s
        if self._leases.stopped is None and self._leases.drain is None:
            drain_s = min(drain_s, _LONGEST_DRAIN_S)
        self._beat.set(state="draining", waiting=f"{len(self._player.tasks)} groups, at most {drain_s:g} s")
        if self._leases.stopped is None:
            self._writer.put(Draining(reason=reason))
            self._player.hand_back(playing=False)
            if self._player.tasks:
                await asyncio.wait(list(self._player.tasks.values()), timeout=drain_s * _DRAIN_SHARE)
            self._player.hand_back(playing=True)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._leave(reason), timeout=max(_LAST_COMMIT_S, (1 - _DRAIN_SHARE) * drain_s))

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
                "groups": len(self._player.tasks),
                "leases_ahead": self._player.prefetch.ahead,
                "committed_groups": self._committer.groups,
                "trajectories": self._committer.trajectories,
                "tokens_per_s": (sampled - tokens) / (now - before),
                "store_faults": self._contact.faults,
                **self._depot.figures,
                "requests_served": self._gateway.served if self._gateway else 0,
                "requests_turned_away": self._gateway.turned_away if self._gateway else 0,
                "refused_updates": sum(served.refused for served in self._served.values()),
                **{f"version_{policy}": served.version for policy, served in self._served.items()},
                **{f"failed_{kind}": count for kind, count in self._player.failed.items()},
            }
            if self._committer.first_at is not None:
                figures["first_trajectory_s"] = self._committer.first_at - self._joined_at
            self._beat.set(**figures)
            before, tokens = now, sampled


async def _cancel(tasks: list[asyncio.Task[Any]]) -> None:
    """End tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
