"""Prefect's side dies: the runner, the experiment's flow, or everything at once. ``--resume`` finishes the run."""

from __future__ import annotations

import signal

import pytest

from tests.e2e.runs import RunUnderTest, wait_for
from tests.e2e.stack import LocalStack

pytestmark = [pytest.mark.e2e, pytest.mark.kill]

STEPS = 14


@pytest.fixture
def run(request: pytest.FixtureRequest, stack: LocalStack, started: list[RunUnderTest]) -> RunUnderTest:
    """A run that is two steps old and held up."""
    run = RunUnderTest(stack, request.node.name.removeprefix("test_").replace("_", "-")[:40])
    started.append(run)
    run.start("unhurried", f"trainer.steps={STEPS}")
    run.wait_for_steps(2)
    return run


def test_without_its_experiment_a_run_goes_on_and_gets_another(run: RunUnderTest) -> None:
    run.kill(run.a_life("experiment"))
    run.wait_for_steps(1)
    answer = run.answer()
    assert answer.code == 4
    assert "crashed" in answer.err
    assert f"astraflow run --resume {run.name}" in answer.err
    run.resume()
    run.a_life("experiment")
    run.kill(run.a_life("trainer"))  # the new experiment looks after what the old one started
    (answer,) = run.answers()
    answer.ok()
    figures = run.check_finished(steps=STEPS, kills=True)
    assert figures.epochs == 1, "a manager that lived was replaced"


def test_without_a_runner_a_run_goes_on_and_the_remedy_is_said(run: RunUnderTest) -> None:
    run.kill(run.stack.stack.runner)
    run.wait_for_steps(1)
    refused = run.stack.astraflow("run", "--resume", run.name, "--store", run.store_url)
    assert refused.code == 4
    assert "runner has died" in refused.err
    assert "astraflow up" in refused.err
    run.stack.up()
    run.kill(run.a_life("trainer"))  # an orphan: Prefect does not see it die
    run.resume()
    for answer in run.answers():
        answer.ok()
    run.check_finished(steps=STEPS, kills=True)


def test_when_all_of_a_run_dies_at_once_it_can_be_resumed(run: RunUnderTest) -> None:
    lives = run.lives()
    assert len(lives) == 4
    for process in lives:
        process.signal(signal.SIGKILL)
    wait_for(lambda: not run.lives(), run, "the end of all")
    assert run.answer().code == 4
    run.resume()
    (answer,) = run.answers()
    answer.ok()
    figures = run.check_finished(steps=STEPS, kills=True)
    assert figures.epochs == 2
