"""How a trainer's life begins: a first one makes the policy, a later one takes it over where it stood.

The manifests are the truth about what a policy's trainers did: each says after which batch its weights were made, and
which parts of the last batches were skipped. So a new life reads no log of an older one. It loads the newest complete
checkpoint, trains the recorded batches again up to the newest manifest's, leaving out the parts that were left out
then, and claims the next incarnation by publishing one more version of the same step. Equal weights give an empty
delta. Only then is it the policy's trainer; whoever was before is fenced.

A trainer that died between its manifest and its outbox record left one ``Consumed`` unsaid: the newest manifest's. The
new life says it in its first record; if it was said already, the manager takes no notice.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch

from astraflow.models import (
    download_model_files,
    empty_causal_lm,
    load_causal_lm,
    load_tokenizer,
    resolve_model,
    upload_model_files,
)
from astraflow.records import AnyFact, Consumed, Published, TrainerJoined
from astraflow.trainer.cast import Bf16Weights
from astraflow.trainer.checkpoints import Checkpoints, Mark
from astraflow.trainer.feed import BatchFeed
from astraflow.trainer.life import Life, finite
from astraflow.trainer.losses import load_loss
from astraflow.trainer.reader import PartReader
from astraflow.trainer.rows import write_step_row
from astraflow.trainer.step import Learner, new_optimizer, train_batch
from astraflow.trainer.versions import VersionSteps
from astraflow.trainer.warmup import warm_up
from astraflow.weights.manifest import Manifest
from astraflow.weights.publisher import Publisher, VersionTaken
from storage.commit_points import commit_point
from storage.errors import DataError

SKIPS_KEPT = 8
"""Batches whose skipped groups a manifest repeats, so that a later life need not read every manifest."""


@dataclass(slots=True)
class Tenure:
    """A policy's trainer in office: what it learns with and what it holds. ``manifest`` is its newest version's."""

    learner: Learner
    weights: Bf16Weights
    publisher: Publisher
    versions: VersionSteps
    reader: PartReader
    feed: BatchFeed
    checkpoints: Checkpoints
    cursor: int  # the decision that held the last batch trained
    incarnation: int = -1
    skipped: dict[str, list[int]] = field(default_factory=dict)  # of the last batches, as manifests have it
    metrics: dict[str, float] = field(default_factory=dict)  # of the last batch trained

    def note_skipped(self, batch: int, groups: list[int]) -> None:
        """Remember what was skipped, for the manifests to come."""
        self.skipped[str(batch)] = sorted(groups)
        for old in [number for number in self.skipped if int(number) <= batch - SKIPS_KEPT]:
            del self.skipped[old]

    def publish(self, life: Life) -> Manifest:
        """Publish the weights as they are, as the next version. Raises ``Fenced``, ``VersionTaken``, ``DataError``."""
        tensors = self.weights.refresh()
        step = self.learner.step
        manifest = life.persist(
            lambda: self.publisher.publish(
                tensors, step=step, incarnation=self.incarnation, batch=step - 1, skipped=dict(self.skipped)
            ),
            "publishing weights",
        )
        self.versions.note(manifest)
        return manifest

    def checkpoint(self, life: Life) -> None:
        """Begin a checkpoint of the step that was published last."""
        learner = self.learner
        mark = Mark(
            incarnation=self.incarnation,
            step=learner.step,
            cursor=self.cursor,
            bad_steps=learner.bad_steps,
        )
        life.persist(lambda: self.checkpoints.save(mark, learner), "writing a checkpoint")


def begin(life: Life) -> Tenure | None:
    """Become the policy's trainer, or None if the run has ended before.

    Returns after the first publish and the record that says so. Raises ``Fenced`` if another trainer does the same.
    """
    publisher = _publisher(life)
    head = life.persist(publisher.head, "reading the newest version")
    checkpoints = Checkpoints(life.store, life.keys, life.policy, keep=life.settings.keep_checkpoints)
    done = head.step if head else -1  # without a manifest no checkpoint counts
    mark = life.persist(lambda: checkpoints.newest(step=done), "finding a checkpoint")
    tenure = _office(life, publisher, checkpoints, mark)
    while True:
        life.persist(tenure.feed.poll, "reading decisions")
        if head is not None:
            if tenure.feed.end_reason == "stopped":
                return None
            catch_up(life, tenure, head)
            tenure.publisher.hold(tenure.weights.refresh(), head)
        tenure.incarnation = head.incarnation + 1 if head else 0
        try:
            manifest = tenure.publish(life)
        except VersionTaken:  # the one before us is still at work: learn what it did meanwhile
            head = life.persist(publisher.head, "reading the newest version")
            continue
        life.outbox.append(_first_facts(life, tenure, manifest, resumed=head is not None))
        commit_point("trainer.after_claim")
        if mark is None or mark.step < tenure.learner.step:
            tenure.checkpoint(life)
        return tenure


def _publisher(life: Life) -> Publisher:
    return Publisher(
        life.store,
        life.keys,
        life.policy,
        anchor_every=life.settings.anchor_every,
        merge_every=life.config.weights.merge_every,
        coding=life.config.weights.coding,
    )


def publish_frozen(life: Life) -> None:
    """Publish version 0 of a policy that is never trained, unless it stands there already."""
    publisher = _publisher(life)
    checkpoints = Checkpoints(life.store, life.keys, life.policy, keep=life.settings.keep_checkpoints)
    if life.persist(publisher.head, "reading the newest version") is None:
        tenure = _office(life, publisher, checkpoints, None)
        tenure.incarnation = 0
        tenure.publish(life)


def _office(life: Life, publisher: Publisher, checkpoints: Checkpoints, mark: Mark | None) -> Tenure:
    """Model, optimizer and all that reads and writes, in the state of ``mark``; without one, in the policy's first."""
    seed = int.from_bytes(hashlib.blake2b(f"{life.config.seed}/{life.policy}".encode(), digest_size=6).digest(), "big")
    torch.manual_seed(seed)
    folder = _model_folder(life, download=mark is not None)
    tokenizer: Any = load_tokenizer(folder)
    model: Any = (load_causal_lm if mark is None else empty_causal_lm)(folder, torch.float32)
    warmup = life.config.policies[life.policy].warmup
    if mark is None and warmup is not None:
        accuracy = warm_up(life, model, tokenizer, warmup)
        life.say("warmed up", warmup_accuracy=accuracy)
    learner = Learner(
        model=model,
        optimizer=new_optimizer(model, life.settings),
        loss=load_loss(life.settings.loss, key=f"policies.{life.policy}.trainer.loss"),
        config=life.settings,
        pad_id=tokenizer.pad_token_id or 0,
        constant_tokens=life.config.policies[life.policy].sampling.max_tokens,
    )
    if mark is not None:
        life.say("loading a checkpoint", step=float(mark.step))
        checkpoints.load(mark, learner)
    versions = VersionSteps(life.store, life.keys, life.policy)
    reader = PartReader(
        life.store,
        versions,
        vocabulary=model.get_input_embeddings().num_embeddings,
        context=model.config.get_text_config().max_position_embeddings,
    )
    cursor = mark.cursor if mark else 0
    feed = BatchFeed(life.store, life.keys, life.policy, life.outbox.participant, cursor=cursor, first=learner.step)
    return Tenure(learner, Bf16Weights(model), publisher, versions, reader, feed, checkpoints, cursor)


def _model_folder(life: Life, *, download: bool) -> Path:
    """The model's folder: from the store when a checkpoint has the weights, else the configured one (then uploaded)."""
    if download:
        folder = life.folder / "model"
        life.persist(lambda: download_model_files(life.store, life.keys, life.policy, folder), "reading model files")
        return folder
    name = life.config.policies[life.policy].model
    folder = resolve_model(name, life.config.seed, life.folder, key=f"policies.{life.policy}.model")
    life.persist(lambda: upload_model_files(life.store, life.keys, life.policy, folder), "writing model files")
    return folder


def catch_up(life: Life, tenure: Tenure, head: Manifest) -> None:
    """Train the recorded batches up to ``head.batch`` again, as they were trained, without publishing."""
    learner = tenure.learner
    recorded = life.persist(
        lambda: recorded_skips(tenure.versions, head, first=learner.step), "reading which parts were skipped"
    )
    while learner.step <= head.batch:
        n = learner.step
        batch = tenure.feed.get(n)
        if batch is None:
            raise DataError(
                f"version {head.version} was trained on batch {head.batch}, but no decision holds batch {n}",
                where=life.keys.manifest(life.policy, head.version),
                remedy="The decisions log of this run is damaged or another run's",
                kind="batch",
            )
        life.say("training recorded batches again", step=float(n), until=float(head.batch))
        loaded = life.persist(partial(tenure.reader.load, batch, recorded.get(n, ())), f"reading batch {n}")
        result = train_batch(learner, loaded)
        tenure.metrics = result.metrics
        tenure.note_skipped(n, list(loaded.skipped))
        tenure.cursor = tenure.feed.done(n)
        write_step_row(life, n, result, loaded.skipped, version=-1, incarnation=head.incarnation)


def recorded_skips(versions: VersionSteps, head: Manifest, *, first: int) -> dict[int, list[int]]:
    """The groups that were skipped in each batch from ``first`` to ``head.batch``, as the manifests say."""
    skips: dict[int, list[int]] = {}
    manifest: Manifest | None = head
    while manifest is not None:
        skips.update({int(batch): groups for batch, groups in manifest.skipped.items() if int(batch) not in skips})
        if manifest.batch - SKIPS_KEPT < first or manifest.version < SKIPS_KEPT:
            break
        # One version a step or more: that many versions back, no batch between is passed over.
        manifest = versions.manifest(manifest.version - SKIPS_KEPT)
    return skips


def _first_facts(life: Life, tenure: Tenure, manifest: Manifest, *, resumed: bool) -> list[AnyFact]:
    """What a new life says first: that it is, its version, and the last batch if its predecessor did not say it."""
    facts: list[AnyFact] = [
        TrainerJoined(policy=life.policy, incarnation=manifest.incarnation),
        published(manifest),
    ]
    if resumed and manifest.batch >= 0:
        skipped = manifest.skipped.get(str(manifest.batch), [])
        facts.append(
            Consumed(
                policy=life.policy,
                batch=manifest.batch,
                step=manifest.step,
                incarnation=manifest.incarnation,
                skipped=skipped,
                reasons=["recorded as skipped"] * len(skipped),
                metrics=finite(tenure.metrics),
            )
        )
    return facts


def published(manifest: Manifest) -> Published:
    """The fact of a manifest."""
    return Published(
        policy=manifest.policy,
        version=manifest.version,
        step=manifest.step,
        incarnation=manifest.incarnation,
        digest=manifest.digest,
        delta_bytes=manifest.size_bytes,
        full_bytes=manifest.full_bytes,
    )
