"""What rollouts cost beyond the model: a pool's engine beside the bare forward passes of the same tokens, on one core.

    python tests/benchmarks/raas.py [--sequences 256] [--rounds 8] [--json]

The tiny model, 4 tokens an answer, groups of 8. ``bare`` is one prefill and three decode steps with a KV cache and
nothing else; ``engine`` adds queueing, sampling, log-probs and versions; ``episodes`` adds the workflow, its
reward and the Parquet object. Process time, the best round of each, so compare the ratios.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import torch
from transformers.cache_utils import DynamicCache

from astraflow.config import Sampling
from astraflow.models import build_tiny_qwen3, load_causal_lm, load_tokenizer
from astraflow.problems import addition
from astraflow.raas.decoder import Decoder
from astraflow.raas.engine import GenerationRequest
from astraflow.raas.group import Playing, play_group
from astraflow.raas.leases import Lease
from astraflow.raas.rows import Origin, bundle, to_table
from astraflow.raas.transformers_engine import TransformersEngine
from astraflow.rewards import ScoredProblem, exact
from astraflow.weights.update import WeightUpdate
from astraflow.workflows import BUILT_IN, Voice
from astraflow.workflows.render import Renderer
from storage.tables import encode_table

GROUP = 8
TOKENS = 4


def bare(model: Any, prompts: list[list[int]]) -> None:
    """The forward passes alone: equal prompts once, then all rows."""
    ids = torch.tensor(prompts[::GROUP])
    mask = torch.ones(len(prompts), ids.shape[1] + TOKENS, dtype=torch.long)
    name = Decoder(model)._cache_name
    with torch.inference_mode():
        cache = DynamicCache()
        model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=True, **{name: cache})
        cache.batch_select_indices(torch.arange(len(prompts)) // GROUP)
        for step in range(1, TOKENS):
            last = torch.full((len(prompts), 1), 5)
            model(input_ids=last, attention_mask=mask[:, : ids.shape[1] + step], use_cache=True, **{name: cache})


async def best(rounds: int, work: Callable[[int], Awaitable[None]]) -> float:
    """Milliseconds of process time of the best round."""
    costs = []
    for number in range(rounds):
        begun = time.process_time()
        await work(number)
        costs.append(time.process_time() - begun)
    return round(1000 * min(costs), 1)


async def measure(sequences: int, rounds: int, folder: Path) -> dict[str, float]:
    """Process milliseconds a round of each stage."""
    build_tiny_qwen3(folder, 0)
    model = load_causal_lm(folder, torch.float32)
    renderer = Renderer(load_tokenizer(folder))
    engine = TransformersEngine(load_causal_lm(folder, torch.float32), max_batch=sequences)
    tensors = {name: value.clone() for name, value in model.state_dict().items()}
    await engine.load(WeightUpdate("solver", 0, 0, "", tensors, frozenset(tensors), 0))
    problems = [ScoredProblem.of(problem, exact) for problem in addition(0, count=sequences // GROUP)]
    prompts = [renderer.prompt(problem.prompt) for problem in problems for _ in range(GROUP)]
    voice = Voice("solver", engine, renderer, Sampling(max_tokens=TOKENS), frozenset())
    playing = Playing(BUILT_IN["solve"].bind({}), {"solver": voice}, GROUP, 600, 0)

    async def forward(_: int) -> None:
        bare(model, prompts)

    async def generate(number: int) -> None:
        asked = [
            GenerationRequest("solver", tuple(prompt), TOKENS, frozenset(), 1.0, seed=number * sequences + i)
            for i, prompt in enumerate(prompts)
        ]
        await asyncio.gather(*(engine.generate(request) for request in asked))

    async def episodes(number: int) -> None:
        leases = [Lease(number * sequences + i, i, 1) for i in range(len(problems))]
        groups = await asyncio.gather(*(play_group(lease, problems[lease.problem], playing) for lease in leases))
        for item in bundle(groups):
            encode_table(to_table(item.rows, Origin("run", "pool", "local", "transformers")))

    figures = {name: await best(rounds, work) for name, work in
               (("bare_ms", forward), ("engine_ms", generate), ("episodes_ms", episodes))}  # fmt: skip
    await engine.close()
    figures["engine_ratio"] = round(figures["engine_ms"] / figures["bare_ms"], 2)
    figures["episodes_ratio"] = round(figures["episodes_ms"] / figures["bare_ms"], 2)
    return figures


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description="Cost of rollouts beyond the model.")
    parser.add_argument("--sequences", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(measure(given.sequences, given.rounds, Path(folder)))
    if given.json:
        print(json.dumps(figures))
    else:
        print("\n".join(f"{name:16} {value}" for name, value in figures.items()))


if __name__ == "__main__":
    main()
