"""The same chain over a folder and over a real S3 server."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from astraflow.weights.publisher import Publisher
from astraflow.weights.subscriber import Subscriber
from storage import open_store
from storage.errors import Fenced
from storage.keys import RunKeys

KEYS = RunKeys("run")


def publish_and_follow(url: str) -> None:
    out = Publisher(open_store(url), KEYS, "solver", anchor_every=3, block_elements=64, blob_bytes=100)
    reader = Subscriber(open_store(url), KEYS, "solver")
    weights = {"a": torch.linspace(-1, 1, 300).bfloat16()}
    for step in range(5):
        weights["a"][step::9] *= 1.1
        out.publish(weights, step=step, incarnation=1, batch=step - 1)
        assert reader.newest() == step
        if step != 2:
            assert torch.equal(reader.fetch(step).tensors["a"], weights["a"])
    late = Subscriber(open_store(url), KEYS, "solver")
    assert torch.equal(late.fetch(late.newest()).tensors["a"], weights["a"])
    rival = Publisher(open_store(url), KEYS, "solver", anchor_every=3, block_elements=64)
    rival.publish(weights, step=4, incarnation=2, batch=3)
    with pytest.raises(Fenced):
        out.publish(weights, step=5, incarnation=1, batch=4)


def test_a_folder(tmp_path: Path) -> None:
    publish_and_follow(str(tmp_path))


@pytest.mark.s3
def test_an_s3_server(s3_store_url: str) -> None:
    publish_and_follow(s3_store_url)
