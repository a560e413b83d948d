"""Small models, and weights on their way to an engine."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from astraflow.weights.update import WeightUpdate

torch.set_num_threads(1)

SIZES = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def _qwen3(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=16, tie_word_embeddings=True)).eval()


def _llama(seed: int) -> torch.nn.Module:
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=False)).eval()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=[_qwen3, _llama], ids=["qwen3", "llama"])
def make_model(request: pytest.FixtureRequest) -> Callable[[int], torch.nn.Module]:
    """Builds a random model of 2 layers from a seed."""
    build: Callable[[int], torch.nn.Module] = request.param
    return build


@pytest.fixture
def qwen3() -> Callable[[int], torch.nn.Module]:
    return _qwen3


@pytest.fixture
def llama() -> Callable[[int], torch.nn.Module]:
    return _llama


@pytest.fixture
def update_of() -> Callable[[torch.nn.Module, int], WeightUpdate]:
    """A model's weights as an update."""

    def make(model: torch.nn.Module, version: int) -> WeightUpdate:
        tensors = {name: value.detach().clone() for name, value in model.state_dict().items()}
        return WeightUpdate("p", version, version, "", tensors, frozenset(tensors), 0)

    return make
