"""A policy's trainer in office: the model and optimizer as every rank makes them, and what rank 0 holds besides.

``build_learner`` runs on every rank alike; ``Tenure`` is rank 0's, and where it does what concerns the model it tells
the other ranks first (``orders``).
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from astraflow.models import (
    download_model_files,
    empty_causal_lm,
    load_causal_lm,
    load_tokenizer,
    resolve_model,
    upload_model_files,
)
from astraflow.trainer.cast import Bf16Weights
from astraflow.trainer.checkpoints import Checkpoints, Mark
from astraflow.trainer.feed import BatchFeed
from astraflow.trainer.kinds import load_kind
from astraflow.trainer.learner import Learner, StepResult, new_optimizer
from astraflow.trainer.life import Life
from astraflow.trainer.losses import load_loss
from astraflow.trainer.objective import Setting
from astraflow.trainer.orders import Encode, Keep, Save, Train, give
from astraflow.trainer.parallel import compute_layers_twice, spread
from astraflow.trainer.reader import LoadedBatch, PartReader
from astraflow.trainer.sharded import ShardedWeights
from astraflow.trainer.step import train_batch
from astraflow.trainer.versions import VersionSteps
from astraflow.trainer.warmup import warm_up
from astraflow.trainer.wire import encode_batch
from astraflow.weights.manifest import Manifest
from astraflow.weights.publisher import Publisher
from astraflow.weights.subscriber import Subscriber
from storage.errors import ConfigError

SKIPS_KEPT = 8
"""Batches whose skipped groups a manifest repeats, so that a later life need not read every manifest."""


@dataclass(slots=True)
class Tenure:
    """A policy's trainer in office: what it learns with and what it holds."""

    learner: Learner
    weights: Bf16Weights | ShardedWeights
    publisher: Publisher
    versions: VersionSteps
    reader: PartReader
    feed: BatchFeed
    checkpoints: Checkpoints
    cursor: int  # the decision that held the last batch trained
    incarnation: int = -1
    skipped: dict[str, list[int]] = field(default_factory=dict)  # of the last batches, as manifests have it
    metrics: dict[str, float] = field(default_factory=dict)  # of the last batch trained
    lost: int = 0  # batches in a row of which regions' stores left nothing

    def note_skipped(self, batch: int, groups: list[int]) -> None:
        """Remember what was skipped, for the manifests to come."""
        self.skipped[str(batch)] = sorted(groups)
        for old in [number for number in self.skipped if int(number) <= batch - SKIPS_KEPT]:
            del self.skipped[old]

    def train(self, batch: LoadedBatch) -> StepResult:
        """One step on ``batch``, on all ranks."""
        team = self.learner.team
        if team.size > 1:
            give(team, Train())
            team.share(encode_batch(batch))
        return train_step(self.learner, batch)

    def hold(self, head: Manifest) -> bool:
        """Take the weights as they are for those of ``head``, so that the next version is a delta; False if not."""
        if isinstance(self.weights, ShardedWeights):
            return False  # its ranks publish a snapshot first
        return self.publisher.hold(self.weights.refresh(), head)

    def version(self) -> NewVersion:
        """The weights as they are, to be published: a copy, which holds until the next one is made."""
        tensors = {} if isinstance(self.weights, ShardedWeights) else self.weights.refresh()
        return NewVersion(self, tensors, self.learner.step, dict(self.skipped))

    def publish(self, life: Life) -> Manifest:
        """Publish the weights as they are, as the next version. Raises ``Fenced``, ``VersionTaken``, ``DataError``."""
        return self.version().publish(life)

    def checkpoint(self, life: Life) -> None:
        """Begin a checkpoint of the step that was published last."""
        learner = self.learner
        paused = self.feed.paused_at(self.cursor)
        mark = Mark(
            incarnation=self.incarnation,
            step=learner.step,
            cursor=self.cursor,
            bad_steps=learner.bad_steps,
            paused=paused or msgspec.UNSET,
        )
        life.persist(lambda: self.checkpoints.settle(wait=True), "finishing a checkpoint")
        give(learner.team, Save(mark))
        life.persist(lambda: self.checkpoints.save(mark, learner), "writing a checkpoint")


@dataclass(frozen=True, slots=True)
class NewVersion:
    """What a step made, as it is to be published; the learner may be trained further meanwhile if it is alone."""

    tenure: Tenure
    tensors: Mapping[str, Tensor]  # of a trainer of one rank
    step: int
    skipped: dict[str, list[int]]

    def publish(self, life: Life) -> Manifest:
        """Make the version. Raises ``Fenced``, ``VersionTaken``, ``DataError``."""
        tenure = self.tenure
        if isinstance(tenure.weights, ShardedWeights):
            manifest = self._publish_parts(life, tenure.weights)
        else:
            manifest = life.persist(
                lambda: tenure.publisher.publish(
                    self.tensors,
                    step=self.step,
                    incarnation=tenure.incarnation,
                    batch=self.step - 1,
                    skipped=self.skipped,
                ),
                "publishing weights",
            )
        tenure.versions.note(manifest)
        return manifest

    def _publish_parts(self, life: Life, weights: ShardedWeights) -> Manifest:
        """Every rank writes its part; the manifest is rank 0's."""
        publisher, team, step = self.tenure.publisher, self.tenure.learner.team, self.step
        plan = life.persist(
            lambda: publisher.plan_parts(
                weights.layout, held=weights.held, step=step, incarnation=self.tenure.incarnation, batch=step - 1
            ),
            "reading the newest version",
        )
        give(team, Encode(plan))
        parts = weights.encode(plan, lambda call: life.persist(call, "publishing weights"))
        manifest = life.persist(
            lambda: publisher.publish_parts(weights.layout, plan, parts, skipped=self.skipped), "publishing weights"
        )
        give(team, Keep(manifest.digest))
        weights.keep(manifest.digest)
        return manifest


def train_step(learner: Learner, batch: LoadedBatch) -> StepResult:
    """One step as the learner's kind does it."""
    return (learner.train or train_batch)(learner, batch)


def build_learner(life: Life, checkpoints: Checkpoints, mark: Mark | None) -> Learner:
    """Model and optimizer in the state of ``mark``; without one, in the policy's first. Every rank at once."""
    settings, where = life.settings, f"policies.{life.policy}.trainer"
    torch.manual_seed(_seed(life))
    folder = model_folder(life, download=mark is not None or life.team.rank > 0)
    tokenizer: Any = load_tokenizer(folder)
    is_first = mark is None and life.team.rank == 0  # others are given its values
    model: Any = (load_causal_lm if is_first else empty_causal_lm)(folder, torch.float32)
    warmup = life.config.policies[life.policy].warmup
    if is_first and warmup is not None:
        accuracy = warm_up(life, model, tokenizer, warmup)
        life.say("warmed up", warmup_accuracy=accuracy)
    _ready(model, life, where)
    objective, train = load_kind(settings, key=where)
    learner = Learner(
        model=model,
        optimizer=new_optimizer(model, settings),
        loss=load_loss(settings.loss, key=f"{where}.loss"),
        config=settings,
        pad_id=tokenizer.pad_token_id or 0,
        constant_tokens=life.config.policies[life.policy].sampling.max_tokens,
        objective=objective,
        team=life.team,
        train=train,
    )
    if mark is not None:
        life.say("loading a checkpoint", step=float(mark.step))
        life.persist(lambda: checkpoints.load(mark, learner), "reading a checkpoint")
    if objective is not None:
        objective.start(_setting(life, learner, folder))
    return learner


def _ready(model: Any, life: Life, where: str) -> None:
    """Device, adapters, layers that are computed twice, ranks: what the config asks of the model, in place."""
    settings = life.settings
    if torch.cuda.is_available():
        model.to("cuda")
    if settings.lora is not None:
        torch.manual_seed(_seed(life) + 1)
        _lora().add_adapters(model, settings.lora, where=f"{where}.lora")
    if settings.gradient_checkpointing:
        compute_layers_twice(model)
    if life.team.size > 1:
        spread(model, settings, life.team)


def _seed(life: Life) -> int:
    text = f"{life.config.seed}/{life.policy}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=6).digest(), "big")


def _setting(life: Life, learner: Learner, folder: Path) -> Setting:
    low = life.settings.compute == "bfloat16"

    def first_model() -> Any:
        subscriber = Subscriber(life.store, life.keys, life.policy)
        update = life.persist(lambda: subscriber.fetch(0), "reading version 0")
        model: Any = empty_causal_lm(folder, torch.bfloat16 if low else torch.float32)
        model.load_state_dict(dict(update.tensors), strict=False)  # integer buffers are not published
        return model.to(learner.device).requires_grad_(False)

    return Setting(life.config, life.policy, learner.device, life.folder, first_model)


def model_folder(life: Life, *, download: bool) -> Path:
    """The model's folder: from the store when a checkpoint has the weights, else the configured one (then uploaded)."""
    if download:
        folder = life.folder / "model"
        life.persist(lambda: download_model_files(life.store, life.keys, life.policy, folder), "reading model files")
        return folder
    name = life.config.policies[life.policy].model
    folder = resolve_model(name, life.config.seed, life.folder, key=f"policies.{life.policy}.model")
    life.persist(lambda: upload_model_files(life.store, life.keys, life.policy, folder), "writing model files")
    return folder


def weights_of(life: Life, learner: Learner) -> Bf16Weights | ShardedWeights:
    """The bf16 copy that is published: of the whole model, of it with adapters merged in, or of this rank's rows."""
    if life.team.size > 1:
        coding = life.config.weights.coding
        return ShardedWeights(learner.model, life.store, life.keys, life.policy, life.team, coding=coding)
    if life.settings.lora is not None:
        merged: Bf16Weights = _lora().MergedWeights(learner.model)
        return merged
    return Bf16Weights(learner.model)


def _lora() -> Any:
    """The module of adapters, which needs peft. Raises ``ConfigError`` without it."""
    try:
        return importlib.import_module("astraflow.trainer.lora")
    except ImportError as error:
        raise ConfigError(
            f"adapters need peft: {error}",
            where="trainer.lora",
            remedy="pip install 'astraflow-prefect[lora]'",
            kind="extra",
        ) from error
