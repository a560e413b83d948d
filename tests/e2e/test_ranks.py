"""Two ranks share a policy's model, everything dies, one rank goes on: through Prefect, by the command line."""

from __future__ import annotations

import contextlib
import signal

import psutil
import pytest

from astraflow.weights.manifest import Manifest
from astraflow.weights.subscriber import Subscriber
from infra.processes import Process
from tests.e2e.runs import RunUnderTest, wait_for
from tests.e2e.stack import LocalStack

pytestmark = [pytest.mark.e2e, pytest.mark.kill, pytest.mark.parts]

STEPS = 8


def test_killed_with_two_ranks_and_finished_with_one(stack: LocalStack, started: list[RunUnderTest]) -> None:
    run = RunUnderTest(stack, "ranks")
    started.append(run)
    trainer = {"steps": STEPS, "ranks": 2, "checkpoint_every": 2, "kind": "sft"}  # whatever it answers, it learns
    run.start("unhurried", *(f"trainer.{name}={value}" for name, value in trainer.items()))
    run.wait_for_steps(3)
    assert len(ranks(run)) == 2
    for process in [*run.lives(), *ranks(run)]:
        process.signal(signal.SIGKILL)
    wait_for(lambda: not (run.lives() or ranks(run)), run, "the end of all")
    assert run.answer().code == 4
    shared = versions(run)

    run.resume("--ranks", "1")
    wait_for(lambda: bool(run.lives("trainer")), run, "the next trainer")
    assert not ranks(run)
    (answer,) = run.answers()
    answer.ok()
    run.check_finished(steps=STEPS, kills=True)
    chain = versions(run)
    alone = chain[len(shared) :]
    assert {manifest.incarnation for manifest in alone} == {1}
    assert len({manifest.layout for manifest in shared}) == len({manifest.layout for manifest in alone}) == 1
    assert alone[0].layout != shared[0].layout and alone[0].kind == "anchor"
    assert all(manifest.size_bytes > 0 for manifest in chain) and len({manifest.digest for manifest in chain}) > STEPS
    assert any(manifest.kind == "delta" for manifest in shared) and any(m.kind == "delta" for m in alone)


def ranks(run: RunUnderTest) -> list[Process]:
    """The processes that share the model; torchrun, which starts them, names their module too."""
    found = []
    for process in run.stack.processes():
        with contextlib.suppress(psutil.NoSuchProcess):
            words = psutil.Process(process.pid).cmdline()
            if "astraflow.trainer.rank" in words and "torch.distributed.run" not in words:
                found.append(process)
    return found


def versions(run: RunUnderTest) -> list[Manifest]:
    """All manifests of the policy."""
    reader = Subscriber(run.store, run.keys, "solver")
    return [reader.manifest(version) for version in range(reader.newest() + 1)]
