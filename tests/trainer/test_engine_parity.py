"""What the reference engine sampled, one token at a time with a cache, the trainer computes again in one pass."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
import torch

from astraflow.models import load_causal_lm
from astraflow.raas.engine import GenerationRequest
from astraflow.raas.transformers_engine import TransformersEngine
from astraflow.trainer.batch import micro_batches
from astraflow.trainer.logprobs import micro_logprobs
from astraflow.trainer.reader import Sequence
from astraflow.weights.update import WeightUpdate
from tests.trainer.samples import VOCABULARY

SAMPLERS = [
    {"temperature": 1.0},
    {"temperature": 0.6},
    {"temperature": 0.8, "top_p": 0.7},
    {"temperature": 1.3, "top_k": 9},
    {"temperature": 0.9, "top_p": 0.9, "min_p": 0.05},
]


async def answers(folder, requests):
    """Each request's answer, several decoded at a time and newcomers merged in."""
    engine = TransformersEngine(load_causal_lm(folder, torch.float32), max_batch=5)
    weights = {name: tensor.clone() for name, tensor in load_causal_lm(folder, torch.float32).state_dict().items()}
    await engine.load(WeightUpdate("solver", 0, 0, "", weights, frozenset(weights), 0))
    try:
        return await asyncio.gather(*(engine.generate(request) for request in requests))
    finally:
        await engine.close()


@pytest.fixture(scope="module")
def sampled(model_folder):
    """Sequences of uneven lengths under every sampler, as a pool would store them."""
    rng = np.random.default_rng(0)
    requests = [
        GenerationRequest(
            "solver",
            tuple(rng.integers(3, VOCABULARY, int(rng.integers(1, 12))).tolist()),
            int(rng.integers(2, 16)),
            frozenset([2]),
            seed=number,
            **SAMPLERS[number % len(SAMPLERS)],
        )
        for number in range(20)
    ]
    return [
        Sequence(
            pool="local",
            prompt_ids=np.array(request.prompt_ids, np.int32),
            response_ids=np.array(answer.token_ids, np.int32),
            logprobs=np.array(answer.logprobs, np.float32),
            loss_mask=np.ones(len(answer.token_ids), np.bool_),
            lags=np.zeros(len(answer.token_ids), np.int64),
            reward=0.0,
            temperature=request.temperature,
            top_p=request.top_p,
            top_k=request.top_k,
            min_p=request.min_p,
        )
        for request, answer in zip(requests, asyncio.run(answers(model_folder, requests)), strict=True)
    ]


@pytest.mark.parametrize("budget", [16384, 60])
@pytest.mark.parametrize("packing", ["padded", "packed"])
def test_the_trainers_log_probs_are_the_engines(model_folder, sampled, packing, budget):
    model = load_causal_lm(model_folder, torch.float32)
    zeros = torch.zeros(len(sampled))
    micros = micro_batches(sampled, [0.0] * len(sampled), zeros, pad_id=0, budget_tokens=budget, packing=packing)
    assert len(micros) > (budget == 60)
    worst = shifted = 0.0
    for micro in micros:
        with torch.no_grad():
            found = micro_logprobs(model, micro)[0][micro.mask]
        said = micro.old_logprobs[micro.mask]
        worst = max(worst, float((found - said).abs().max()))
        shifted = max(shifted, float((found - said.roll(1)).abs().max()))
    assert worst < 1e-5
    assert shifted > 1e-2  # labels that are shifted by one would be seen
