"""A run that a short script outside of it scales up and down, knowing no more than the commands' JSON."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from astraflow import open_run
from astraflow.recipe import load_run_config
from tests.e2e.runs import RunUnderTest, until, wait_for
from tests.e2e.stack import PYTHON, LocalStack
from tests.simulation.invariants import check_run

pytestmark = [pytest.mark.e2e, pytest.mark.parts, pytest.mark.timeout(900)]

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
    assert open_run(f"{run.store_url}/{run.name}").figures().pools_wanted == {"local": 1}
    stack.astraflow("stop", run.name).ok()
    for answer in run.answers():
        answer.ok()
    counts = check_run(run.store, load_run_config(run.store, run.name))
    assert (counts["Stopped"], counts["scaled_by_wish"]) == (1, 2)
    rows = open_run(f"{run.store_url}/{run.name}").table("pools").to_pylist()
    assert all(row["admitted"] for row in rows), "both have played"


def states(run: RunUnderTest) -> list[str]:
    """The states of all lives of pools."""
    rows = open_run(f"{run.store_url}/{run.name}").table("pools").to_pylist()
    return sorted(row["state"] for row in rows)
