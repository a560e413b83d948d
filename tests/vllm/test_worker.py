"""The worker's part of an update, without an engine around it: what is prepared is written, whole or sparse."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from astraflow.raas.vllm_patch import write_patch
from astraflow.weights.update import WeightUpdate
from tests.vllm.conftest import llama, nudge, update_of

pytestmark = pytest.mark.vllm


class Model(torch.nn.Module):
    """Loads as an engine's model does."""

    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        mine = dict(self.inner.named_parameters())
        for name, tensor in weights:
            mine[name].data.copy_(tensor)


def worker_of(model: torch.nn.Module) -> Any:
    from astraflow.raas.vllm_worker import SparseUpdates

    worker = SparseUpdates()
    worker.model_runner = SimpleNamespace(get_model=lambda: Model(model))
    worker.device = torch.device("cpu")
    return worker


def swap(worker: Any, update: WeightUpdate, folder: Path, *, whole: bool) -> None:
    worker.astraflow_prepare(str(write_patch(update, folder, whole=whole).folder))
    worker._astraflow_preparing.join()
    assert worker.astraflow_prepared() == {}
    worker.astraflow_swap()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_was_prepared_is_written(tmp_path: Path, dtype: torch.dtype) -> None:
    held, old = llama(1).to(dtype), llama(2).to(dtype)
    new = nudge(old, 3)
    worker = worker_of(held)
    swap(worker, update_of(old, 0, dtype=dtype), tmp_path, whole=True)
    first = worker.astraflow_digests()
    sparse = update_of(new, 1, old, dtype)
    assert sparse.places.keys() == sparse.changed
    swap(worker, sparse, tmp_path, whole=False)
    assert worker.astraflow_digests() != first
    expected = dict(new.named_parameters())
    for name, tensor in held.named_parameters():
        assert torch.equal(tensor, expected[name]), name


def test_places_are_written_whatever_the_type() -> None:
    """Also what no arithmetic leaves alone: minus zero, and the bits of what is not a number."""
    from astraflow.raas.vllm_worker import _scatter

    places = torch.tensor([1, 4, 9])
    for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.float8_e4m3fn):
        memory, values = torch.ones(10).to(dtype), torch.tensor([-0.0, float("nan"), 2.5]).to(dtype)
        _scatter(memory, places, values)
        rest = torch.ones(10, dtype=torch.bool).index_fill(0, places, False)
        assert memory[rest].float().eq(1).all()
        assert memory.view(torch.uint8).view(10, -1)[places].tolist() == values.view(torch.uint8).view(3, -1).tolist()
