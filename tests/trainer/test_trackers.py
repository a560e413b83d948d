"""Figures that go elsewhere, through fakes of the two services."""

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
        def log(self, figures, step):
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
