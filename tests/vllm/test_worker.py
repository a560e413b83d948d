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


def test_what_was_prepared_is_written_and_the_threads_come_back(tmp_path: Path) -> None:
    """Written by one thread, decoded by as many as before."""
    held, old, threads = llama(1), llama(2), torch.get_num_threads()
    new = nudge(old, 3)
    torch.set_num_threads(2)
    try:
        worker = worker_of(held)
        swap(worker, update_of(old, 0), tmp_path, whole=True)
        assert torch.get_num_threads() == 2
        first = worker.astraflow_digests()
        swap(worker, update_of(new, 1, old), tmp_path, whole=False)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(threads)
    assert worker.astraflow_digests() != first
    expected = dict(new.named_parameters())
    for name, tensor in held.named_parameters():
        assert torch.equal(tensor, expected[name]), name
