"""Two policies play together and train apart: while one trainer hangs, the other goes on to its end."""

from __future__ import annotations

import signal

import pytest

from tests.e2e.runs import RunUnderTest, wait_for
from tests.e2e.stack import LocalStack

pytestmark = pytest.mark.e2e

STEPS = 10


def test_a_trainer_that_hangs_does_not_hold_up_the_other(stack: LocalStack, started: list[RunUnderTest]) -> None:
    run = RunUnderTest(stack, "two-policies")
    started.append(run)
    run.start("two", f"trainer.steps={STEPS}", "dataflow.silence_s=300")
    wait_for(lambda: run.view().policies["verifier"].step >= 1, run, "the verifier's first step")
    run.hold()
    hanging = run.a_life("trainer", name="verifier")
    hanging.signal(signal.SIGSTOP)
    try:
        before = run.view().policies["verifier"].step
        assert before < STEPS
        run.let_go()
        wait_for(lambda: run.view().policies["solver"].step == STEPS, run, "the solver's last step")
        assert run.view().policies["verifier"].step <= before + 1  # one record may have been on its way
        assert not run.view().is_over
    finally:
        hanging.signal(signal.SIGCONT)

    (answer,) = run.answers()
    answer.ok()
    figures = run.check_finished(steps=STEPS)
    assert set(figures.policies) == {"solver", "verifier"}
    assert figures.epochs == 1
