"""How a trainer's life begins: a first one makes the policy, a later one takes it over where it stood.

The manifests are the truth about what a policy's trainers did: each says after which batch its weights were made, and
which parts of the last batches were skipped. So a new life reads no log of an older one. It loads the newest complete
checkpoint, trains the recorded batches again up to the newest manifest's, leaving out the parts that were left out
then, and claims the next incarnation by publishing one more version of the same step. Equal weights give an empty
delta. Only then is it the policy's trainer; whoever was before is fenced.

A trainer that died between its manifest and its outbox record left one ``Consumed`` unsaid: the newest manifest's. The
new life says it in its first record; if it was said already, the manager takes no notice. A manager that was away may
read the new life's outbox before the older one's, and one ``Consumed`` stands for all batches before it, so the new
life also repeats which parts of the last batches were skipped.
"""

from __future__ import annotations

from functools import partial

from astraflow.models import context_of
from astraflow.records import AnyFact, Consumed, Published, TrainerJoined
from astraflow.trainer.checkpoints import Checkpoints, Mark
from astraflow.trainer.feed import BatchFeed
from astraflow.trainer.life import Life, finite, log
from astraflow.trainer.loader import read_again
from astraflow.trainer.office import SKIPS_KEPT, Tenure, build_learner, model_folder, weights_of
from astraflow.trainer.orders import Build, give
from astraflow.trainer.reader import PartReader
from astraflow.trainer.rows import write_step_row
from astraflow.trainer.versions import VersionSteps
from astraflow.weights.manifest import Manifest
from astraflow.weights.publisher import Publisher, VersionTaken
from astraflow.weights.region import region_store
from storage.commit_points import commit_point
from storage.errors import DataError, StoreError, in_section


def begin(life: Life) -> Tenure | None:
    """Become the policy's trainer, or None if the run has ended before.

    Returns after the first publish and the record that says so. Raises ``Fenced`` if another trainer does the same,
    and in a policy's first life ``StoreError`` if a region's store refuses to be read.
    """
    publisher = _publisher(life)
    head = life.persist(publisher.head, "reading the newest version")
    if head is None:
        _check_regions(life)
    checkpoints = _checkpoints(life)
    done = head.step if head else -1  # without a manifest no checkpoint counts
    mark = life.persist(lambda: checkpoints.newest(step=done), "finding a checkpoint")
    feed = _feed(life, mark)
    life.persist(feed.poll, "reading decisions")
    if feed.end_reason == "stopped":
        return None  # before anything is loaded or made
    tenure = _office(life, publisher, checkpoints, mark, feed)
    while True:
        life.persist(tenure.feed.poll, "reading decisions")
        if tenure.feed.end_reason == "stopped":
            return None
        if head is not None:
            catch_up(life, tenure, head)
            if not tenure.hold(head) and life.team.size == 1:
                log.warning(
                    "%s: the weights differ from version %s: a full snapshot follows", life.policy, head.version
                )
        tenure.incarnation = head.incarnation + 1 if head else 0
        try:
            manifest = tenure.publish(life)
        except VersionTaken:  # the one before us is still at work: learn what it did meanwhile
            head = life.persist(publisher.head, "reading the newest version")
            continue
        facts = _first_facts(life, tenure, manifest, resumed=head is not None)
        life.persist(partial(life.outbox.append, facts), "saying that the trainer has joined")
        commit_point("trainer.after_claim")
        if mark is None or mark.step < tenure.learner.step:
            tenure.checkpoint(life)
        return tenure


def _check_regions(life: Life) -> None:
    """A store that refuses would cost all that its region plays. One that is away may come back; a run goes on then."""
    for region in sorted(life.config.regions):
        with in_section(f"regions.{region}.store"):
            try:
                near = region_store(life.store, life.config, region)
                if near is not None:
                    next(iter(near.list(life.keys.trajectories, limit=1)), None)
            except StoreError as error:
                if error.kind != "unreachable":
                    raise
                log.warning("%s: the store of the region %s is away: %s", life.policy, region, error)


def _publisher(life: Life) -> Publisher:
    return Publisher(
        life.store,
        life.keys,
        life.policy,
        anchor_every=life.settings.anchor_every,
        merge_every=life.config.weights.merge_every,
        coding=life.config.weights.coding,
    )


def _checkpoints(life: Life) -> Checkpoints:
    return Checkpoints(life.store, life.keys, life.policy, keep=life.settings.keep_checkpoints, team=life.team)


def _feed(life: Life, mark: Mark | None) -> BatchFeed:
    """The decisions from where the checkpoint stands, with what was in force there."""
    return BatchFeed(
        life.store,
        life.keys,
        life.policy,
        life.outbox.participant,
        cursor=mark.cursor if mark else 0,
        first=mark.step if mark else 0,
        paused=(mark.paused or ()) if mark else (),
    )


def publish_frozen(life: Life) -> None:
    """Publish version 0 of a policy that is never trained, unless it stands there already."""
    publisher = _publisher(life)
    if life.persist(publisher.head, "reading the newest version") is None:
        tenure = _office(life, publisher, _checkpoints(life), None, _feed(life, None))
        tenure.incarnation = 0
        tenure.publish(life)


def _office(life: Life, publisher: Publisher, checkpoints: Checkpoints, mark: Mark | None, feed: BatchFeed) -> Tenure:
    """Model, optimizer and all that reads and writes, in the state of ``mark``; without one, in the policy's first."""
    if life.team.size > 1 and mark is None:
        model_folder(life, download=False)  # the other ranks read its files in the store
    give(life.team, Build(mark))
    learner = build_learner(life, checkpoints, mark)
    versions = VersionSteps(life.store, life.keys, life.policy)
    reader = PartReader(
        life.store,
        versions,
        vocabulary=learner.model.get_input_embeddings().num_embeddings,
        context=context_of(learner.model.config),
    )
    weights = weights_of(life, learner)
    return Tenure(learner, weights, publisher, versions, reader, feed, checkpoints, mark.cursor if mark else 0)


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
        loaded = read_again(life, partial(tenure.reader.load, batch, recorded.get(n, ())), n)
        result = tenure.train(loaded)
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
        batches = sorted(int(batch) for batch, groups in manifest.skipped.items() if groups)
        repeated = [batch for batch in batches if batch < manifest.batch]
        facts += [_consumed(manifest, batch, {}) for batch in repeated]
        facts.append(_consumed(manifest, manifest.batch, finite(tenure.metrics)))
    return facts


def _consumed(manifest: Manifest, batch: int, metrics: dict[str, float]) -> Consumed:
    """What is said of a batch that an earlier life trained: batch n is trained at step n."""
    skipped = manifest.skipped.get(str(batch), [])
    return Consumed(
        policy=manifest.policy,
        batch=batch,
        step=batch + 1,
        incarnation=manifest.incarnation,
        skipped=skipped,
        reasons=["recorded as skipped"] * len(skipped),
        metrics=metrics,
    )


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
