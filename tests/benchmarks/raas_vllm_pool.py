"""A whole pool that plays with the processes of one vLLM engine, for ``raas_vllm.py``, which writes its leases."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from astraflow import config as cfg
from astraflow.models import load_causal_lm, upload_model_files
from astraflow.problems import Problem, data_hash, problems_table
from astraflow.raas.engine import Generation, GenerationRequest
from astraflow.raas.vllm_engine import VllmEngine
from astraflow.records import (
    AnyDecision,
    Committed,
    DecisionRecord,
    FactRecord,
    Leased,
    PoolJoined,
    decode,
    encode,
    new_id,
)
from astraflow.weights.publisher import Publisher
from astraflow.workflows import workflow
from storage.keys import RunKeys
from storage.log import NumberedLog
from storage.memory import MemoryStore
from storage.tables import write_table

AT_ONCE = 64
POOL = "pool-local-1"
OPTIONS = {"max_model_len": 2048, "kv_cache_memory_bytes": 3 << 30}


@workflow(roles=["solver"])
async def speak(problem: Any, roles: Any) -> None:
    """One answer of as many tokens as the problem asks for: no token ends it."""
    prompt = roles.solver.voice.renderer.prompt(problem.prompt)
    answer = await roles.solver.generate(prompt, max_tokens=int(problem.answer), stop_ids=frozenset())
    answer.reward = 1.0


class Recorder(VllmEngine):
    """Keeps what it was asked; another engine over the same processes, which it leaves alone."""

    def __init__(self, engine: VllmEngine, pool: cfg.Pool) -> None:
        super().__init__(engine._llm, pool, engine._scratch)
        self.asked: list[GenerationRequest] = []

    async def generate(self, request: GenerationRequest) -> Generation:
        self.asked.append(request)
        return await super().generate(request)

    async def close(self) -> None:
        self._life.close()


class PoolUnderTest:
    """A whole pool over a memory store; the benchmark writes the manager's decisions."""

    def __init__(self, folder: Path, lengths: list[int]) -> None:
        self.store, self.keys = MemoryStore(), RunKeys("bench")
        rng = random.Random(0)
        prompts = [" ".join(str(rng.randrange(1000)) for _ in range(24)) for _ in lengths]
        problems = [Problem(i, f"{i}", prompts[i], str(length)) for i, length in enumerate(lengths)]
        self.config = cfg.RunConfig.model_validate(
            {
                "name": "bench",
                "policies": {"solver": {"model": str(folder), "sampling": {"max_tokens": 1024}}},
                "workflow": {"name": f"{Path(__file__).stem}:speak"},
                "problems": {"source": "addition"},
                "data_hash": data_hash(problems),
                "problem_count": len(problems),
                "dataflow": {"group_size": 1},
                "pools": {
                    "local": {"engine": "vllm", "capacity": 2 * AT_ONCE, "max_batch": AT_ONCE, "options": OPTIONS}
                },
            }
        )
        write_table(self.store, self.keys.problems(self.config.data_hash), problems_table(problems))
        upload_model_files(self.store, self.keys, "solver", folder)
        weights = dict(load_causal_lm(folder, torch.bfloat16).state_dict())
        Publisher(self.store, self.keys, "solver", anchor_every=64).publish(
            weights, step=0, incarnation=1, batch=-1, skipped={}
        )
        self.shortest = sorted(range(len(problems)), key=lambda i: lengths[i])
        self.seq = self.groups = self.seen = self.committed = 0
        self.joined = False
        self.task: asyncio.Task[None] | None = None

    def decide(self, *decisions: AnyDecision) -> None:
        record = DecisionRecord(id=new_id(), epoch=1, now=0.0, cursors={}, observations={}, decisions=list(decisions))
        self.store.create(self.keys.decision(self.seq), encode(record))
        self.seq += 1

    async def until(self, done: Callable[[], bool]) -> None:
        log = NumberedLog(self.store, lambda seq: self.keys.outbox(POOL, seq))
        while not done():
            if self.task is not None and self.task.done():
                raise RuntimeError("the pool has ended") from self.task.exception()
            while (data := log.read(self.seen)) is not None:
                self.seen += 1
                for fact in decode(data, FactRecord, where="outbox").facts:
                    self.joined |= isinstance(fact, PoolJoined)
                    self.committed += len(fact.groups) if isinstance(fact, Committed) else 0
            await asyncio.sleep(0.02)  # its own look must cost next to nothing

    async def round(self, most: int | None = None) -> float:
        """Play every problem once, or the shortest; returns the seconds from the lease to the last commit."""
        problems = sorted(self.shortest[:most])
        groups = range(self.groups, self.groups + len(problems))
        self.groups += len(problems)
        begun = time.perf_counter()
        self.decide(Leased(pool=POOL, groups=list(groups), problems=problems, attempts=[1] * len(problems)))
        await self.until(lambda: self.committed >= self.groups)
        return time.perf_counter() - begun
