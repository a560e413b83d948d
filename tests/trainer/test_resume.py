"""A trainer killed at any instruction and started again ends with what an unkilled one ends with, bit for bit."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys

import pytest
import torch

import storage.commit_points as commit_points
from astraflow.models import load_causal_lm
from astraflow.recipe import dump_toml
from astraflow.records import Consumed, Ended, Left, Published
from astraflow.trainer.checkpoints import Checkpoints, learner_tensors
from astraflow.trainer.loop import run_trainer
from astraflow.trainer.losses import Grpo
from astraflow.trainer.step import Learner, new_optimizer, train_batch
from astraflow.trainer.versions import VersionSteps
from storage.memory import FaultPlan, MemoryStore

STEPS = 6
POINTS = [name for name in commit_points.COMMIT_POINTS if name.startswith("trainer.")]


class Killed(BaseException):
    """Stands for the process's end."""


def recorded(make_run, name, url=None, **trainer):
    """A run with all its batches recorded: the same rows whatever its name."""
    run = make_run(name=name, url=url, steps=STEPS, **trainer)
    for n in range(0, STEPS, 2):
        run.decide(run.batched(n), run.batched(n + 1))
    return run


def live(run, life):
    run_trainer(run.store, run.config, "solver", participant=f"trainer-solver-{life:02}")


def killed_at(run, life, point, count):
    """One life that ends at the ``count``-th pass of ``point``; False if it ended by itself before."""
    passed = 0

    def hook(name):
        nonlocal passed
        passed += name == point
        if name == point and passed == count:
            raise Killed

    commit_points.hook = hook
    try:
        live(run, life)
    except Killed:
        return True
    finally:
        commit_points.hook = None
    return False


def final_state(run):
    """Parameters, optimizer and generator of the last checkpoint, and its counters."""
    model = load_causal_lm(run.config.policies["solver"].model, torch.float32)
    config = run.config.trainer_of("solver")
    pupil = Learner(model, new_optimizer(model, config), Grpo(), config, 0, 8)
    checkpoints = Checkpoints(run.store, run.keys, "solver", keep=2)
    mark = checkpoints.newest(step=10**9)
    checkpoints.load(mark, pupil)
    tensors = {name: tensor.clone() for name, tensor in learner_tensors(pupil).items()}
    return tensors, pupil.step


def manifests(run):
    steps = VersionSteps(run.store, run.keys, "solver")
    found, version = [], 0
    while (manifest := steps.manifest(version)) is not None:
        found.append(manifest)
        version += 1
    return found


def check_equal(run, straight):
    """The run, killed and resumed, against the straight one."""
    tensors, step = final_state(run)
    wanted, wanted_step = final_state(straight)
    assert step == wanted_step == STEPS
    assert tensors.keys() == wanted.keys()
    assert all(torch.equal(tensors[name], wanted[name]) for name in wanted)
    chain = manifests(run)
    assert [m.version for m in chain] == list(range(len(chain)))
    for key in ("incarnation", "step", "batch"):
        values = [getattr(m, key) for m in chain]
        assert values == sorted(values)
    digests = {m.step: m.digest for m in manifests(straight)}
    assert all(m.digest == digests[m.step] for m in chain)
    facts = run.facts()
    newest = -1
    for fact in facts:
        if isinstance(fact, Consumed):
            assert fact.batch in (newest, newest + 1), "Consumed with a gap"
            newest = max(newest, fact.batch)
    assert newest == STEPS - 1
    told = [fact for fact in facts if isinstance(fact, Published)]
    assert all(chain[fact.version].digest == fact.digest for fact in told)
    assert facts[-2:] == [Ended(policy="solver", reason="done"), Left(reason="done")]


@pytest.fixture
def straight(make_run):
    run = recorded(make_run, "straight")
    live(run, 0)
    return run


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_every_commit_point(make_run, straight, point):
    counts = 0
    for count in (1, 2, 4):
        run = recorded(make_run, f"killed-{count}")
        if killed_at(run, 0, point, count):
            counts += 1
            live(run, 1)
            check_equal(run, straight)
    assert counts >= 1


@pytest.mark.parametrize("seed", range(3))
def test_killed_again_and_again(make_run, straight, seed):
    random_ = random.Random(seed)
    run = recorded(make_run, "again")
    life = 0
    while killed_at(run, life, random_.choice(POINTS), random_.choice([1, 1, 2])) and life < 20:
        life += 1
    if life == 20:
        live(run, 21)
    check_equal(run, straight)
    assert life > 0


def slower(learner, batch):
    """A kind of its own: a step of half the learning rate."""
    learner.config = learner.config.model_copy(update={"lr": 5e-4})
    return train_batch(learner, batch)


@pytest.mark.parametrize("kind", ["sft", "tests.trainer.test_resume:slower"])
def test_a_later_life_trains_as_the_first_whatever_the_kind(make_run, kind):
    straight = recorded(make_run, "straight-kind", kind=kind, checkpoint_every=50)
    live(straight, 0)
    run = recorded(make_run, "killed-kind", kind=kind, checkpoint_every=50)
    assert killed_at(run, 0, "trainer.after_consumed", 4)
    live(run, 1)
    check_equal(run, straight)


def test_a_claim_of_equal_weights_is_an_empty_delta(make_run, straight):
    run = recorded(make_run, "claimed")
    assert killed_at(run, 0, "trainer.after_consumed", 3)
    live(run, 1)
    claim = next(m for m in manifests(run) if m.incarnation == 1)
    assert claim.step == 3 and claim.kind == "delta" and claim.size_bytes == 0
    check_equal(run, straight)


def test_recorded_skips_are_skipped_again_though_the_object_is_whole_now(make_run):
    runs = []
    for name in ("unkilled", "resumed"):
        run = make_run(name=name, steps=STEPS, checkpoint_every=50)
        decisions = [run.batched(n) for n in range(STEPS)]
        path = decisions[1].paths[1]
        whole = run.store.get(path)
        run.store.put(path, whole[:-1])
        run.decide(*decisions)
        runs.append(run)
    live(runs[0], 0)
    # Its first checkpoint is of step 0: the second life trains batches 0 to 2 again.
    assert killed_at(runs[1], 0, "trainer.after_manifest", 4)
    runs[1].store.put(path, whole)
    live(runs[1], 1)
    check_equal(runs[1], runs[0])
    assert {m.batch: m.skipped.get("1") for m in manifests(runs[1])}[STEPS - 1] == [4]


def test_skips_far_back_are_found_in_older_manifests(make_run):
    steps = 20
    runs = []
    for name in ("unkilled", "resumed"):
        run = make_run(name=name, steps=steps, checkpoint_every=50)
        decisions = [run.batched(n, parts=2, members=2) for n in range(steps)]
        kept = {}
        for n in (0, 3, 11):
            kept[decisions[n].paths[0]] = run.store.get(decisions[n].paths[0])
            run.store.put(decisions[n].paths[0], b"")
        run.decide(*decisions)
        runs.append(run)
    live(runs[0], 0)
    assert killed_at(runs[1], 0, "trainer.before_step", steps)
    for path, whole in kept.items():
        runs[1].store.put(path, whole)
    live(runs[1], 1)
    first, second = manifests(runs[0])[-1], manifests(runs[1])[-1]
    assert first.digest == second.digest and first.step == second.step == steps


@pytest.mark.kill
@pytest.mark.parametrize("at", ["trainer.after_manifest:3", "trainer.before_checkpoint_marker:2"])
def test_a_real_kill(make_run, straight, at, tmp_path):
    run = recorded(make_run, "real")
    config = tmp_path / "config.toml"
    config.write_text(dump_toml(run.config))
    code = (
        "import sys, tomllib; from pathlib import Path; from astraflow.config import RunConfig;"
        "from astraflow.trainer.loop import run_trainer; from storage import open_store;"
        "config = RunConfig.model_validate(tomllib.loads(Path(sys.argv[1]).read_text()));"
        "run_trainer(open_store(config.store), config, 'solver', participant='trainer-solver-' + sys.argv[2])"
    )
    command = [sys.executable, "-W", "ignore", "-c", code, str(config)]
    first = subprocess.run([*command, "00"], env={**os.environ, "ASTRAFLOW_KILL_AT": at}, check=False)
    assert first.returncode == -signal.SIGKILL
    assert subprocess.run([*command, "01"], check=False).returncode == 0
    check_equal(run, straight)


def over(run, store):
    """The same run through another way to its store."""
    return type(run)(store, run.config, run.keys)


def test_a_store_that_errs_costs_no_step(make_run, straight):
    run = recorded(make_run, "faulty", url=f"memory://faulty-{os.getpid()}")
    plan = FaultPlan(seed=5, error_before=0.04, lost_answer=0.04, duplicate=0.04)
    assert isinstance(run.store, MemoryStore)
    life = 0
    faulty = over(run, run.store.client(plan))
    assert killed_at(faulty, life, "trainer.after_manifest", 3)
    live(faulty, life + 1)
    check_equal(run, straight)


@pytest.mark.s3
def test_killed_and_resumed_over_s3(make_run, straight, s3_store_url):
    run = recorded(make_run, "far", url=s3_store_url)
    assert killed_at(run, 0, "trainer.after_consumed", 3)
    live(run, 1)
    check_equal(run, straight)
