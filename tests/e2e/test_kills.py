"""A run killed at every commit point, and one killed again and again at random, lose nothing and do nothing twice."""

from __future__ import annotations

import random

import pytest

from storage.commit_points import COMMIT_POINTS
from tests.e2e.runs import LIVES, RunUnderTest, wait_for
from tests.e2e.stack import LocalStack

pytestmark = [pytest.mark.e2e, pytest.mark.kill]

STEPS = 80
POINTS = [point for point in COMMIT_POINTS if not point.startswith("maintenance.")]  # a run does not pass those
RANDOM_KILLS = 21
SEED = 20
VICTIMS = (*LIVES, *LIVES, "runner")  # the runner takes the longest to come back


@pytest.mark.timeout(1200)
def test_killed_at_every_commit_point(stack: LocalStack, started: list[RunUnderTest]) -> None:
    run = begin(stack, started, "killed-at-points")
    for point in POINTS:
        die_at(run, point)
    finish(run, managers=sum(point.startswith("manager.") for point in POINTS))


@pytest.mark.timeout(1200)
def test_killed_at_random(stack: LocalStack, started: list[RunUnderTest]) -> None:
    run = begin(stack, started, "killed-at-random")
    draws, victims = random.Random(SEED), []
    for number in range(RANDOM_KILLS):
        victims.append(die_at_random(run, draws))
        if number % 3 == 2:
            run.wait_for_steps(1)
    assert set(victims) == set(VICTIMS)
    finish(run, managers=victims.count("manager"))


def begin(stack: LocalStack, started: list[RunUnderTest], name: str) -> RunUnderTest:
    """A run that is two steps old and held up."""
    run = RunUnderTest(stack, name)
    started.append(run)
    run.start("unhurried", f"trainer.steps={STEPS}")
    run.wait_for_steps(2)
    return run


def finish(run: RunUnderTest, *, managers: int) -> None:
    """Let it go on to its end: whole, although so many managers were killed."""
    assert not run.view().is_over, "the run ended before the kills did: it needs more steps"
    (answer,) = run.answers()
    answer.ok()
    figures = run.check_finished(steps=STEPS, kills=True)
    assert figures.epochs > managers
    assert answer.json["steps"] == STEPS


def die_at(run: RunUnderTest, point: str) -> None:
    """Whoever passes ``point`` next dies there; return once the run has gone on."""
    armed = run.stack.kill_folder / point
    armed.touch()
    run.let_go()
    if point == "trainer.after_claim":  # only a new life of a trainer passes it
        run.kill(run.a_life("trainer"))
    wait_for(lambda: not armed.exists(), run, f"a death at {point}")
    run.wait_for_steps(1)


def die_at_random(run: RunUnderTest, draws: random.Random) -> str:
    """Kill one process at a random moment, as soon as it lives; a runner is brought back as its user would."""
    role, delay_s = draws.choice(VICTIMS), draws.uniform(0, 1.5)
    if role != "runner":
        run.a_life(role)
    run.let_go()
    run.pause(delay_s)
    if role == "runner":
        run.kill(run.stack.stack.runner)
    else:
        run.kill(run.a_life(role))
    run.hold()
    if role == "runner":
        run.stack.up()
    return role
