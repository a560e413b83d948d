"""Runs that are scaled up and down: by a short script outside, which knows only the commands' JSON, and by load."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from astraflow.recipe import load_run_config
from tests.e2e.runs import RunUnderTest, until, wait_for
from tests.e2e.stack import PYTHON, LocalStack
from tests.simulation.invariants import check_run

pytestmark = [pytest.mark.e2e, pytest.mark.parts, pytest.mark.timeout(900)]

HUNGRY = (  # one pool plays a group in a second, and a step takes two of them: the trainer waits
    "pools.local.capacity=1",
    "trainer.batch_size=2",
    "dataflow.report_every=2",
    "problems.reward.options.seconds=1.0",
    "scale.most=2",
    "scale.cool_down=0",
)
DRAIN = "DrainRequested"
SCRIPT = Path(__file__).with_name("outside_scaler.py")


def test_a_script_outside_scales_a_run_up_and_down(
    stack: LocalStack, started: list[RunUnderTest], tmp_path: Path
) -> None:
    assert len(SCRIPT.read_text().splitlines()) <= 32
    run = RunUnderTest(stack, "scaled")
    started.append(run)
    run.start("unhurried", "trainer.steps=1000")
    run.let_go()
    said = tmp_path / "said"
    with said.open("w") as output:
        command = [PYTHON, str(SCRIPT), run.name, "local", "2"]
        script = subprocess.Popen(command, cwd=stack.folder, env=stack.environment, stdout=output, stderr=output)
        try:
            until(lambda: script.poll() is not None, "the script to have scaled up and down")
        finally:
            script.kill()
            script.wait()
            print(said.read_text())  # shown if the test fails
    assert script.returncode == 0
    wait_for(lambda: states(run) == ["left", "live"], run, "the second pool to leave")
    assert run.view().stopped is None, "one pool goes on alone"
    assert run.opened().figures().pools_wanted == {"local": 1}
    stack.astraflow("stop", run.name).ok()
    for answer in run.answers():
        answer.ok()
    counts = check_run(run.store, load_run_config(run.store, run.name))
    assert (counts["Stopped"], counts["scaled_by_wish"]) == (1, 2)
    rows = run.opened().table("pools").to_pylist()
    assert all(row["admitted"] for row in rows), "both have played"


def test_a_run_whose_trainer_waits_grows_by_itself_and_idle_pools_leave_near_its_end(
    stack: LocalStack, started: list[RunUnderTest]
) -> None:
    run = RunUnderTest(stack, "acts")
    started.append(run)
    run.start("unhurried", "trainer.steps=9", *HUNGRY, "scale.mode=act")
    run.let_go()
    wait_for(lambda: run.opened().figures().pools_wanted == {"local": 2}, run, "a load report to ask for a second pool")
    run.hold()  # or it would be over before that has come
    wait_for(lambda: states(run) == ["live", "live"], run, "the second pool to join")
    run.let_go()
    counts = counts_of_finished(run, 9)
    assert (counts["scaled_by_load"], counts["scaled_by_wish"]) == (1, 0), "nobody said a word"
    opened = run.opened()
    pools = opened.table("pools").to_pylist()
    assert all(pool["admitted"] for pool in pools) and states(run) == ["left", "left"]
    asked = [json.loads(row["detail"]) for row in opened.table("decisions").to_pylist() if row["type"] == DRAIN]
    spare = [one["participants"] for one in asked if one["reason"] == "all that is still needed is being played"]
    assert len(spare) == 1 and len(spare[0]) == 1, asked
    assert spare[0][0] in {pool["participant"] for pool in pools}, "one was idle, the other had work to the end"


def test_advice_is_shown_wherever_one_looks_and_nobody_acts_on_it(
    stack: LocalStack, started: list[RunUnderTest]
) -> None:
    run = RunUnderTest(stack, "advised")
    started.append(run)
    run.start("unhurried", "trainer.steps=8", *HUNGRY, "scale.mode=advise")
    run.let_go()
    wait_for(lambda: run.opened().figures().pools_advised == 2, run, "a load report to ask for a second pool")
    status = stack.astraflow("status", run.name, "--json").ok().json
    assert (status["pools_advised"], status["pools_wanted"]) == (2, {"local": 1})
    counts = counts_of_finished(run, 8)
    assert (counts["scaled_by_load"], counts["scaled_by_wish"], states(run)) == (0, 0, ["left"])
    asked = [row["asked for"] for row in json.loads(run.artifact(f"load-{run.name}"))]
    reports = [dict(row["figures"]) for row in run.opened().table("loads").to_pylist()]
    assert asked == [f"{report['pools_advised']:.0f}" for report in reversed(reports)] and "2" in asked
    page = run.artifact(f"run-{run.name}")
    last = f"{reports[-1]['pools_advised']:.0f}"
    assert f"| pools wanted | local 1; load reports ask for {last} |" in page
    assert "| solver | 8 |" in page[page.index("## Load reports") :]


def counts_of_finished(run: RunUnderTest, steps: int) -> Counter[str]:
    """The run's commands have ended well, and it is whole after so many steps."""
    for answer in run.answers():
        answer.ok()
    run.check_finished(steps=steps)
    return check_run(run.store, load_run_config(run.store, run.name))


def states(run: RunUnderTest) -> list[str]:
    """The states of all lives of pools."""
    rows = run.opened().table("pools").to_pylist()
    return sorted(row["state"] for row in rows)
