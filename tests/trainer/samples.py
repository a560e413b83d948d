"""Random sequences and learners for the tests of steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from astraflow.config import Trainer
from astraflow.models import load_causal_lm
from astraflow.trainer.losses import Grpo
from astraflow.trainer.reader import LoadedBatch, Part, Sequence
from astraflow.trainer.step import Learner, new_optimizer

VOCABULARY = 128


def sequence(rng, prompt=None, response=None, **changes):
    """A random one of random length; its last token is always trained."""
    prompt, response = prompt or int(rng.integers(1, 9)), response or int(rng.integers(1, 9))
    mask = rng.random(response) < 0.7
    mask[-1] = True
    made = Sequence(
        pool="local",
        prompt_ids=rng.integers(3, VOCABULARY, prompt).astype(np.int32),
        response_ids=rng.integers(3, VOCABULARY, response).astype(np.int32),
        logprobs=(-4.85 + 0.3 * rng.standard_normal(response)).astype(np.float32),
        loss_mask=mask,
        lags=np.zeros(response, dtype=np.int64),
        reward=float(rng.integers(0, 2)),
        temperature=1.0,
    )
    return replace(made, **changes)


def loaded(rng, parts=4, members=4, **changes):
    return LoadedBatch(0, [Part(g, [sequence(rng, **changes) for _ in range(members)]) for g in range(parts)], {})


def learner(folder, loss=None, **settings):
    model = load_causal_lm(folder, torch.float32)
    config = Trainer(**{"lr": 1e-3, "grad_clip": 1e9, **settings})
    return Learner(model, new_optimizer(model, config), loss or Grpo(), config, pad_id=0, constant_tokens=8)


def first_moments(pupil):
    """All of AdamW's first moments as one vector: after one step, a tenth of the gradient."""
    return torch.cat([state["exp_avg"].flatten() for state in pupil.optimizer.state.values()])


def parameters(pupil):
    return torch.cat([parameter.detach().flatten() for parameter in pupil.model.parameters()])
