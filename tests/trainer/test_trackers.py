"""Figures that go elsewhere: through fakes of the two services, and through themselves where they are installed."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from astraflow.records import Consumed
from astraflow.trainer.loop import run_trainer
from astraflow.trainer.trackers import FOLDER, Trackers
from storage.errors import ConfigError

MADE = []


class Writer:
    def __init__(self, folder):
        self.folder, self.scalars = folder, []
        MADE.append(self)

    def add_scalar(self, name, value, step):
        self.scalars.append((name, value, step))

    def flush(self):
        pass


def test_each_step_of_a_run_is_told_once(make_run, monkeypatch, tmp_path):
    MADE.clear()
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Writer))
    monkeypatch.setenv(FOLDER, str(tmp_path))
    run = make_run(steps=2, trackers=["tensorboard"])
    run.decide(run.batched(0), run.batched(1))
    run_trainer(run.store, run.config, "solver")
    (writer,) = MADE
    assert writer.folder == str(tmp_path / "run" / "solver")
    told = {step: {name: value for name, value, at in writer.scalars if at == step} for step in (1, 2)}
    assert told == {fact.step: fact.metrics for fact in run.facts() if isinstance(fact, Consumed)}


def test_a_service_that_fails_costs_no_step(monkeypatch):
    calls = []

    class Run:
        def log(self, figures, step, commit):
            assert commit
            calls.append((figures, step))
            raise OSError("no network")

    def init(**named):
        calls.append(named)
        return Run()

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    trackers = Trackers(["wandb"], "run", "solver")
    trackers.log(3, {"loss": 0.5, "bad": float("nan")})
    assert trackers.failures == 1
    assert calls[0]["id"] == "run-solver" and calls[0]["resume"] == "allow"
    assert calls[1] == ({"loss": 0.5}, 3)


def test_what_is_not_installed_is_a_config_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match="wandb is not installed"):
        Trackers(["wandb"], "run", "solver")


def test_tensorboard_reads_what_was_told(monkeypatch, tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    monkeypatch.setenv(FOLDER, str(tmp_path))
    for step in (1, 2):  # two lives
        Trackers(["tensorboard"], "run", "solver").log(step, {"loss": step / 4, "bad": float("nan")})
    found = events.EventAccumulator(str(tmp_path / "run" / "solver"))
    found.Reload()
    assert found.Tags()["scalars"] == ["loss"]
    assert [(event.step, event.value) for event in found.Scalars("loss")] == [(1, 0.25), (2, 0.5)]


def test_wandb_keeps_what_was_told(monkeypatch, tmp_path):
    wandb = pytest.importorskip("wandb")
    for name, value in (("MODE", "offline"), ("DIR", str(tmp_path)), ("SILENT", "true"), ("PROJECT", "elsewhere")):
        monkeypatch.setenv(f"WANDB_{name}", value)
    trackers = Trackers(["wandb"], "run", "solver")
    trackers.log(1, {"loss": 0.25})
    run = wandb.run
    names, kept = (run.id, run.name, run.project), dict(run.summary)
    run.finish()  # whatever the figures are: an open run keeps a process
    assert names == ("run-solver", "run-solver", "elsewhere")
    assert trackers.failures == 0 and kept["loss"] == 0.25
    assert list(tmp_path.glob("wandb/offline-run-*/run-run-solver.wandb"))
