"""On one recorded batch the GRPO loss and its gradient are TRL's.

The file was made by ``tests/benchmarks/trl_step.py --golden`` with TRL 1.16.0: weights, batch, losses, gradients.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import Qwen3Config, Qwen3ForCausalLM

from astraflow.config import Trainer
from astraflow.trainer.learner import Learner, new_optimizer
from astraflow.trainer.losses import Grpo
from astraflow.trainer.reader import LoadedBatch, Part, Sequence
from astraflow.trainer.step import train_batch

GOLDEN = Path(__file__).parent / "golden" / "trl-grpo.safetensors"


def batch_of(golden):
    rows = []
    for number, reward in enumerate(golden["rewards"].tolist()):
        row = {name: golden[f"row.{number}.{name}"].numpy() for name in ("prompt", "response", "mask", "logprobs")}
        size = len(row["response"])
        sequence = Sequence(
            pool="trl",
            prompt_ids=row["prompt"].astype(np.int32),
            response_ids=row["response"].astype(np.int32),
            logprobs=row["logprobs"].astype(np.float32),
            loss_mask=row["mask"].astype(bool),
            lags=np.zeros(size, np.int64),
            reward=reward,
            temperature=1.0,
        )
        rows.append(sequence)
    return LoadedBatch(0, [Part(0, rows[:3]), Part(1, rows[3:])], {})


@pytest.mark.parametrize("packing", ["padded", "packed"])
@pytest.mark.parametrize("aggregate", ["token", "sequence", "constant"])
def test_loss_and_gradient_are_those_of_trl(aggregate, packing):
    golden = load_file(GOLDEN)
    config = Qwen3Config(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, head_dim=16, max_position_embeddings=64, tie_word_embeddings=True,
    )  # fmt: skip
    model = Qwen3ForCausalLM(config).float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(golden[f"weight.{name}"])
    settings = Trainer(aggregate=aggregate, grad_clip=1e9, packing=packing, micro_batch_tokens=40)
    pupil = Learner(model, new_optimizer(model, settings), Grpo(0.2, 0.28), settings, pad_id=0, constant_tokens=8)
    metrics = train_batch(pupil, batch_of(golden)).metrics
    assert metrics["loss"] == pytest.approx(float(golden[f"{aggregate}.loss"]), abs=1e-5)
    assert metrics["clipped_share"] > 0.1
    largest = 0.0
    for name, parameter in model.named_parameters():
        gradient = pupil.optimizer.state[parameter]["exp_avg"] / 0.1  # after one step of β₁ = 0.9
        torch.testing.assert_close(gradient, golden[f"{aggregate}.gradient.{name}"], atol=1e-5, rtol=1e-4)
        largest = max(largest, float(gradient.abs().max()))
    assert largest > 1e-2
