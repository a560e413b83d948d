"""What a pool costs beyond vLLM, and what an update in place costs beside reloading: SmolLM2-135M on this machine.

    .venv-vllm/bin/python tests/benchmarks/raas_vllm.py [--model FOLDER | --tiny] [--pairs 5] [--json]
        [--only updates short long]

``pool_vs_engine``: tokens a second of a whole pool (leases, workflow, engine, Parquet, log) by those of the bare one,
vLLM's own ``AsyncLLM`` with the same processes and all requests given at once: the very requests that the pool has just
played, so the same tokens. 64 are decoded at once, and as many more may wait in the pool as there are; ``long``: 64
answers of 8 to 1024 tokens; ``short``: 256 answers of 8 tokens.
``pause_ms``: nothing is decoded for so long when 1 % of the values change under 64 running generations.
``reload_ms``: vLLM's ``reload_weights`` of the same weights from a folder. Medians of alternating pairs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from raas_vllm_pool import AT_ONCE, OPTIONS, POOL, PoolUnderTest, Recorder

from astraflow import config as cfg
from astraflow.models import build_tiny_qwen3, load_causal_lm
from astraflow.raas import vllm_start
from astraflow.raas.engine import GenerationRequest
from astraflow.raas.pool import run_pool
from astraflow.raas.vllm_engine import VllmEngine
from astraflow.raas.vllm_request import sampling_params
from astraflow.weights.publisher import Publisher
from astraflow.weights.subscriber import Subscriber
from infra.smollm2 import build
from storage.keys import RunKeys
from storage.memory import MemoryStore

KINDS = ("updates", "short", "long")


async def bare(engine: VllmEngine, requests: list[GenerationRequest]) -> float:
    """Seconds of vLLM for the requests, all given at once."""
    from vllm.inputs.engine import tokens_input

    async def one(number: int, request: GenerationRequest) -> int:
        prompt = tokens_input(list(request.prompt_ids))
        async for output in engine._llm.generate(prompt, sampling_params(request), f"bare-{number}"):
            tokens = len(output.outputs[0].token_ids)
        return tokens

    begun = time.perf_counter()
    tokens = sum(await asyncio.gather(*(one(number, request) for number, request in enumerate(requests))))
    taken = time.perf_counter() - begun
    assert tokens == sum(request.max_tokens for request in requests)
    return taken


async def throughput(engine: VllmEngine, folder: Path, lengths: list[int], pairs: int) -> dict[str, Any]:
    """Alternating rounds of the pool and of the engine; before them, a short pair that warms up."""
    pool = PoolUnderTest(folder, lengths)
    recorders: list[Recorder] = []

    async def factory(_: Path, section: cfg.Pool) -> VllmEngine:
        recorders.append(Recorder(engine, section))
        return recorders[-1]

    stop = asyncio.Event()
    task = pool.task = asyncio.create_task(
        run_pool(pool.store, pool.config, "local", participant=POOL, stop=stop, engines=factory)  # type: ignore[arg-type]
    )
    await pool.until(lambda: pool.joined)
    tokens, ratios, bare_tps = sum(lengths), [], []
    for number in range(pairs + 1):
        recorders[0].asked.clear()
        pooled = await pool.round(None if number else AT_ONCE // 4)
        await engine._llm.reset_prefix_cache()
        alone = await bare(engine, list(recorders[0].asked))
        await engine._llm.reset_prefix_cache()
        if number:
            ratios.append(alone / pooled)
            bare_tps.append(tokens / alone)
            print(f"{ratios[-1]:.4f} of {bare_tps[-1]:.1f} tokens/s", file=sys.stderr, flush=True)
    stop.set()
    await task
    return {
        "ratio": round(statistics.median(ratios), 4),
        "pairs": [round(ratio, 4) for ratio in ratios],
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
    await engine._llm.collective_rpc("astraflow_watch")
    calls, loads, reloads = [], [], []
    for version in range(pairs + 2):
        publisher.publish(weights, step=version, incarnation=1, batch=version, skipped={})
        update = await asyncio.to_thread(subscriber.fetch, version)
        begun = time.perf_counter()
        await facade.load(update)
        if version > 1:  # the first is whole, the second warms up
            loads.append(time.perf_counter() - begun)
            calls.append(facade.pauses_s[-1])
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
    [(gaps, watched)] = await engine._llm.collective_rpc("astraflow_watched")
    facade._life.close()
    pauses, writes = zip(*watched[2:], strict=True)
    pause_ms, reload_ms = 1000 * statistics.median(pauses), 1000 * statistics.median(reloads)
    return {
        "pause_ms": round(pause_ms, 1),
        "pause_ms_spread": [round(1000 * min(pauses), 1), round(1000 * max(pauses), 1)],
        "pause_write_ms": round(1000 * statistics.median(writes), 1),
        "pause_calls_ms": round(1000 * statistics.median(calls), 1),
        "between_steps_ms": round(1000 * statistics.median(gaps), 1),
        "reload_ms": round(reload_ms, 1),
        "pause_vs_reload": round(pause_ms / reload_ms, 3),
        "load_ms": round(1000 * statistics.median(loads), 1),
    }


async def _busy(engine: VllmEngine, seed: int) -> None:
    while True:
        await engine.generate(GenerationRequest("p", tuple(range(20, 50)), 400, frozenset(), seed=seed))


async def measure(model: Path, pairs: int, only: Collection[str], scratch: Path) -> dict[str, Any]:
    """All figures."""
    folder = scratch / "model"
    folder.mkdir()
    for file in model.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    config = json.loads((folder / "config.json").read_text())
    config["max_position_embeddings"] = max(config["max_position_embeddings"], OPTIONS["max_model_len"])
    (folder / "config.json").write_text(json.dumps(config))
    arguments = vllm_start._arguments  # a model built without weights can't be reloaded
    ours = {"load_format": "safetensors", "worker_extension_cls": "raas_vllm_worker.WatchedUpdates"}
    vllm_start._arguments = lambda *given: {**arguments(*given), **ours}
    begun = time.perf_counter()
    pool = cfg.Pool(engine="vllm", max_batch=AT_ONCE, threads=2, options=OPTIONS)
    engine = await VllmEngine.start(folder, pool)
    figures: dict[str, Any] = {"cold_load_ms": round(1000 * (time.perf_counter() - begun))}
    if "updates" in only:
        (scratch / "reloaded").mkdir()
        figures |= await updates(engine, folder, pairs, scratch / "reloaded")
        print(json.dumps(figures), file=sys.stderr, flush=True)  # the rest takes minutes
    rng = random.Random(1)
    lengths = {"short": [8] * 256, "long": [round(2 ** rng.uniform(3, 10)) for _ in range(AT_ONCE)]}
    for kind, name in (("short", "pool_vs_engine_short"), ("long", "pool_vs_engine")):
        if kind in only:
            found = await throughput(engine, folder, lengths[kind], pairs)
            figures |= {f"{name}{_end(key)}": value for key, value in found.items()}
    await engine.close()
    return figures


def _end(key: str) -> str:
    return "" if key == "ratio" else f"_{key}"


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=Path("~/.cache/astraflow/smollm2-135m"))
    parser.add_argument("--tiny", action="store_true", help="the tiny model: a step of a few ms hides nothing")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--only", choices=KINDS, default=KINDS, nargs="+")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        if given.tiny:
            model = Path(scratch) / "tiny"
            build_tiny_qwen3(model, 0)
        else:
            model = given.model.expanduser()
            build(model)
        figures = asyncio.run(measure(model, given.pairs, given.only, Path(scratch)))
    print(json.dumps(figures) if given.json else "\n".join(f"{name:32} {value}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
