"""A whole run on vLLM: manager, trainer and pool as processes that share a store, the trainer publishing each step."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from astraflow.bootstrap import create_run
from astraflow.config import RunConfig
from astraflow.query import open_run
from storage import open_store
from tests.vllm.parity import parity

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

ROLE = """
import asyncio, sys
from astraflow.recipe import load_run_config
from storage import open_store

def main():
    store = open_store(sys.argv[1])
    config = load_run_config(store, "test")
    if sys.argv[2] == "manager":
        from astraflow.dataflow.manager import run_manager
        run_manager(store, config, holder="manager-1")
    elif sys.argv[2] == "trainer":
        from astraflow.trainer.loop import run_trainer
        run_trainer(store, config, "solver")
    else:
        from astraflow.raas.pool import run_pool
        asyncio.run(run_pool(store, config, "local"))

if __name__ == "__main__":
    main()
"""
STEPS = 8
ROOT = Path(__file__).parents[2]


def python_of(role: str) -> str:
    """The pool's environment is vLLM's; the others' is the project's own, with other versions of what both use."""
    own = ROOT / ".venv" / "bin" / "python"
    return str(own) if role != "pool" and own.exists() else sys.executable


def test_a_run_trains_what_vllm_sampled(tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    store = open_store(url)
    config = {
        "name": "test",
        "store": url,
        "policies": {"solver": {"model": "tiny-qwen3", "sampling": {"max_tokens": 48}}},
        "problems": {"source": "addition", "options": {"count": 200}},
        "dataflow": {"group_size": 4, "max_staleness": 2},
        "trainer": {"steps": STEPS, "batch_size": 8, "lr": 1e-4, "batch_timeout_s": 600},
        "pools": {"local": {"engine": "vllm", "max_batch": 16, "capacity": 16, "options": {"max_model_len": 512}}},
    }
    create_run(store, RunConfig.model_validate(config))
    (tmp_path / "role.py").write_text(ROLE)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    roles = ["manager", "trainer", "pool"]
    logs = {role: (tmp_path / f"{role}.log").open("w") for role in roles}
    processes = {
        role: subprocess.Popen(
            [python_of(role), str(tmp_path / "role.py"), url, role],
            stdout=logs[role],
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=tmp_path,
        )
        for role in roles
    }
    try:
        for role in ("trainer", "pool", "manager"):
            code = processes[role].wait(timeout=600)
            assert code == 0, f"{role}: {(tmp_path / f'{role}.log').read_text()[-3000:]}"
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
    [found] = parity(store, "test", "solver")
    print("\n".join(found.lines()))
    assert found.engine == "vllm"
    assert found.tokens > 500
    assert found.mean < 0.02  # bf16 beside fp32
    assert found.share_over_limit < 0.01
    figures = open_run(f"{url}/test").figures()
    assert figures.steps == STEPS
    assert figures.lag_max <= 2
