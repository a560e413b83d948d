"""The other ranks of a trainer: they do what rank 0 says, and speak to the store only for their own part of weights.

A rank that fails ends its process; torchrun ends the others, and the next life of the trainer goes on from the store.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch

from astraflow.config import RunConfig
from astraflow.participant import Beat, Outbox
from astraflow.records import Status
from astraflow.trainer.checkpoints import Checkpoints
from astraflow.trainer.learner import Learner
from astraflow.trainer.life import Life
from astraflow.trainer.office import build_learner, train_step, weights_of
from astraflow.trainer.orders import Build, Encode, End, Keep, Save, Train, hear
from astraflow.trainer.sharded import ShardedWeights
from astraflow.trainer.team import Team
from astraflow.trainer.wire import decode_batch
from storage.keys import RunKeys
from storage.store import ObjectStore


def follow(store: ObjectStore, config: RunConfig, policy: str, *, participant: str, team: Team) -> None:
    """Carry out rank 0's orders until it says that it is the end."""
    settings, keys = config.trainer_of(policy), RunKeys(config.name)
    torch.set_num_threads(settings.threads)
    checkpoints = Checkpoints(store, keys, policy, keep=settings.keep_checkpoints, team=team)
    # Only rank 0 beats and speaks: these two are never used to write.
    beat = Beat(store, keys, Status(participant=participant, role="trainer", state="", name=policy), every_s=60)
    with tempfile.TemporaryDirectory(prefix="astraflow-") as folder:
        outbox = Outbox(store, keys, participant)
        life = Life(store, keys, config, policy, settings, outbox, beat, Path(folder), team)
        _obey(life, checkpoints)


def _obey(life: Life, checkpoints: Checkpoints) -> None:
    learner: Learner | None = None
    weights: ShardedWeights | None = None
    while True:
        match hear(life.team):
            case Build(mark=mark):
                learner = build_learner(life, checkpoints, mark)
                made = weights_of(life, learner)
                weights = made if isinstance(made, ShardedWeights) else None
            case Train() if learner is not None:
                train_step(learner, decode_batch(life.team.share()))
            case Encode(plan=plan) if weights is not None:
                weights.encode(plan, lambda call: life.persist(call, "publishing weights"))
            case Keep(digest=digest) if weights is not None:
                weights.keep(digest)
            case Save(mark=mark) if learner is not None:
                checkpoints.wait()
                checkpoints.save(mark, learner)
            case End():
                checkpoints.wait()
                return
            case order:
                raise RuntimeError(f"the order {order} before the model is there")
