"""The reference engine over an update: versions and log-probs are of the weights that drew each token.

Each check is shown an engine with the bug that it is there for, and must see it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import torch

from astraflow.raas.engine import Generation
from astraflow.raas.transformers_engine import TransformersEngine
from astraflow.weights.update import WeightUpdate
from tests.raas.test_transformers_engine import ask, gated, reference, speaking, worst

pytestmark = pytest.mark.anyio

MakeModel = Callable[[int], torch.nn.Module]
UpdateOf = Callable[[torch.nn.Module, int], WeightUpdate]
PROMPT = [5, 6, 7]
DRAWN = 3  # tokens of the old weights, of 8


class SaysTheVersionBefore(TransformersEngine):
    """The bug: tokens are labelled with the version before the one that drew them."""

    def _deliver_done(self) -> None:
        for row in self._running:
            if row.done:
                row.versions[:] = [max(0, version - 1) for version in row.versions]
        super()._deliver_done()


class LabelsBeforeItLoads(TransformersEngine):
    """The bug: the new version is said a step before its weights are there."""

    _is_early = False

    def _maybe_load(self, decoder: Any) -> None:
        if self._load is not None and self._running and not self._is_early:
            self._is_early, self.version = True, self._load.update.version
            return
        super()._maybe_load(decoder)


class ForgetsTheCache(TransformersEngine):
    """The bug: what is kept of running generations is not what the declared policy says, but nothing at all."""

    def _maybe_load(self, decoder: Any) -> None:
        loads = self._load is not None
        super()._maybe_load(decoder)
        if loads and decoder.rows:
            for layer in decoder._batch.cache.layers:
                layer.keys.zero_()
                layer.values.zero_()


async def versions_told(engine: TransformersEngine, llama: MakeModel, update_of: UpdateOf) -> None:
    """Trap 2: weights that say which they are; an update comes in the middle of an answer."""
    model = engine._model
    await engine.load(update_of(speaking(llama(1), 10), 0))
    there, release = await gated(engine, model, DRAWN)
    answering = asyncio.create_task(engine.generate(ask(PROMPT, 8)))
    await there.wait()
    loading = asyncio.create_task(engine.load(update_of(speaking(llama(1), 11), 1)))
    await asyncio.sleep(0)
    release()
    answer, _ = await asyncio.gather(answering, loading)
    assert [token - 10 for token in answer.token_ids] == answer.versions
    assert answer.versions == [0] * DRAWN + [1] * (8 - DRAWN)


async def swapped(engine: TransformersEngine, qwen3: MakeModel, update_of: UpdateOf) -> Generation:
    """An answer whose weights change behind its third token."""
    model = engine._model
    await engine.load(update_of(qwen3(1), 0))
    there, release = await gated(engine, model, DRAWN)
    answering = asyncio.create_task(engine.generate(ask(PROMPT, 8)))
    await there.wait()
    loading = asyncio.create_task(engine.load(update_of(qwen3(2), 1)))
    await asyncio.sleep(0)
    release()
    answer, _ = await asyncio.gather(answering, loading)
    return answer


def recomputed(qwen3: MakeModel, ids: list[int], drawn: int, *, keep: bool) -> list[float]:
    """Log-probs where the old weights drew the first tokens, with their KV cache kept or computed again."""
    old, new = qwen3(1), qwen3(2)
    first = reference(old, PROMPT, ids[:drawn], 1.0)
    if not keep:
        return first + reference(new, PROMPT, ids, 1.0)[drawn:]
    whole = [*PROMPT, *ids]
    fed = len(PROMPT) + drawn - 1  # the last token drawn is fed to the new weights
    with torch.inference_mode():
        cache = old(input_ids=torch.tensor([whole[:fed]]), use_cache=True).past_key_values
        logits = new(input_ids=torch.tensor([whole[fed:]]), past_key_values=cache, use_cache=True).logits[0]
    rows = torch.log_softmax(logits[: len(ids) - drawn].float(), -1)
    return first + [float(row[token]) for row, token in zip(rows, ids[drawn:], strict=True)]


async def kept_cache(engine: TransformersEngine, qwen3: MakeModel, update_of: UpdateOf) -> None:
    """Trap 10: each token's log-prob is that of a recompute with its version over the cache that was kept."""
    answer = await swapped(engine, qwen3, update_of)
    drawn = answer.versions.count(0)
    assert answer.versions == [0] * drawn + [1] * (8 - drawn)
    assert 0 < drawn < 8
    kept, anew = (recomputed(qwen3, answer.token_ids, drawn, keep=keep) for keep in (True, False))
    assert worst(list(zip(answer.logprobs, kept, strict=True))) < 1e-5
    assert worst(list(zip(answer.logprobs, anew, strict=True))) > 1e-3  # the other policy is told from this one


async def closed_after(engine: TransformersEngine, work: Any) -> None:
    try:
        await work
    finally:
        await engine.close()


async def test_versions_over_an_update(llama: MakeModel, update_of: UpdateOf) -> None:
    engine = TransformersEngine(llama(1))
    await closed_after(engine, versions_told(engine, llama, update_of))


@pytest.mark.parametrize("bug", [SaysTheVersionBefore, LabelsBeforeItLoads])
async def test_a_wrong_version_would_be_seen(
    bug: type[TransformersEngine], llama: MakeModel, update_of: UpdateOf
) -> None:
    engine = bug(llama(1))
    with pytest.raises(AssertionError):
        await closed_after(engine, versions_told(engine, llama, update_of))


async def test_logprobs_over_an_update_are_those_of_the_kept_cache(qwen3: MakeModel, update_of: UpdateOf) -> None:
    engine = TransformersEngine(qwen3(1))
    await closed_after(engine, kept_cache(engine, qwen3, update_of))


@pytest.mark.parametrize("bug", [LabelsBeforeItLoads, ForgetsTheCache])
async def test_weights_and_caches_of_other_versions_would_be_seen(
    bug: type[TransformersEngine], qwen3: MakeModel, update_of: UpdateOf
) -> None:
    engine = bug(qwen3(1))
    with pytest.raises(AssertionError):
        await closed_after(engine, kept_cache(engine, qwen3, update_of))
