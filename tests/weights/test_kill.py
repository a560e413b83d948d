"""A trainer process killed at the commit points of a publish: the version is there whole, or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from astraflow.weights.publisher import Publisher
from astraflow.weights.subscriber import Subscriber
from storage import open_store
from storage.keys import RunKeys

SCRIPT = """
import sys, torch
from astraflow.weights.publisher import Publisher
from storage.keys import RunKeys
from storage import open_store
torch.set_num_threads(1)
out = Publisher(open_store(sys.argv[1]), RunKeys("run"), "solver", anchor_every=8)
for step in range(3):
    out.publish({"a": torch.full((50,), 1.0 + step).bfloat16()}, step=step, incarnation=0, batch=step - 1)
"""


@pytest.mark.kill
@pytest.mark.parametrize(("point", "versions"), [("trainer.after_blobs:2", 1), ("trainer.after_manifest:2", 2)])
def test_a_kill_leaves_whole_versions(tmp_path: Path, point: str, versions: int) -> None:
    environment = {**os.environ, "ASTRAFLOW_KILL_AT": point, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(tmp_path)], env=environment, check=False, timeout=120)
    assert done.returncode == -signal.SIGKILL
    store, keys = open_store(str(tmp_path)), RunKeys("run")
    reader = Subscriber(store, keys, "solver")
    assert reader.newest() == versions - 1
    assert reader.fetch(versions - 1).tensors["a"][0] == versions
    resumed = Publisher(store, keys, "solver", anchor_every=8)
    head = resumed.head()
    assert head is not None
    weights = {"a": torch.full((50,), float(versions)).bfloat16()}
    assert resumed.hold(weights, head)
    claim = resumed.publish(weights, step=head.step, incarnation=head.incarnation + 1, batch=head.batch)
    assert (claim.version, claim.size_bytes) == (versions, 0)
    weights = {"a": torch.full((50,), 9.0).bfloat16()}
    assert resumed.publish(weights, step=head.step + 1, incarnation=1, batch=head.batch + 1).base == versions
    assert reader.fetch(versions + 1).tensors["a"][49] == 9
