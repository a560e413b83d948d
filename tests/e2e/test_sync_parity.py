"""With no lag allowed, a whole run trains what a plain synchronous loop trains: the same bits after every step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SIZE = ("--steps", "5", "--repeats", "1", "--groups", "4")


@pytest.mark.e2e
@pytest.mark.parts
def test_a_run_without_staleness_equals_the_plain_loop_bit_for_bit() -> None:
    command = [sys.executable, str(ROOT / "tests" / "benchmarks" / "sync_parity.py"), *SIZE, "--json"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, check=False, env=env, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["equal"] and figures["equal_steps"] == [5]
