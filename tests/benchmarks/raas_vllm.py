"""What a pool costs beyond vLLM, and what an update in place costs beside reloading: SmolLM2-135M on this machine.

    .venv-vllm/bin/python tests/benchmarks/raas_vllm.py [--model FOLDER] [--pairs 5] [--only updates] [--json]

``pool_vs_engine``: tokens a second of a whole pool (leases, workflow, engine, Parquet, log) by those of the bare one,
vLLM's own ``AsyncLLM`` with the same processes and all requests given at once: the very requests that the pool has just
played, so the same tokens. 64 answers of 8 to 1024 tokens at once; ``_short``: 256 answers of 8 tokens.
``pause_ms``: nothing is decoded for so long when 1 % of the values change under 64 running generations.
``reload_ms``: vLLM's ``reload_weights`` of the same weights from a folder. Medians of alternating pairs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from astraflow import config as cfg
from astraflow.models import load_causal_lm, upload_model_files
from astraflow.problems import Problem, data_hash, problems_table
from astraflow.raas import vllm_start
from astraflow.raas.engine import Generation, GenerationRequest
from astraflow.raas.pool import run_pool
from astraflow.raas.vllm_engine import VllmEngine, _sampling_params
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
from astraflow.weights.subscriber import Subscriber
from astraflow.workflows import workflow
from infra.smollm2 import build
from storage.keys import RunKeys
from storage.log import NumberedLog
from storage.memory import MemoryStore
from storage.tables import write_table

AT_ONCE = 64
POOL = "pool-local-1"
OPTIONS = {"max_model_len": 2048, "kv_cache_memory_bytes": 3 << 30}
END_NEVER = 16  # a token that the model never says: answers are as long as they are asked to be


@workflow(roles=["solver"])
async def speak(problem: Any, roles: Any) -> None:
    """One answer of as many tokens as the problem asks for."""
    answer = await roles.solver.complete(problem.prompt, max_tokens=int(problem.answer))
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
        words = ["apple", "river", "stone", "cloud", "winter", "paper", "music", "garden"]
        rng = random.Random(0)
        problems = [
            Problem(f"{i}", " ".join(rng.choices(words, k=24)), str(length)) for i, length in enumerate(lengths)
        ]
        self.config = cfg.RunConfig.model_validate(
            {
                "name": "bench",
                "policies": {"solver": {"model": str(folder), "sampling": {"max_tokens": 1024}}},
                "workflow": {"name": f"{Path(__file__).stem}:speak"},
                "problems": {"source": "addition"},
                "data_hash": data_hash(problems),
                "problem_count": len(problems),
                "dataflow": {"group_size": 1},
                "pools": {"local": {"engine": "vllm", "capacity": AT_ONCE, "max_batch": AT_ONCE, "options": OPTIONS}},
            }
        )
        write_table(self.store, self.keys.problems(self.config.data_hash), problems_table(problems))
        upload_model_files(self.store, self.keys, "solver", folder)
        weights = dict(load_causal_lm(folder, torch.bfloat16).state_dict())
        Publisher(self.store, self.keys, "solver", anchor_every=64).publish(
            weights, step=0, incarnation=1, batch=-1, skipped={}
        )
        self.problems = len(problems)
        self.seq = self.groups = self.seen = self.committed = 0
        self.joined = False

    def decide(self, *decisions: AnyDecision) -> None:
        record = DecisionRecord(id=new_id(), epoch=1, now=0.0, cursors={}, observations={}, decisions=list(decisions))
        self.store.create(self.keys.decision(self.seq), encode(record))
        self.seq += 1

    async def until(self, done: Callable[[], bool]) -> None:
        log = NumberedLog(self.store, lambda seq: self.keys.outbox(POOL, seq))
        while not done():
            while (data := log.read(self.seen)) is not None:
                self.seen += 1
                for fact in decode(data, FactRecord, where="outbox").facts:
                    self.joined |= isinstance(fact, PoolJoined)
                    self.committed += len(fact.groups) if isinstance(fact, Committed) else 0
            await asyncio.sleep(0.005)

    async def round(self) -> float:
        """Play every problem once; returns the seconds from the lease to the last commit."""
        groups = range(self.groups, self.groups + self.problems)
        self.groups += self.problems
        begun = time.perf_counter()
        self.decide(
            Leased(pool=POOL, groups=list(groups), problems=list(range(self.problems)), attempts=[1] * self.problems)
        )
        await self.until(lambda: self.committed >= self.groups)
        return time.perf_counter() - begun


async def bare(engine: VllmEngine, requests: list[GenerationRequest]) -> float:
    """Seconds of vLLM for the requests, all given at once."""
    from vllm.inputs.engine import tokens_input

    async def one(number: int, request: GenerationRequest) -> int:
        prompt = tokens_input(list(request.prompt_ids))
        async for output in engine._llm.generate(prompt, _sampling_params(request), f"bare-{number}"):
            tokens = len(output.outputs[0].token_ids)
        return tokens

    begun = time.perf_counter()
    tokens = sum(await asyncio.gather(*(one(number, request) for number, request in enumerate(requests))))
    taken = time.perf_counter() - begun
    assert tokens == sum(request.max_tokens for request in requests)
    return taken


async def throughput(engine: VllmEngine, folder: Path, lengths: list[int], pairs: int) -> dict[str, Any]:
    """Alternating rounds of the pool and of the engine; the first pair is warm-up."""
    pool = PoolUnderTest(folder, lengths)
    recorders: list[Recorder] = []

    async def factory(_: Path, section: cfg.Pool) -> VllmEngine:
        recorders.append(Recorder(engine, section))
        return recorders[-1]

    stop = asyncio.Event()
    task = asyncio.create_task(
        run_pool(pool.store, pool.config, "local", participant=POOL, stop=stop, engines=factory)  # type: ignore[arg-type]
    )
    await pool.until(lambda: pool.joined or task.done())
    tokens, ratios, bare_tps = sum(lengths), [], []
    for number in range(pairs + 1):
        recorders[0].asked.clear()
        pooled = await pool.round()
        await engine._llm.reset_prefix_cache()
        alone = await bare(engine, list(recorders[0].asked))
        await engine._llm.reset_prefix_cache()
        if number:
            ratios.append(alone / pooled)
            bare_tps.append(tokens / alone)
    stop.set()
    await task
    return {
        "ratio": round(statistics.median(ratios), 4),
        "spread": [round(min(ratios), 4), round(max(ratios), 4)],
        "bare_tokens_per_s": round(statistics.median(bare_tps), 1),
    }


def perturbed(weights: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """1 % of the values moved by one unit in the last place."""
    generator = torch.Generator().manual_seed(seed)
    moved = {}
    for name, tensor in weights.items():
        words = tensor.clone().view(torch.int16)
        words += (torch.rand(words.shape, generator=generator) < 0.01).to(torch.int16)
        moved[name] = words.view(torch.bfloat16)
    if "lm_head.weight" in moved:
        moved["lm_head.weight"] = moved["model.embed_tokens.weight"]
    return moved


async def updates(engine: VllmEngine, folder: Path, pairs: int, scratch: Path) -> dict[str, Any]:
    """Sparse updates under 64 running generations, each beside vLLM's reload of the same weights."""
    store, keys = MemoryStore(), RunKeys("updates")
    publisher = Publisher(store, keys, "p", anchor_every=64)
    subscriber = Subscriber(store, keys, "p")
    model = load_causal_lm(folder, torch.bfloat16)
    weights = dict(model.state_dict())
    facade = VllmEngine(engine._llm, cfg.Pool(engine="vllm"), engine._scratch)
    running = [asyncio.create_task(_busy(facade, number)) for number in range(AT_ONCE)]
    pauses, loads, reloads = [], [], []
    for version in range(pairs + 2):
        publisher.publish(weights, step=version, incarnation=1, batch=version, skipped={})
        update = await asyncio.to_thread(subscriber.fetch, version)
        begun = time.perf_counter()
        await facade.load(update)
        if version > 1:  # the first is whole, the second warms up
            loads.append(time.perf_counter() - begun)
            pauses.append(facade.pauses_s[-1])
            model.load_state_dict(weights)
            model.save_pretrained(scratch)
            await engine._llm.pause_generation(mode="keep", clear_cache=False)
            begun = time.perf_counter()
            await engine._llm.collective_rpc("reload_weights", kwargs={"weights_path": str(scratch)})
            reloads.append(time.perf_counter() - begun)
            await engine._llm.resume_generation()
            facade._in_step = True
        weights = perturbed(weights, version)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    facade._life.close()
    pause_ms, reload_ms = 1000 * statistics.median(pauses), 1000 * statistics.median(reloads)
    return {
        "pause_ms": round(pause_ms, 1),
        "pause_ms_spread": [round(1000 * min(pauses), 1), round(1000 * max(pauses), 1)],
        "reload_ms": round(reload_ms, 1),
        "pause_vs_reload": round(pause_ms / reload_ms, 3),
        "load_ms": round(1000 * statistics.median(loads), 1),
    }


async def _busy(engine: VllmEngine, seed: int) -> None:
    while True:
        await engine.generate(GenerationRequest("p", tuple(range(20, 50)), 400, frozenset(), seed=seed))


async def measure(model: Path, pairs: int, only: str, scratch: Path) -> dict[str, Any]:
    """All figures."""
    folder = scratch / "model"
    folder.mkdir()
    for file in model.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    for name in ("generation_config.json", "config.json"):
        settings = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**settings, "eos_token_id": END_NEVER}))
    arguments = vllm_start._arguments  # a model built without weights can't be reloaded
    vllm_start._arguments = lambda *given: {**arguments(*given), "load_format": "safetensors"}
    begun = time.perf_counter()
    pool = cfg.Pool(engine="vllm", max_batch=AT_ONCE, threads=2, options=OPTIONS)
    engine = await VllmEngine.start(folder, pool)
    figures: dict[str, Any] = {"cold_load_ms": round(1000 * (time.perf_counter() - begun))}
    rng = random.Random(1)
    long = [round(2 ** rng.uniform(3, 10)) for _ in range(AT_ONCE)]
    if only in ("", "updates"):
        (scratch / "reloaded").mkdir()
        figures |= await updates(engine, folder, pairs, scratch / "reloaded")
    if only in ("", "throughput"):
        short = await throughput(engine, folder, [8] * 256, pairs)
        figures |= {f"pool_vs_engine_short{_end(key)}": value for key, value in short.items()}
        found = await throughput(engine, folder, long, pairs)
        figures |= {f"pool_vs_engine{_end(key)}": value for key, value in found.items()}
    await engine.close()
    return figures


def _end(key: str) -> str:
    return "" if key == "ratio" else f"_{key}"


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("~/.cache/astraflow/smollm2-135m"))
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--only", choices=["", "throughput", "updates"], default="")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    model = given.model.expanduser()
    build(model)
    with tempfile.TemporaryDirectory() as scratch:
        figures = asyncio.run(measure(model, given.pairs, given.only, Path(scratch)))
    print(json.dumps(figures) if given.json else "\n".join(f"{name:32} {value}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
