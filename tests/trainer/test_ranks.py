"""Two gloo ranks do what one process does: gradients, figures, checkpoints, versions, and lives that change in size."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from astraflow.config import Trainer
from astraflow.recipe import dump_toml
from astraflow.records import Consumed, Ended, Left, Published, TrainerJoined
from astraflow.trainer.checkpoints import MARKER, Checkpoints, Mark
from astraflow.trainer.loop import run_trainer
from astraflow.trainer.team import ALONE
from astraflow.trainer.torchrun import run_ranks
from astraflow.weights.subscriber import Subscriber
from storage import open_store
from storage.errors import AstraFlowError, DataError
from storage.keys import RunKeys
from tests.trainer.rank_script import CASES, learner
from tests.trainer.test_resume import manifests

ROOT = Path(__file__).parents[2]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def step_of(command, *arguments):
    """Take the script's steps, with one process or several."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    script = [*command, str(ROOT / "tests/trainer/rank_script.py"), *map(str, arguments)]
    subprocess.run(script, check=True, env=environment, cwd=ROOT, timeout=240)


@pytest.fixture(scope="module")
def both(model_folder, tmp_path_factory):
    """What one process and two ranks made of the same batch, and the folder with their checkpoints."""
    folder = tmp_path_factory.mktemp("ranks")
    found = []
    for name, command in (("one", [sys.executable]), ("two", TORCHRUN)):
        out = folder / f"{name}.safetensors"
        step_of(command, model_folder, out)
        found.append(load_file(out))
    return (*found, folder)


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_take_the_step_of_one(both, case):
    one, two, _ = both
    names = [name for name in one if name.startswith(f"{case}.")]
    assert names and one.keys() == two.keys()
    for name in names:
        torch.testing.assert_close(two[name], one[name], atol=2e-7, rtol=2e-4)
    moments = torch.cat([one[name].flatten() for name in names if name.endswith("moment")])
    assert moments.abs().max() > 1e-5


@pytest.mark.parametrize("case", CASES)
def test_figures_are_those_of_all_ranks(both, case):
    one, two, _ = both
    names = [name for name in one if name.startswith(f"figure.{case}.")]
    assert len(names) > 20
    for name in names:
        assert float(two[name]) == pytest.approx(float(one[name]), rel=1e-4, abs=1e-5), name


def check_loads(store, model_folder, size, wanted):
    """One process loads the checkpoint of ``size`` ranks: what they had, whole."""
    pupil = learner(model_folder, Trainer(), ALONE)
    checkpoints = Checkpoints(store, RunKeys("ranks"), "solver", keep=2)
    checkpoints.load(Mark(incarnation=size, step=1, cursor=0), pupil)
    last = list(CASES)[-1]
    for name, parameter in pupil.model.named_parameters():
        assert torch.equal(parameter, wanted[f"{last}.{name}"])
        assert torch.equal(pupil.optimizer.state[parameter]["exp_avg"], wanted[f"{last}.{name}.moment"])


def test_a_checkpoint_of_two_ranks_is_read_by_one(both, model_folder):
    one, two, folder = both
    store = open_store(folder.as_uri())
    check_loads(store, model_folder, 1, one)
    check_loads(store, model_folder, 2, two)
    files = {path.name for path in (folder / "ranks/checkpoints/solver/2-00000001").iterdir()}
    assert {"__0_0.distcp", "__1_0.distcp"} <= files


@pytest.mark.s3
def test_in_s3_too(model_folder, tmp_path, s3_store_url):
    """Each rank uploads its own rows, the marker comes last, and one process goes on from there."""
    step_of(TORCHRUN, model_folder, tmp_path / "two.safetensors", s3_store_url)
    store = open_store(s3_store_url)
    checkpoints = RunKeys("ranks").checkpoints("solver")
    files = {info.key.removeprefix(checkpoints + "2-00000001/"): info for info in store.list(checkpoints)}
    assert set(files) == {"__0_0.distcp", "__1_0.distcp", ".metadata", MARKER}
    check_loads(store, model_folder, 2, load_file(tmp_path / "two.safetensors"))
    found = Checkpoints(store, RunKeys("ranks"), "solver", keep=2)
    assert found.newest(step=9) == Mark(incarnation=2, step=1, cursor=0)
    store.delete(checkpoints + "2-00000001/" + MARKER)
    assert found.newest(step=9) is None


def frozen_config(run):
    """Write the run's config where a process of the run looks for it."""
    run.store.put(run.keys.config, dump_toml(run.config).encode())


def live_with(run, ranks, life):
    run_ranks(run.config.name, run.config.store, "solver", participant=f"trainer-solver-{life}", ranks=ranks, threads=1)


@pytest.mark.kill
@pytest.mark.parts
def test_killed_with_two_ranks_and_gone_on_with_one(make_run, monkeypatch):
    runs = [make_run(name=name, steps=8, checkpoint_every=2) for name in ("straight", "killed")]
    for run in runs:
        run.decide(*[run.batched(n) for n in range(8)])
        frozen_config(run)
    straight, killed = runs
    run_trainer(straight.store, straight.config, "solver", participant="trainer-solver-0")
    monkeypatch.setenv("ASTRAFLOW_KILL_AT", "trainer.after_manifest:6")
    with pytest.raises(AstraFlowError) as raised:
        live_with(killed, 2, 0)
    assert raised.value.kind == "rank"
    monkeypatch.delenv("ASTRAFLOW_KILL_AT")
    done = [fact.batch for fact in killed.facts() if isinstance(fact, Consumed)]
    assert done == [0, 1, 2, 3]  # the fifth step's manifest stands, its record does not
    run_trainer(killed.store, killed.config, "solver", participant="trainer-solver-1")
    facts = killed.facts()
    assert [fact.batch for fact in facts if isinstance(fact, Consumed)] == list(range(8))
    assert [fact.incarnation for fact in facts if isinstance(fact, TrainerJoined)] == [0, 1]
    assert facts[-2:] == [Ended(policy="solver", reason="done"), Left(reason="done")]
    chain = manifests(killed)
    assert [m.version for m in chain] == list(range(len(chain)))
    assert len({m.layout for m in chain}) == 2  # in shards, then whole
    assert any(m.kind == "delta" for m in chain[:5])
    one, two = (Subscriber(run.store, run.keys, "solver") for run in (straight, killed))
    wanted, found = one.fetch(one.newest()).tensors, two.fetch(two.newest()).tensors
    assert wanted.keys() == found.keys()
    for name, tensor in wanted.items():  # other orders of addition: not bit for bit
        torch.testing.assert_close(found[name].float(), tensor.float(), atol=2e-3, rtol=2e-2)


@pytest.mark.kill
@pytest.mark.parts
def test_a_rank_that_fails_ends_them_all_with_its_reason(make_run):
    run = make_run(name="diverges", steps=3, lr=1e39, ranks=2)
    run.decide(*[run.batched(n) for n in range(3)])
    frozen_config(run)
    with pytest.raises(DataError) as raised:
        live_with(run, 2, 0)
    assert raised.value.kind == "non_finite"
    assert [fact.version for fact in run.facts() if isinstance(fact, Published)] == [0]
