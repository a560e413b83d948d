"""Trap 1: a dead engine is an error that says why, to everyone who waits, and its processes never outlive us."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from astraflow.config import Pool
from astraflow.raas.vllm_engine import VllmEngine
from storage.errors import ConfigError, EngineError
from tests.vllm.conftest import FP32, llama, update_of
from tests.vllm.test_engine import ask, started

pytestmark = [pytest.mark.anyio, pytest.mark.vllm]

OWNER = """
import asyncio, sys
from pathlib import Path
from astraflow.config import Pool
from astraflow.raas.vllm_engine import VllmEngine

async def main():
    await VllmEngine.start(Path(sys.argv[1]), Pool(engine="vllm", max_batch=4, options={"max_model_len": 512}))
    print("started", flush=True)
    await asyncio.sleep(600)

if __name__ == "__main__":
    asyncio.run(main())
"""


def is_engine(process: psutil.Process) -> bool:
    """Not the guard, nor Python's own tracker of shared memory, which end with their owner."""
    line = " ".join(process.cmdline())
    return "resource_tracker" not in line and "vllm_guard" not in line


async def test_everyone_who_waits_is_told_with_the_logs_last_lines(llama_folder: Path) -> None:
    me = psutil.Process()
    before = set(me.children(recursive=True))
    engine = await VllmEngine.start(llama_folder, Pool(engine="vllm", max_batch=2, options=FP32))
    early = asyncio.create_task(engine.generate(ask([5])))  # waits for the first version
    await engine.load(update_of(llama(2), 0))
    assert (await early).versions == [0] * 8
    waiting = [await started(engine, ask([5], 2000), 2), asyncio.create_task(engine.generate(ask([6], 2000)))]
    waiting += [asyncio.create_task(engine.generate(ask([7], 2000))) for _ in range(3)]
    mine = set(filter(is_engine, set(me.children(recursive=True)) - before))
    worker = max(mine, key=lambda process: process.memory_info().rss)
    worker.send_signal(signal.SIGKILL)
    results = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 60)
    assert [type(result) for result in results] == [EngineError] * 5
    for result in results:
        assert isinstance(result, EngineError)
        assert result.kind == "died"
        assert "died unexpectedly" in result.what, "the log says why"
    for call in (engine.generate(ask([5])), engine.load(update_of(llama(2), 1))):
        with pytest.raises(EngineError):
            await asyncio.wait_for(call, 10)
    await engine.close()
    assert not [process for process in mine if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]


async def test_a_model_that_can_not_be_served_says_so(tmp_path: Path, llama_folder: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "nothing-like-it"}')
    with pytest.raises(ConfigError) as caught:
        await VllmEngine.start(tmp_path, Pool(engine="vllm"))
    assert caught.value.kind == "model"
    for options in ({"pipeline_parallel_size": 2}, {"load_format": "auto"}, {"quantization": "fp8"}):
        with pytest.raises(ConfigError):
            await VllmEngine.start(llama_folder, Pool(engine="vllm", options=options))
    with pytest.raises(ConfigError) as caught:
        await VllmEngine.start(llama_folder, Pool(engine="vllm", options={"no_such_option": 1}))
    assert "no_such_option" in caught.value.what


def test_processes_end_with_the_one_that_started_them(llama_folder: Path, tmp_path: Path) -> None:
    script = tmp_path / "owner.py"
    script.write_text(OWNER)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    owner = subprocess.Popen(
        [sys.executable, str(script), str(llama_folder)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert owner.stdout is not None
    assert owner.stdout.readline() == "started\n"
    children = [child for child in psutil.Process(owner.pid).children(recursive=True) if is_engine(child)]
    assert len(children) >= 2
    owner.kill()
    owner.wait()
    deadline = time.monotonic() + 60
    while alive := [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]:
        assert time.monotonic() < deadline, f"{alive} live on"
        time.sleep(0.2)
