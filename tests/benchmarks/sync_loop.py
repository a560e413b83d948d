"""A plain synchronous loop: play a batch, train on it, load the weights, again. No store, manager, logs or Parquet.

It is what the whole system must equal, bit for bit, at ``max_staleness = 0``: the engine, the workflow and the
optimizer step are the same functions, everything between them is not there. A program of its own:

    python tests/benchmarks/sync_loop.py RECIPE.toml OUT.json
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from parity_parts import digest

from astraflow.config import RunConfig
from astraflow.models import load_causal_lm, load_tokenizer, resolve_model
from astraflow.problems import load_problems
from astraflow.raas.group import PlayedGroup, Playing, play_group
from astraflow.raas.leases import Lease
from astraflow.raas.serving import make_engine
from astraflow.recipe import load_recipe
from astraflow.rewards import ScoredProblem, load_reward
from astraflow.trainer.cast import Bf16Weights
from astraflow.trainer.losses import load_loss
from astraflow.trainer.reader import LoadedBatch, Part, Sequence
from astraflow.trainer.step import Learner, new_optimizer, train_batch
from astraflow.trajectory import Trajectory
from astraflow.weights.update import WeightUpdate
from astraflow.workflows import load_workflow
from astraflow.workflows.render import Renderer, stop_ids
from astraflow.workflows.role import Voice


def to_part(group: PlayedGroup) -> Part:
    """What a trainer would read from the store: the rows as arrays, all of lag 0."""
    return Part(group.lease.group, [_sequence(t) for episode in group.episodes for t in episode])


def _sequence(t: Trajectory) -> Sequence:
    return Sequence(
        pool="plain",
        prompt_ids=np.array(t.prompt_ids, np.int32),
        response_ids=np.array(t.response_ids, np.int32),
        logprobs=np.array(t.logprobs, np.float32),
        loss_mask=np.array(t.loss_mask, np.bool_),
        lags=np.zeros(len(t.response_ids), np.int64),
        reward=float(np.float32(t.reward)),
        temperature=t.temperature,
    )


async def run(config: RunConfig, folder: Path) -> list[tuple[str, float]]:
    """The digest of the parameters and the time after every step."""
    torch.set_num_threads(1)
    settings, problems = config.trainer, load_problems(config.problems, config.seed)
    source = resolve_model(config.policies["solver"].model, config.seed, folder)
    model, tokenizer = load_causal_lm(source, torch.float32), load_tokenizer(source)
    optimizer, loss = new_optimizer(model, settings), load_loss(settings.loss, key="trainer.loss")
    sampling = config.policies["solver"].sampling
    learner = Learner(model, optimizer, loss, settings, tokenizer.pad_token_id or 0, sampling.max_tokens)
    engine, weights = await make_engine(source, config.pools["local"]), Bf16Weights(model)
    voice = Voice("solver", engine, Renderer(tokenizer), sampling, stop_ids(tokenizer, sampling.stop_tokens))
    playing = Playing(load_workflow(config), {"solver": voice}, config.dataflow.group_size, 600.0, config.seed)
    reward, marks = load_reward(config.problems.reward), []
    for step in range(settings.steps):
        tensors = weights.refresh()
        await engine.load(WeightUpdate("solver", step, step, "", tensors, frozenset(tensors), 0))
        numbers = range(step * settings.batch_size, (step + 1) * settings.batch_size)
        leases = [Lease(group, group % len(problems), 1) for group in numbers]
        chosen = [ScoredProblem.of(problems[lease.problem], reward) for lease in leases]
        played = await asyncio.gather(*(play_group(*pair, playing) for pair in zip(leases, chosen, strict=True)))
        train_batch(learner, LoadedBatch(step, [to_part(group) for group in played], {}))
        marks.append((digest(model), time.monotonic()))
    await engine.close()
    return marks


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        marks = asyncio.run(run(load_recipe(sys.argv[1], default_store=name), Path(name)))
    Path(sys.argv[2]).write_text(json.dumps(marks))
