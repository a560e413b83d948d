"""One engine for most tests (its processes take half a minute to start), and models small enough for a CPU."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from astraflow.config import Pool
from astraflow.models import build_tiny_qwen3, load_tokenizer
from astraflow.raas.vllm_engine import VllmEngine
from astraflow.weights.update import WeightUpdate

SIZES: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "pad_token_id": 0,
}
FP32 = {"dtype": "float32", "max_model_len": 2048, "kv_cache_memory_bytes": 1 << 28}


def llama(seed: int) -> torch.nn.Module:
    """A model whose layers say much: an untied output layer, weights of size one."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=False, initializer_range=0.1)).eval()


def qwen3(seed: int) -> torch.nn.Module:
    """A model with tied embeddings and norms of its heads."""
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, tie_word_embeddings=True, initializer_range=0.1)).eval()


def save(model: torch.nn.Module, folder: Path) -> Path:
    """Write a model's folder, with the tiny tokenizer."""
    build_tiny_qwen3(folder, 0)
    model.save_pretrained(folder)  # type: ignore[operator]
    return folder


def update_of(
    model: torch.nn.Module, version: int, before: torch.nn.Module | None = None, dtype: torch.dtype = torch.float32
) -> WeightUpdate:
    """A model's weights as an update, tied names sharing one tensor; after ``before`` a sparse one."""
    tensors = _tensors(model, dtype)
    if before is None:
        return WeightUpdate("p", version, version, "", tensors, frozenset(tensors), 0)
    old = _tensors(before, dtype)
    places = {name: torch.nonzero((value != old[name]).reshape(-1)).reshape(-1) for name, value in tensors.items()}
    changed = frozenset(name for name, where in places.items() if len(where))
    return WeightUpdate("p", version, version, "", tensors, changed, 0, {name: places[name] for name in changed})


def _tensors(model: torch.nn.Module, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    shared: dict[int, torch.Tensor] = {}
    state = model.state_dict(keep_vars=True)
    return {name: shared.setdefault(t.data_ptr(), t.detach().to(dtype, copy=True)) for name, t in state.items()}


def nudge(model: torch.nn.Module, seed: int, share: float = 0.01) -> torch.nn.Module:
    """A copy of the model, ``share`` of whose weights are others."""
    import copy

    torch.manual_seed(seed)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weight in other.parameters():
            chosen = torch.rand_like(weight) < share
            weight[chosen] += 0.3 * torch.randn(int(chosen.sum()))
    return other


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def llama_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(llama(1), tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def qwen3_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save(qwen3(1), tmp_path_factory.mktemp("qwen3"))
    assert load_tokenizer(folder).eos_token_id == SIZES["eos_token_id"]
    return folder


@pytest.fixture(scope="session")
async def processes(llama_folder: Path, anyio_backend: str) -> AsyncIterator[VllmEngine]:
    """The engine of the untied model in fp32; tests use facades of it."""
    engine = await VllmEngine.start(llama_folder, Pool(engine="vllm", max_batch=8, options=FP32))
    yield engine
    await engine.close()


@pytest.fixture(scope="session")
def versions() -> Iterator[int]:
    """Version numbers of the session: a facade's are not reused, as a run's are not."""
    return itertools.count()


@pytest.fixture
def engine_of(processes: VllmEngine) -> Callable[..., VllmEngine]:
    """Another engine over the same processes, with other rules."""

    def make(kind: type[VllmEngine] = VllmEngine, **rules: Any) -> VllmEngine:
        return kind(processes._llm, Pool(engine="vllm", options=FP32, **rules), processes._scratch)

    return make


@contextlib.contextmanager
def expected_red() -> Iterator[None]:
    """The check inside must fail: the bug it is there for was put in."""
    with pytest.raises(AssertionError):
        yield
