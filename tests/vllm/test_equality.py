"""Weights updated in place are, to the bit, those of a fresh load: parameters, tokens and log-probs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from astraflow.config import Pool
from astraflow.raas import vllm_start
from astraflow.raas.engine import Generation
from astraflow.raas.vllm_engine import VllmEngine
from astraflow.weights.publisher import Publisher
from astraflow.weights.subscriber import Subscriber
from storage.keys import RunKeys
from storage.memory import MemoryStore
from tests.vllm.conftest import nudge, qwen3, save
from tests.vllm.test_engine import ask, generate, prompts

pytestmark = [pytest.mark.anyio, pytest.mark.vllm]

BF16 = {"dtype": "bfloat16", "max_model_len": 512, "kv_cache_memory_bytes": 1 << 27}
UPDATES = 6


async def answers(engine: VllmEngine) -> list[Generation]:
    """Greedy and sampled answers, one after the other: the rounding depends on who is computed together."""
    found = []
    for i, prompt in enumerate(prompts(12)):
        found += await generate(engine, [ask(prompt, 24, seed=i, temperature=float(i % 3))])
    return found


class Fresh(VllmEngine):
    """The same engine with the weights that vLLM's own loader read from the model's folder."""

    @classmethod
    async def of(cls, folder: Path, scratch: Path, monkeypatch: pytest.MonkeyPatch) -> VllmEngine:
        arguments = vllm_start._arguments
        read: Any = lambda *given: {**arguments(*given), "load_format": "safetensors"}  # noqa: E731
        monkeypatch.setattr(vllm_start, "_arguments", read)
        engine = await cls.start(folder, Pool(engine="vllm", max_batch=8, options=BF16))
        await engine._label(UPDATES)
        engine._open.set()
        return engine


async def test_sparse_updates_equal_a_fresh_load(
    qwen3_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tied embeddings; published, subscribed to and applied as in a run, with one version passed over."""
    store, keys, model = MemoryStore(), RunKeys("test"), qwen3(1).to(torch.bfloat16)
    publisher = Publisher(store, keys, "p", anchor_every=64)
    subscriber = Subscriber(store, keys, "p")
    engine = await VllmEngine.start(qwen3_folder, Pool(engine="vllm", max_batch=8, options=BF16))
    try:
        sparse = 0
        for version in range(UPDATES + 1):
            publisher.publish(dict(model.state_dict()), step=version, incarnation=1, batch=version, skipped={})
            if version != 2:
                update = await asyncio.to_thread(subscriber.fetch, version)
                sparse += len(update.places)
                await engine.load(update)
            if version < UPDATES:
                model = nudge(model, version)
        assert "lm_head.weight" in update.tensors
        assert "model.embed_tokens.weight" in update.places
        assert sparse > 4 * len(update.tensors) // 2, "the updates were not sparse"
        updated, held = await answers(engine), await engine.digests()
        await engine.load(_whole(update))
        assert await engine.digests() == held, "a whole load of the same weights changes nothing"
    finally:
        await engine.close()
    fresh = await Fresh.of(save(model, tmp_path / "model"), tmp_path, monkeypatch)
    try:
        expected = await answers(fresh)
    finally:
        await fresh.close()
    assert len({tuple(answer.token_ids) for answer in updated}) > 8
    for mine, theirs in zip(updated, expected, strict=True):
        assert mine.token_ids == theirs.token_ids
        assert mine.logprobs == theirs.logprobs
        assert mine.versions == theirs.versions


async def test_two_ranks_hold_their_shards(qwen3_folder: Path) -> None:
    """Tensor parallelism: sparse updates leave each rank as a whole load does, and the model answers as one."""
    options = {**BF16, "dtype": "float32", "tensor_parallel_size": 2}
    old = qwen3(1)
    new = nudge(old, 3)
    from tests.vllm.conftest import update_of

    engine = await VllmEngine.start(qwen3_folder, Pool(engine="vllm", max_batch=8, options=options))
    try:
        await engine.load(update_of(old, 0))
        first = await engine.digests()
        await engine.load(update_of(new, 1, old))
        sparse = await engine.digests()
        request = ask([5, 6, 7], 20, seed=1)
        [answer] = await generate(engine, [request])
        await engine.load(_whole(update_of(new, 2)))
        assert await engine.digests() == sparse
    finally:
        await engine.close()
    assert len(first) == 2
    assert all(first[rank][name] != sparse[rank][name] for rank in range(2) for name in first[rank] if "proj" in name)
    assert first[0]["model.layers.0.self_attn.q_proj.weight"] != first[1]["model.layers.0.self_attn.q_proj.weight"]
    from tests.vllm.test_engine import assert_close, reference

    assert_close(answer.logprobs, reference(new, request, answer.token_ids), 1e-4)


def _whole(update: Any) -> Any:
    from dataclasses import replace

    return replace(update, changed=frozenset(update.tensors), places={})
