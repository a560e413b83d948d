"""One run with a fast and a slow pool, one killed and one added midway: real manager, trainer and pools."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from astraflow import config as cfg
from astraflow import open_run
from astraflow.bootstrap import create_run
from astraflow.dataflow.manager import run_manager
from astraflow.participant import DecisionsReader
from astraflow.raas.engine import Engine, Generation, GenerationRequest
from astraflow.raas.pool import run_pool
from astraflow.raas.serving import make_engine
from astraflow.records import Admitted, AnyDecision, Leased, Stopped
from astraflow.trainer.loop import run_trainer
from astraflow.weights.update import WeightUpdate
from astraflow.wishes import stop
from storage import open_store
from storage.errors import AstraFlowError
from storage.keys import RunKeys
from tests.simulation.invariants import check_run

pytestmark = [pytest.mark.anyio, pytest.mark.kill, pytest.mark.parts, pytest.mark.timeout(900)]

SILENCE_S = 8
CHILD = """
import asyncio, sys
from astraflow.raas.pool import run_pool
from astraflow.recipe import load_run_config
from astraflow.wishes import stop
from storage import open_store
store = open_store(sys.argv[1])
asyncio.run(run_pool(store, load_run_config(store, "elastic"), "doomed", participant="pool-doomed-1"))
"""


class Slow:
    """An engine ten times as slow: another kind of hardware."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    @property
    def version(self) -> int:
        return self._engine.version

    async def generate(self, request: GenerationRequest) -> Generation:
        await asyncio.sleep(0.3)
        return await self._engine.generate(request)

    async def load(self, update: WeightUpdate) -> None:
        await self._engine.load(update)

    async def close(self) -> None:
        await self._engine.close()


async def slow(folder: Path, pool: cfg.Pool) -> Engine:
    return Slow(await make_engine(folder, pool))


async def test_pools_come_and_go(tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    store, keys = open_store(url), RunKeys("elastic")
    pools = {name: {"capacity": 4} for name in ("fast", "slow", "doomed", "late")}
    config = create_run(
        store,
        cfg.RunConfig.model_validate(
            {
                "name": "elastic",
                "store": url,
                "policies": {"solver": {"model": "tiny-qwen3", "sampling": {"max_tokens": 4}}},
                "problems": {"source": "addition", "options": {"count": 50}},
                "dataflow": {"group_size": 2, "max_staleness": 3, "silence_s": SILENCE_S, "drain_s": 2},
                "trainer": {"steps": 100000, "batch_size": 4, "checkpoint_every": 1000},
                "pools": pools,
            }
        ),
    )
    manager = asyncio.create_task(asyncio.to_thread(run_manager, store, config, holder="test"))
    trainer = asyncio.create_task(
        asyncio.to_thread(run_trainer, store, config, "solver", participant="trainer-solver-1")
    )
    running = [
        asyncio.create_task(run_pool(store, config, "fast", participant="pool-fast-1")),
        asyncio.create_task(run_pool(store, config, "slow", participant="pool-slow-1", engines=slow)),
    ]
    child = subprocess.Popen([sys.executable, "-c", CHILD, url], env={**os.environ, "OMP_NUM_THREADS": "1"})
    reader = DecisionsReader(store, keys)
    decided: list[AnyDecision] = []

    async def until(done: Callable[[], bool]) -> None:
        async with asyncio.timeout(400):
            while not done():
                for task in [manager, trainer, *running]:
                    if task.done():
                        task.result()
                for _, record in await asyncio.to_thread(reader.poll):
                    decided.extend(record.decisions)
                await asyncio.sleep(0.02)

    def admitted(name: str) -> int:
        return sum(len(d.groups) for d in decided if isinstance(d, Admitted) and d.participant == name)

    def leased(*pools: str) -> set[int]:
        names = [f"pool-{pool}-1" for pool in pools]
        return {group for d in decided if isinstance(d, Leased) and d.pool in names for group in d.groups}

    def is_replaced() -> bool:
        """All that the killed pool was given has come in, or was given to others."""
        came = {group for d in decided if isinstance(d, Admitted) for group in d.groups}
        return leased("doomed") <= came | leased("fast", "slow", "late")

    try:
        await until(lambda: all(admitted(f"pool-{name}-1") >= 4 for name in ("fast", "slow", "doomed")))
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        killed_at = time.monotonic()
        running.append(asyncio.create_task(run_pool(store, config, "late", participant="pool-late-1")))
        await until(lambda: admitted("pool-late-1") >= 4)
        before = admitted("pool-fast-1"), admitted("pool-slow-1")
        await until(lambda: admitted("pool-fast-1") > before[0] + 4 and admitted("pool-slow-1") > before[1])
        await until(lambda: time.monotonic() > killed_at + 2 * SILENCE_S and is_replaced())
        await asyncio.to_thread(stop, store, "elastic", reason="seen enough")
        await asyncio.gather(manager, trainer, *running)
        await until(lambda: any(isinstance(d, Stopped) for d in decided))
    finally:
        child.kill()
        if not manager.done():  # or its thread, and the trainer's, would be waited for
            with contextlib.suppress(AstraFlowError):
                await asyncio.to_thread(stop, store, "elastic", reason="the test has failed")
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    check_run(store, config)  # nothing lost, nothing twice, no lag beyond the bound
    lost = leased("doomed") - set(_committed(config, "pool-doomed-1"))
    assert lost <= leased("fast", "slow", "late")  # what it held when it died was given to others
    rates = {name: admitted(f"pool-{name}-1") for name in ("fast", "slow")}
    assert rates["fast"] > rates["slow"] > 0  # each at its own speed, and neither waits for the other


def _committed(config: cfg.RunConfig, pool: str) -> list[int]:
    table = open_run(f"{config.store}/{config.name}").trajectories().to_table(columns=["group_id", "pool"])
    return [g for g, p in zip(table["group_id"].to_pylist(), table["pool"].to_pylist(), strict=True) if p == pool]
