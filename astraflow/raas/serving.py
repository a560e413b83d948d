"""One policy in a pool: its engine and tokenizer, kept on the newest version by a task that pulls.

Weights that are wrong (digest, shape) are refused and the old ones sample on; the next try starts from a snapshot.
Invariant: ``applied`` is what ``announce`` was told last, and the engine samples from nothing newer.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from astraflow import config as cfg
from astraflow.models import context_of, download_model_files, empty_causal_lm, load_tokenizer
from astraflow.pace import Pace
from astraflow.raas.contact import Contact
from astraflow.raas.engine import Engine
from astraflow.raas.http_engine import HttpEngine, make_http_engine
from astraflow.raas.remote import NO_WEIGHTS, RemoteVoice, TextOnly
from astraflow.raas.transformers_engine import TransformersEngine
from astraflow.raas.vllm_engine import VllmEngine
from astraflow.records import Applied
from astraflow.weights.kept_copy import KeptCopy
from astraflow.weights.region import weights_store
from astraflow.weights.subscriber import Subscriber
from astraflow.workflows.render import Renderer, stop_ids
from astraflow.workflows.role import Voice
from astraflow.workflows.tools import load_parser
from storage.commit_points import commit_point
from storage.errors import ConfigError, DataError, DeadlineError, NotFound
from storage.keys import RunKeys
from storage.store import ObjectStore

if TYPE_CHECKING:
    from astraflow.weights.update import WeightUpdate

MAX_REFUSALS = 5
_FIRST_RETRY_S = 0.1

EngineFactory = Callable[[Path, cfg.Pool], Awaitable[Engine]]
"""Makes the engine of a policy from its model files; the weights come by ``load``."""


async def make_engine(folder: Path, pool: cfg.Pool) -> Engine:
    """The engine that the pool's config names."""
    if pool.engine == "vllm":
        return await VllmEngine.start(folder, pool)
    if pool.engine != "transformers":
        raise ConfigError(
            f"there is no engine {pool.engine!r}",
            where="pools.….engine",
            remedy="Use 'transformers' or 'vllm'",
            kind="unknown",
        )
    if pool.kv != "keep":
        raise ConfigError(
            "the engine 'transformers' keeps the KV cache of running generations",
            where="pools.….kv",
            remedy="Use kv = 'keep', or the engine 'vllm'",
            kind="unsupported",
        )
    torch.set_num_threads(pool.threads)
    tokenizer = await asyncio.to_thread(load_tokenizer, folder)
    model = await asyncio.to_thread(empty_causal_lm, folder, torch.float32)
    return TransformersEngine(
        model,
        max_batch=pool.max_batch,
        update=pool.update,
        max_context=context_of(model.config),
        threads=pool.threads,
        decode=functools.partial(Renderer(tokenizer).decode, special=True),
    )


@dataclass(slots=True)
class Served:
    """A policy that is being served."""

    policy: str
    engine: Engine
    voice: Voice
    subscriber: Subscriber
    contact: Contact
    pace: Pace
    applied: Applied | None = None
    refused: int = 0  # updates, in all
    _refused_in_a_row: int = field(default=0, init=False)

    @property
    def version(self) -> int:
        """The version that was announced last, -1 if none."""
        return self.applied.version if self.applied else -1

    async def keep_fresh(self, announce: Callable[[Applied], None]) -> None:
        """Bring the engine to every new version, for ever; ``announce`` is called once it samples from it."""
        while True:
            newest = await self.contact.ask(self.subscriber.newest)
            if newest > self.version and await self.advance(newest):
                assert self.applied is not None
                announce(self.applied)
                commit_point("pool.after_apply")
                self.pace.reset()
            else:
                await asyncio.sleep(self.pace.next_s())

    async def advance(self, version: int) -> bool:
        """Load ``version``; False if it was refused. Raises ``DataError`` after ``MAX_REFUSALS`` in a row."""
        try:
            update: WeightUpdate = await self.contact.ask(self.subscriber.fetch, version)
            commit_point("pool.before_apply")
            await self.engine.load(update)
        except (DataError, NotFound) as error:
            self.refused += 1
            self._refused_in_a_row += 1
            if self._refused_in_a_row >= MAX_REFUSALS:
                raise DataError(
                    f"version {version} of {self.policy} was refused {MAX_REFUSALS} times: {error.what}",
                    where=error.where,
                    remedy="Restore the object from a mirror, or end the trainer and start it again",
                    kind=error.kind,
                ) from error
            await asyncio.sleep(_FIRST_RETRY_S * 2**self._refused_in_a_row)
            return False
        self._refused_in_a_row = 0
        self.applied = Applied(policy=self.policy, version=update.version, step=update.step, digest=update.digest)
        return True


async def serve(
    store: ObjectStore,
    keys: RunKeys,
    config: cfg.RunConfig,
    pool: cfg.Pool,
    policy: str,
    *,
    folder: Path,
    contact: Contact,
    engines: EngineFactory,
) -> Served:
    """Wait for the policy's first version, build its engine and load the newest weights.

    Raises ``DeadlineError`` if no version comes within the trainer's ``batch_timeout_s``.
    """
    section = config.policies[policy]
    if section.model == cfg.REMOTE:
        nothing, pace = Subscriber(store, keys, policy), Pace(store.url)
        return await _serve_remote(nothing, config, pool, policy, folder=folder, contact=contact, pace=pace)
    # A copy that was kept is hashed here, which takes seconds for gigabytes.
    subscriber = await asyncio.to_thread(_subscriber, store, keys, config, pool, policy)
    pace = Pace(store.url)
    timeout_s = config.trainer_of(policy).batch_timeout_s
    try:
        async with asyncio.timeout(timeout_s):
            while (newest := await contact.ask(subscriber.newest)) < 0:
                await asyncio.sleep(pace.next_s())
    except TimeoutError as error:
        raise DeadlineError(
            f"waited {timeout_s:g} s for version 0 of {policy}",
            where=keys.weights(policy),
            remedy="Its trainer publishes it first: look at the trainer",
            kind="timeout",
        ) from error
    await contact.ask(download_model_files, store, keys, policy, folder)
    tokenizer = await asyncio.to_thread(load_tokenizer, folder)
    if policy in pool.servers:
        engine: Engine = make_http_engine(policy, folder, pool, frozen=section.frozen, sampling=section.sampling)
    else:
        engine = await engines(folder, pool)
    voice = Voice(
        policy=policy,
        engine=engine,
        renderer=Renderer(tokenizer),
        sampling=section.sampling,
        stop_ids=stop_ids(tokenizer, section.sampling.stop_tokens, _eos_of_model(folder)),
        frozen=section.frozen,
        parse_tools=load_parser(section.tools, where=f"policies.{policy}.tools"),
        turn_timeout_s=config.workflow.turn_timeout_s,
    )
    served = Served(policy, engine, voice, subscriber, contact, Pace(store.url))
    try:
        while not await served.advance(newest):
            newest = await contact.ask(subscriber.newest)
    except BaseException:
        await engine.close()  # nobody else knows it yet, and it may have a server of its own
        raise
    return served


async def _serve_remote(
    subscriber: Subscriber,
    config: cfg.RunConfig,
    pool: cfg.Pool,
    policy: str,
    *,
    folder: Path,
    contact: Contact,
    pace: Pace,
) -> Served:
    """A judge that has no weights here: it is announced as its version 0 when its server answers."""
    section = config.policies[policy]
    engine = HttpEngine(policy, pool.servers[policy], folder)
    voice = RemoteVoice(
        policy=policy,
        engine=engine,
        renderer=TextOnly(),
        sampling=section.sampling,
        stop_ids=frozenset(),
        frozen=True,
        turn_timeout_s=config.workflow.turn_timeout_s,
    )
    served = Served(policy, engine, voice, subscriber, contact, pace)
    try:
        await engine.find()
    except BaseException:
        await engine.close()
        raise
    served.applied = Applied(policy=policy, version=0, step=0, digest=NO_WEIGHTS)
    return served


def _subscriber(store: ObjectStore, keys: RunKeys, config: cfg.RunConfig, pool: cfg.Pool, policy: str) -> Subscriber:
    keep = KeptCopy(Path(pool.copy_folder) / keys.run / policy) if pool.copy_folder else None
    return Subscriber(weights_store(store, config, pool), keys, policy, root=store, keep=keep)


def _eos_of_model(folder: Path) -> list[int]:
    """The eos ids of ``generation_config.json``: chat models end a turn with more than the tokenizer's eos."""
    path = folder / "generation_config.json"
    found = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id") if path.is_file() else None
    return [found] if isinstance(found, int) else list(found or [])
