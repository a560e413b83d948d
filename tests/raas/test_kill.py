"""A pool killed at its commit points: what it did not say did not happen, and what it said is true."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from astraflow.bootstrap import create_run
from astraflow.config import RunConfig
from astraflow.models import build_tiny_qwen3, load_causal_lm, upload_model_files
from astraflow.records import Applied, Committed, DecisionRecord, FactRecord, Leased, PoolJoined, decode, encode, new_id
from astraflow.weights.publisher import Publisher
from storage import open_store
from storage.keys import RunKeys
from storage.log import NumberedLog
from storage.tables import read_table

pytestmark = pytest.mark.kill

POOL = "pool-local-1"
CHILD = """
import asyncio, sys
from astraflow.raas.pool import run_pool
from astraflow.recipe import load_run_config
from storage import open_store
store = open_store(sys.argv[1])
asyncio.run(run_pool(store, load_run_config(store, "test"), "local", participant=sys.argv[2]))
"""


@pytest.mark.parametrize("point", ["pool.after_upload", "pool.after_commit", "pool.after_apply"])
def test_killed_at(point: str, tmp_path: Path) -> None:
    url = (tmp_path / "store").as_uri()
    store, keys = open_store(url), RunKeys("test")
    config = create_run(
        store,
        RunConfig.model_validate(
            {
                "name": "test",
                "store": url,
                "policies": {"solver": {"model": "tiny-qwen3", "sampling": {"max_tokens": 4}}},
                "problems": {"source": "addition", "options": {"count": 10}},
                "dataflow": {"group_size": 2},
            }
        ),
    )
    build_tiny_qwen3(tmp_path / "model", 0)
    weights = dict(load_causal_lm(tmp_path / "model", torch.bfloat16).state_dict())
    upload_model_files(store, keys, "solver", tmp_path / "model")
    publisher = Publisher(store, keys, "solver", anchor_every=64)
    publisher.publish(weights, step=0, incarnation=1, batch=-1, skipped={})

    def facts() -> list[object]:
        log, found = NumberedLog(store, lambda seq: keys.outbox(POOL, seq)), []
        while (data := log.read(len(found))) is not None:
            found.append(decode(data, FactRecord, where="outbox"))
        return [fact for record in found for fact in record.facts]

    def until(done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not done():
            assert time.monotonic() < deadline
            time.sleep(0.02)

    environment = {**os.environ, "ASTRAFLOW_KILL_AT": f"{point}:1", "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen([sys.executable, "-c", CHILD, url, POOL], env=environment)
    try:
        until(lambda: any(isinstance(fact, PoolJoined) for fact in facts()) or child.poll() is not None)
        if point == "pool.after_apply":
            publisher.publish({k: v + 0.01 for k, v in weights.items()}, step=1, incarnation=1, batch=0, skipped={})
        else:
            lease = Leased(pool=POOL, groups=[0], problems=[3], attempts=[1])
            record = DecisionRecord(id=new_id(), epoch=1, now=0, cursors={}, observations={}, decisions=[lease])
            store.create(keys.decision(0), encode(record))
        assert child.wait(120) == -signal.SIGKILL
    finally:
        child.kill()
    committed = [fact for fact in facts() if isinstance(fact, Committed)]
    objects = list(store.list(keys.trajectories))
    if point == "pool.after_upload":
        assert len(objects) == 1 and not committed  # an orphan: nobody will ever read it
    elif point == "pool.after_commit":
        assert [fact.groups for fact in committed] == [[0]]
        [item] = committed[0].objects
        assert read_table(store, item.path, item.hash).num_rows == 2
    else:
        assert not committed
        assert {fact.version for fact in facts() if isinstance(fact, Applied)} <= {0, 1}
    assert config.problem_count == 10
