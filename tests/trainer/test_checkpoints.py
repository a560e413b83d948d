"""Checkpoints in folders, in S3, interrupted, failed and pruned."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import astraflow.trainer.checkpoints as module
import storage.commit_points as commit_points
from astraflow.config import Trainer
from astraflow.models import load_causal_lm
from astraflow.trainer.checkpoints import Checkpoints, Mark, learner_tensors
from astraflow.trainer.losses import Grpo
from astraflow.trainer.reader import LoadedBatch, Part, Sequence
from astraflow.trainer.step import Learner, new_optimizer, train_batch
from storage import open_store
from storage.errors import DataError, StoreError
from storage.keys import RunKeys

KEYS = RunKeys("run")


def learner(folder):
    model = load_causal_lm(folder, torch.float32)
    config = Trainer(lr=1e-3)
    return Learner(model, new_optimizer(model, config), Grpo(), config, pad_id=0, constant_tokens=8)


def train(pupil, seed):
    rng = np.random.default_rng(seed)
    rows = [
        Sequence(
            "local",
            rng.integers(3, 128, 3).astype(np.int32),
            rng.integers(3, 128, 4).astype(np.int32),
            np.full(4, -4.8, dtype=np.float32),
            np.ones(4, dtype=np.bool_),
            np.zeros(4, dtype=np.int64),
            float(i % 2),
            1.0,
        )
        for i in range(4)
    ]
    train_batch(pupil, LoadedBatch(pupil.step, [Part(0, rows)], {}))


def mark_of(pupil, incarnation=0):
    return Mark(incarnation=incarnation, step=pupil.step, cursor=7, bad_steps=pupil.bad_steps)


def copy_of(pupil):
    return {name: tensor.clone() for name, tensor in learner_tensors(pupil).items()}


def equal(one, two):
    return one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


def round_trip(store, folder):
    pupil = learner(folder)
    train(pupil, 0)
    checkpoints = Checkpoints(store, KEYS, "solver", keep=2)
    checkpoints.save(mark_of(pupil), pupil)
    saved = copy_of(pupil)
    torch.rand(3)
    train(pupil, 1)  # while it is written: what is written is the state of before
    after = copy_of(pupil)
    checkpoints.settle(wait=True, must=True)
    other = learner(folder)
    found = Checkpoints(store, KEYS, "solver", keep=2)
    mark = found.newest(step=1)
    assert mark == Mark(incarnation=0, step=1, cursor=7)
    found.load(mark, other)
    assert other.step == 1 and equal(copy_of(other), saved)
    torch.rand(3)
    train(other, 1)
    assert equal(copy_of(other), after)


def test_round_trip_in_a_folder(model_folder, tmp_path):
    round_trip(open_store(tmp_path.as_uri()), model_folder)


def test_round_trip_in_memory(model_folder):
    round_trip(open_store("memory://checkpoints"), model_folder)


@pytest.mark.s3
def test_round_trip_in_s3(model_folder, s3_store_url):
    round_trip(open_store(s3_store_url), model_folder)


def test_round_trip_in_azure(model_folder, azure_store_url):
    round_trip(open_store(azure_store_url), model_folder)


def test_the_newest_that_is_not_ahead_is_found_and_old_ones_go(model_folder, tmp_path):
    store = open_store(tmp_path.as_uri())
    checkpoints = Checkpoints(store, KEYS, "solver", keep=2)
    assert checkpoints.newest(step=9) is None
    pupil = learner(model_folder)
    for incarnation, step in ((0, 2), (0, 4), (1, 4), (1, 6)):
        pupil.step = step
        checkpoints.save(mark_of(pupil, incarnation), pupil)
        checkpoints.settle(wait=True)
    assert checkpoints.written_step == 6
    assert checkpoints.newest(step=9).age == (6, 1)
    assert checkpoints.newest(step=5).age == (4, 1)
    assert checkpoints.newest(step=3) is None
    folders = {path.name for path in (tmp_path / "run/checkpoints/solver").iterdir()}
    assert folders == {"1-00000004", "1-00000006"}


def test_what_killed_lives_left_half_done_is_swept(model_folder, tmp_path):
    """A folder without its marker: of a write that was broken off, or of a deletion that was."""
    store = open_store(tmp_path.as_uri())
    pupil = learner(model_folder)
    for name in ("0-00000001", "0-00000009", "1-00000002", "1-00000008"):
        store.put(f"run/checkpoints/solver/{name}/__0_0.distcp", b"half")
    checkpoints = Checkpoints(store, KEYS, "solver", keep=1)
    pupil.step = 4
    checkpoints.save(mark_of(pupil, incarnation=1), pupil)
    checkpoints.settle(wait=True, must=True)
    folders = {path.name for path in (tmp_path / "run/checkpoints/solver").iterdir() if any(path.iterdir())}
    assert folders == {"1-00000004", "1-00000008"}  # what may be written right now is left alone
    assert checkpoints.newest(step=9).step == 4


def test_a_damaged_marker_is_passed_over_for_the_one_before(model_folder, tmp_path):
    store = open_store(tmp_path.as_uri())
    checkpoints = Checkpoints(store, KEYS, "solver", keep=2)
    pupil = learner(model_folder)
    for step in (2, 4):
        pupil.step = step
        checkpoints.save(mark_of(pupil), pupil)
        checkpoints.settle(wait=True)
    store.put("run/checkpoints/solver/0-00000004/complete.json", b'{"incarnation": 0, "st')
    assert checkpoints.newest(step=9).step == 2


def test_a_filesystem_that_fails_is_a_store_error(model_folder, tmp_path, monkeypatch):
    store = open_store(tmp_path.as_uri())
    checkpoints = Checkpoints(store, KEYS, "solver", keep=2)
    pupil = learner(model_folder)
    checkpoints.save(mark_of(pupil), pupil)
    checkpoints.settle(wait=True)

    def failing(*_):
        raise OSError("connection reset")

    monkeypatch.setattr(module._Reader, "read_metadata", failing)
    with pytest.raises((StoreError, DataError)) as raised:
        checkpoints.load(checkpoints.newest(step=9), pupil)
    assert "connection reset" in str(raised.value)


@pytest.mark.s3
def test_on_s3_the_last_ones_are_kept_too(model_folder, s3_store_url):
    store = open_store(s3_store_url)
    checkpoints = Checkpoints(store, KEYS, "kept", keep=2)
    pupil = learner(model_folder)
    for step in range(4):
        pupil.step = step
        checkpoints.save(mark_of(pupil), pupil)
        checkpoints.settle(wait=True, must=True)
    names = {info.key.split("/")[3] for info in store.list(KEYS.checkpoints("kept"))}
    assert names == {"0-00000002", "0-00000003"}
    other = learner(model_folder)
    train(other, 3)
    checkpoints.load(checkpoints.newest(step=9), other)
    assert equal(copy_of(other), copy_of(pupil))


def test_marks_of_before_pauses_were_kept_are_read():
    import msgspec

    old = b'{"incarnation":1,"step":2,"cursor":3,"bad_steps":0}'
    mark = msgspec.json.decode(old, type=Mark)
    assert (mark.paused or ()) == () and msgspec.json.encode(mark) == old
    paused = Mark(incarnation=1, step=2, cursor=3, paused=("", "solver"))
    assert msgspec.json.decode(msgspec.json.encode(paused), type=Mark) == paused


def test_without_its_marker_a_checkpoint_does_not_exist(model_folder, tmp_path):
    store = open_store(tmp_path.as_uri())
    checkpoints = Checkpoints(store, KEYS, "solver", keep=2)
    pupil = learner(model_folder)

    def stop(name):
        raise KeyboardInterrupt(name)

    checkpoints.save(mark_of(pupil), pupil)
    commit_points.hook = stop
    try:
        with pytest.raises(KeyboardInterrupt, match="before_checkpoint_marker"):
            checkpoints.settle(wait=True)
    finally:
        commit_points.hook = None
    assert Checkpoints(store, KEYS, "solver", keep=2).newest(step=9) is None


def test_damage_and_another_model_are_data_errors(model_folder, tmp_path):
    store = open_store(tmp_path.as_uri())
    checkpoints = Checkpoints(store, KEYS, "solver", keep=2)
    pupil = learner(model_folder)
    checkpoints.save(mark_of(pupil), pupil)
    checkpoints.settle(wait=True)
    mark = checkpoints.newest(step=0)
    other = learner(model_folder)
    other.model.add_module("extra", torch.nn.Linear(2, 2))
    other.optimizer = new_optimizer(other.model, other.config)
    with pytest.raises(DataError) as raised:
        checkpoints.load(mark, other)
    assert "0-00000000" in raised.value.where
    (tmp_path / "run/checkpoints/solver/0-00000000/.metadata").unlink()
    with pytest.raises(DataError):
        checkpoints.load(mark, learner(model_folder))


class Failing:
    """Writers that fail."""

    def __init__(self, *_):
        raise OSError("no space left")


def test_a_failed_write_is_counted_then_raised(model_folder, tmp_path, monkeypatch):
    store = open_store(tmp_path.as_uri())
    checkpoints = Checkpoints(store, KEYS, "solver", keep=2)
    pupil = learner(model_folder)
    monkeypatch.setattr(module._Writer, "write_data", Failing.__init__)
    for failures in (1, 2):
        checkpoints.save(mark_of(pupil), pupil)
        checkpoints.settle(wait=True)
        assert checkpoints.failures == failures and checkpoints.newest(step=9) is None
    checkpoints.save(mark_of(pupil), pupil)
    with pytest.raises(StoreError, match="no space left"):
        checkpoints.settle(wait=True)
    monkeypatch.undo()
    checkpoints.save(mark_of(pupil), pupil)
    checkpoints.settle(wait=True, must=True)
    assert checkpoints.failures == 0 and checkpoints.newest(step=9) is not None
