"""What the ranks of a test do: one step on one batch by every way of cutting it, and the gradients to a file.

``torchrun … rank_script.py MODEL OUT [STORE]``; run as one process it is the trainer of one rank. With STORE only the
last case is done, and its checkpoint lies there.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from astraflow.config import Trainer
from astraflow.models import load_causal_lm
from astraflow.trainer.checkpoints import Checkpoints, Mark
from astraflow.trainer.learner import Learner, new_optimizer
from astraflow.trainer.losses import load_loss
from astraflow.trainer.parallel import compute_layers_twice, spread
from astraflow.trainer.step import train_batch
from astraflow.trainer.team import ALONE, join_team
from astraflow.trainer.wire import decode_batch, encode_batch
from storage import open_store
from storage.keys import RunKeys
from tests.trainer.samples import loaded

CASES = {
    "token": {"aggregate": "token"},
    "sequence": {"aggregate": "sequence", "packing": "packed"},
    "constant": {"aggregate": "constant", "gradient_checkpointing": True},
    "m2po": {"loss": {"name": "m2po", "options": {"threshold": 0.02}}},
    "icepop": {"loss": {"name": "icepop", "options": {"low": 0.7, "high": 1.4}}, "minibatches": 2},
}


def learner(folder, settings, team):
    model = load_causal_lm(folder, torch.float32)
    if team.rank:  # rank 0's values are to count
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
    if settings.gradient_checkpointing:
        compute_layers_twice(model)
    if team.size > 1:
        spread(model, settings, team)
    return Learner(model, new_optimizer(model, settings), load_loss(settings.loss), settings, 0, 8, team=team)


def whole(tensor):
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().clone()


def main():
    torch.set_num_threads(1)
    folder, out, *given = sys.argv[1:]
    store = open_store(given[0] if given else Path(out).parent.as_uri())
    team = join_team() if "RANK" in os.environ else ALONE
    batch = decode_batch(team.share(encode_batch(loaded(np.random.default_rng(1), parts=5))))
    found, figures = {}, {}
    for name, case in list(CASES.items())[-1:] if given else CASES.items():
        pupil = learner(folder, Trainer(lr=1e-3, grad_clip=0.05, micro_batch_tokens=60, **case), team)
        result = train_batch(pupil, batch)
        figures |= {f"figure.{name}.{key}": torch.tensor(value) for key, value in result.metrics.items()}
        figures[f"figure.{name}.local"] = torch.tensor(result.mismatch_by_pool["local"])
        for key, parameter in pupil.model.named_parameters():
            found[f"{name}.{key}"] = whole(parameter)
            found[f"{name}.{key}.moment"] = whole(pupil.optimizer.state[parameter]["exp_avg"])
    checkpoints = Checkpoints(store, RunKeys("ranks"), "solver", keep=2, team=team)
    mark = Mark(incarnation=team.size, step=pupil.step, cursor=0)
    checkpoints.save(mark, pupil)
    checkpoints.settle(wait=True, must=True) if team.rank == 0 else checkpoints.wait()
    if team.rank == 0:
        save_file(found | figures, out)


if __name__ == "__main__":
    main()
