"""The trainer's loop: join, train batch after batch, publish each step, end.

It reads top to bottom. Order within a step is what makes it safe to kill at any instruction: the manifest (weights
that others may use, and the fence), then the outbox record (that the batch is consumed), then what is only for the eye
or for a quicker start (row, checkpoint). What was not published did not happen; what was published and not said is
said by the next life (``start``). All this is done while the next batch is trained (``publishing``), from a copy.
"""

from __future__ import annotations

import tempfile
import time
from functools import partial
from pathlib import Path

import torch

from astraflow.config import RunConfig
from astraflow.pace import Pace, wait_until
from astraflow.participant import Beat, Outbox, beat_every_s, new_participant
from astraflow.records import AnyFact, Batched, Consumed, Ended, Left, Status
from astraflow.trainer.kinds import load_kind
from astraflow.trainer.learner import StepResult
from astraflow.trainer.life import Life, finite, log
from astraflow.trainer.loader import Loader, kept_back, read_batch
from astraflow.trainer.office import NewVersion, Tenure
from astraflow.trainer.orders import End, give
from astraflow.trainer.publishing import Publishing
from astraflow.trainer.reader import LoadedBatch
from astraflow.trainer.rows import memory_mb, write_step_row
from astraflow.trainer.start import begin, publish_frozen, published
from astraflow.trainer.team import ALONE, Team
from astraflow.trainer.trackers import Trackers
from astraflow.weights.manifest import Manifest
from storage.commit_points import commit_point
from storage.errors import AstraFlowError, DataError, DeadlineError, Fenced, StoreError
from storage.keys import RunKeys
from storage.store import ObjectStore

MAX_BAD_STEPS = 10
"""Steps in a row whose loss or gradient was not finite, after which a trainer gives up."""
MAX_LOST_BATCHES = 3
"""Batches in a row of which regions' stores left nothing; at one more a trainer gives up."""


def run_trainer(
    store: ObjectStore, config: RunConfig, policy: str, *, participant: str | None = None, team: Team = ALONE
) -> None:
    """Train ``policy`` until its steps are done or the run says to end; one life of its trainer.

    With a ``team`` of several ranks this is rank 0; the others call ``follower.follow``.
    Raises ``Fenced`` if another trainer of the policy takes over, ``DeadlineError`` if no batch came for
    ``batch_timeout_s``, ``DataError`` if the policy cannot be trained on, ``StoreError`` if the store is gone for good.
    """
    participant = participant or new_participant("trainer", policy)
    settings, keys = config.trainer_of(policy), RunKeys(config.name)
    torch.set_num_threads(settings.threads)
    status = Status(participant=participant, role="trainer", state="starting", name=policy)
    every_s = beat_every_s(store.url, config.dataflow.silence_s)
    with tempfile.TemporaryDirectory(prefix="astraflow-") as folder, Beat(store, keys, status, every_s=every_s) as beat:
        outbox = Outbox(store, keys, participant)
        life = Life(store, keys, config, policy, settings, outbox, beat, Path(folder), team)
        try:
            _live(life)
        except BaseException as error:  # whatever ends a life is said: a signal or want of memory too
            life.say("fenced" if isinstance(error, Fenced) else "failed")
            if isinstance(error, AstraFlowError):
                log.error("%s: %s", policy, error)
            raise


def _live(life: Life) -> None:
    load_kind(life.settings, key=f"policies.{life.policy}.trainer")  # wrong input is said before anything is loaded
    if life.config.policies[life.policy].frozen:
        publish_frozen(life)  # its pools say what they apply; a frozen policy has no trainer that could say more
        return
    tenure = begin(life)
    if tenure is None:
        life.persist(lambda: life.outbox.append([Left(reason="the run has ended")]), "leaving")
        life.say("left")
        give(life.team, End())
        return
    learner = tenure.learner
    trackers = Trackers(life.settings.trackers, life.config.name, life.policy)
    reason = "done"
    flow, pace = life.config.dataflow, Pace(life.store.url)
    loader = Loader(tenure.reader, tenure.feed, pace, most=min(flow.prefetch, flow.max_staleness))
    with loader, Publishing(in_place=life.team.size > 1) as publishing:
        while learner.step < life.settings.steps:
            n, asked_s = learner.step, time.monotonic()
            life.say("waiting", step=float(n))
            batch = _wait_for_batch(life, tenure, n, publishing)
            if batch is None:
                reason = tenure.feed.end_reason or "drained"
                break
            loaded = read_batch(life, tenure.reader, partial(loader.load, batch), n)
            _give_up_if_lost(tenure, loaded)
            with loader.ahead():
                version, result = _train(life, tenure, loaded, publishing, asked_s)
                publishing.begin(partial(_tell, life, version, result, loaded, trackers))
                _give_up_if_hopeless(tenure)
                _maybe_checkpoint(life, tenure, publishing)
        publishing.settle()
    _end(life, tenure, reason)


def _train(
    life: Life, tenure: Tenure, loaded: LoadedBatch, publishing: Publishing, asked_s: float
) -> tuple[NewVersion, StepResult]:
    """One step, and the version that it made; the version before is out by then."""
    began_s = time.monotonic()
    life.say("training", step=float(loaded.n))
    commit_point("trainer.before_step")
    result = tenure.train(loaded)
    commit_point("trainer.after_step")
    trained_s = time.monotonic()
    tenure.note_skipped(loaded.n, list(loaded.skipped))
    tenure.cursor = tenure.feed.done(loaded.n)
    busy_s = publishing.busy_s(asked_s, began_s)
    publishing.settle()  # its copy of the weights is used again
    version = tenure.version()
    result.metrics |= _times(asked_s, began_s, trained_s, busy_s)
    return version, result


def _tell(life: Life, version: NewVersion, result: StepResult, loaded: LoadedBatch, trackers: Trackers) -> None:
    """Publish what the step made, say that its batch is consumed, then what is only for the eye."""
    began_s = time.monotonic()
    manifest = version.publish(life)
    result.metrics |= _costs(result.metrics, manifest, time.monotonic() - began_s, in_place=life.team.size > 1)
    facts: list[AnyFact] = [published(manifest), _consumed(life, manifest, loaded, result.metrics)]
    life.persist(partial(life.outbox.append, facts), "saying that the batch is consumed")
    commit_point("trainer.after_consumed")
    write_step_row(life, loaded.n, result, loaded.skipped, version=manifest.version, incarnation=manifest.incarnation)
    life.show(**result.metrics)
    trackers.log(manifest.step, result.metrics)


def _wait_for_batch(life: Life, tenure: Tenure, n: int, publishing: Publishing) -> Batched | None:
    """Batch ``n``, or None if the run says to end. Raises ``DeadlineError`` after ``batch_timeout_s``.

    No deadline runs while the version before is written or the policy is paused: it begins anew when that ends.
    """
    paused_s = -1.0  # when it was seen to be paused last

    def arrived() -> bool:
        nonlocal paused_s
        publishing.check()
        try:
            tenure.feed.poll()
            if tenure.feed.is_paused:
                paused_s = time.monotonic()
            tenure.checkpoints.settle(wait=False)
        except StoreError as error:
            if error.kind != "unreachable":
                raise
            life.wait_for(f"the store is unreachable; batch {n} is due")
            return False
        return tenure.feed.end_reason is not None or tenure.feed.get(n) is not None

    timeout_s, pace = life.settings.batch_timeout_s, Pace(life.store.url)
    while publishing.is_busy and not arrived():
        time.sleep(pace.next_s())
    if not arrived():
        life.wait_for(f"batch {n}, for at most {timeout_s:g} s (why there is none: the manager's status)")
        what = f"batch {n} of policy {life.policy} (the manager's status says what it waits for)"
        left_s = timeout_s
        while True:
            try:
                wait_until(arrived, pace=Pace(life.store.url), timeout_s=left_s, what=what)
                break
            except DeadlineError:
                left_s = paused_s + timeout_s - time.monotonic() if paused_s >= 0 else 0.0
                if left_s <= 0:
                    raise
        life.beat.set(waiting="")
    return None if tenure.feed.end_reason else tenure.feed.get(n)


def _times(asked_s: float, began_s: float, trained_s: float, busy_s: float) -> dict[str, float]:
    """Where the time of a step went, all of it: waiting for a batch, training, and what publishing kept it from either.

    While the version before is written, a batch that would be trained on it may not even be possible: of the time from
    asking to training, ``busy_s`` is publishing's.
    """
    return {
        "wait_s": began_s - asked_s - busy_s,
        "step_s": trained_s - began_s,
        "publish_s": busy_s + time.monotonic() - trained_s,
    }


def _costs(metrics: dict[str, float], manifest: Manifest, write_s: float, *, in_place: bool) -> dict[str, float]:
    """What the step cost in bytes and memory; its time too, if nothing was trained while its version was written."""
    publish_s = metrics["publish_s"] + (write_s if in_place else 0.0)
    whole_s = metrics["wait_s"] + metrics["step_s"] + publish_s
    return {
        "publish_s": publish_s,
        "version_write_s": write_s,
        "tokens_per_s": metrics["response_tokens"] / max(1e-9, whole_s),
        "delta_bytes": float(manifest.size_bytes),
        "full_bytes": float(manifest.full_bytes),
        **memory_mb(),
    }


def _consumed(life: Life, manifest: Manifest, loaded: LoadedBatch, metrics: dict[str, float]) -> Consumed:
    groups = sorted(loaded.skipped)
    return Consumed(
        policy=life.policy,
        batch=loaded.n,
        step=manifest.step,
        incarnation=manifest.incarnation,
        skipped=groups,
        reasons=[loaded.skipped[group] for group in groups],
        metrics=finite(metrics),
    )


def _give_up_if_hopeless(tenure: Tenure) -> None:
    if tenure.learner.bad_steps >= MAX_BAD_STEPS:
        raise DataError(
            f"loss or gradients were not finite for {MAX_BAD_STEPS} steps in a row",
            where=f"step {tenure.learner.step}",
            remedy="The weights are those of the last good step: lower the learning rate or look at the data",
            kind="non_finite",
        )


def _give_up_if_lost(tenure: Tenure, loaded: LoadedBatch) -> None:
    """Batches of which nothing can be read are steps in which nothing is learned: some may pass, not the whole run."""
    tenure.lost = tenure.lost + 1 if loaded.is_lost else 0
    if tenure.lost > MAX_LOST_BATCHES:
        raise kept_back(loaded, f"{tenure.lost} batches in a row had nothing that can be read")


def _maybe_checkpoint(life: Life, tenure: Tenure, publishing: Publishing) -> None:
    """Finish a checkpoint that is written by now; begin one when it is due, of a step that is published."""
    life.persist(lambda: tenure.checkpoints.settle(wait=False), "finishing a checkpoint")
    if tenure.learner.step % life.settings.checkpoint_every == 0:
        publishing.settle()
        tenure.checkpoint(life)


def _end(life: Life, tenure: Tenure, reason: str) -> None:
    """The last checkpoint, complete, then the last words: the policy's, or only this participant's if it is moved."""
    life.say("ending")
    life.persist(lambda: tenure.checkpoints.settle(wait=True), "finishing a checkpoint")
    if tenure.checkpoints.written_step != tenure.learner.step:
        tenure.checkpoint(life)
        life.persist(lambda: tenure.checkpoints.settle(wait=True, must=True), "finishing the last checkpoint")
    give(life.team, End())
    words: list[AnyFact] = [] if tenure.feed.is_moved else [Ended(policy=life.policy, reason=reason)]
    words.append(Left(reason=reason))
    life.persist(lambda: life.outbox.append(words), "leaving")
    life.say("left")
