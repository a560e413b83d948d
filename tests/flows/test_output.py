"""Where a flow run's process writes: a file of its own, or a pipe whose reader may die."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


def test_a_flow_runs_output_begins_with_who_it_is_and_when(tmp_path: Path) -> None:
    script = """
import flows.output as output
class Runtime: id = "0123456789ab"
output.flow_run = Runtime
output.own_output("pool-east-456789ab")
print("said")
"""
    env = {**os.environ, "ASTRAFLOW_HOME": str(tmp_path), "ASTRAFLOW_STACK": "x"}
    subprocess.run([sys.executable, "-c", script], env=env, timeout=60, check=True)
    first, second = (tmp_path / "logs" / "flow-runs" / "pool-east-456789ab.log").read_text().splitlines()
    assert re.fullmatch(r"pool-east-456789ab began at \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", first)
    assert second == "said"


@pytest.mark.parametrize("pipes", [("stdout", "stderr"), ("stderr",)])
def test_a_flow_run_goes_on_when_nobody_reads_it_any_more(tmp_path: Path, pipes: tuple[str, ...]) -> None:
    """Its worker was killed, and Prefect's console ends a process that cannot write."""
    script = """
import sys, time
from pathlib import Path
import flows.output as output
class Runtime: id = "0123456789ab"
output.flow_run = Runtime
output.own_output("pool-west-456789ab")
from prefect.logging import get_logger
get_logger().warning("before")
Path("begun").touch()
while not Path("go").exists():
    time.sleep(0.02)
for _ in range(3):
    get_logger().warning("into the void")
    print("into the void", flush=True)
    time.sleep(0.05)
Path("done").touch()
"""
    env = {name: value for name, value in os.environ.items() if not name.startswith("ASTRAFLOW_")}
    given = {name: subprocess.PIPE if name in pipes else subprocess.DEVNULL for name in ("stdout", "stderr")}
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path, env={**env, "PYTHONPATH": root}, **given)
    while not (tmp_path / "begun").exists():
        assert process.poll() is None
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    (tmp_path / "go").touch()
    assert process.wait(60) == 0
    assert (tmp_path / "done").exists()
