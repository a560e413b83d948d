"""The reference engine: its log-probs are the model's, its versions are the truth, its draws belong to the request."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable

import pytest
import torch

from astraflow.raas.engine import Generation, GenerationRequest
from astraflow.raas.transformers_engine import TransformersEngine
from astraflow.weights.update import WeightUpdate
from storage.errors import DataError, EngineError, EpisodeError

pytestmark = pytest.mark.anyio

MakeModel = Callable[[int], torch.nn.Module]
UpdateOf = Callable[[torch.nn.Module, int], WeightUpdate]


def ask(
    prompt: list[int], max_tokens: int = 8, *, stop: int = -1, seed: int = 0, temperature: float = 1.0
) -> GenerationRequest:
    return GenerationRequest("p", tuple(prompt), max_tokens, frozenset([stop]), temperature, seed)


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(3, 128) for _ in range(rng.randrange(1, 12))] for _ in range(count)]


def reference(
    model: torch.nn.Module, prompt: list[int], sampled: list[int], temperature: float, shift: int = 0
) -> list[float]:
    """Log-probs of ``sampled`` from one plain forward pass over the whole sequence."""
    ids = torch.tensor([prompt + sampled])
    with torch.inference_mode():
        logprobs = torch.log_softmax(model(input_ids=ids).logits[0].float() / temperature, -1)
    first = len(prompt) - 1 + shift
    return [float(logprobs[first + i, token]) for i, token in enumerate(sampled[: len(sampled) - max(shift, 0)])]


async def generate(engine: TransformersEngine, requests: list[GenerationRequest]) -> list[Generation]:
    return list(await asyncio.gather(*(engine.generate(request) for request in requests)))


def worst(pairs: list[tuple[float, float]]) -> float:
    return max(abs(a - b) for a, b in pairs)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("max_batch", [64, 5])
async def test_logprobs_are_those_of_a_plain_forward_pass(
    make_model: MakeModel, update_of: UpdateOf, temperature: float, max_batch: int
) -> None:
    """Left padding, KV cache, merging of newcomers and compaction change nothing; labels off by one would."""
    engine = TransformersEngine(make_model(1), max_batch=max_batch)
    await engine.load(update_of(make_model(2), 0))
    lengths = random.Random(3)
    requests = [ask(p, lengths.randrange(1, 20), seed=i, temperature=temperature) for i, p in enumerate(prompts(24))]
    answers = await generate(engine, requests)
    await engine.close()
    model = make_model(2)
    right, shifted = [], []
    for request, answer in zip(requests, answers, strict=True):
        assert len(answer.token_ids) == request.max_tokens == len(answer.logprobs)
        assert answer.finish_reason == "length"
        prompt = list(request.prompt_ids)
        right += zip(answer.logprobs, reference(model, prompt, answer.token_ids, temperature), strict=True)
        off = reference(model, prompt, answer.token_ids, temperature, shift=1)
        shifted += zip(answer.logprobs[: len(off)], off, strict=True)
    assert worst(right) < 1e-5
    assert worst(shifted) > 1e-2


async def test_a_request_draws_the_same_tokens_in_any_company(qwen3: MakeModel, update_of: UpdateOf) -> None:
    async def play(max_batch: int, order: int) -> list[list[int]]:
        engine = TransformersEngine(qwen3(1), max_batch=max_batch)
        await engine.load(update_of(qwen3(1), 0))
        requests = [ask(prompt, 6 + i % 5, seed=100 + i) for i, prompt in enumerate(prompts(12))]
        answers = await generate(engine, requests[::order])
        await engine.close()
        return [answer.token_ids for answer in answers][::order]

    together = await play(64, 1)
    assert together == await play(1, 1)
    assert together == await play(3, -1)


async def test_other_seeds_draw_other_tokens_and_zero_temperature_draws_none(
    qwen3: MakeModel, update_of: UpdateOf
) -> None:
    engine = TransformersEngine(qwen3(1))
    await engine.load(update_of(qwen3(1), 0))
    prompt = [5, 6, 7]
    sampled = await generate(engine, [ask(prompt, 12, seed=s) for s in range(6)])
    greedy = await generate(engine, [ask(prompt, 4, seed=s, temperature=0) for s in range(3)])
    await engine.close()
    assert len({tuple(answer.token_ids) for answer in sampled}) == 6
    assert len({tuple(answer.token_ids) for answer in greedy}) == 1
    model = qwen3(1).requires_grad_(False)
    ids = torch.tensor([prompt])
    for token, logprob in zip(greedy[0].token_ids, greedy[0].logprobs, strict=True):
        expected = torch.log_softmax(model(input_ids=ids).logits[0, -1], -1)
        assert token == int(expected.argmax())
        assert math.isclose(logprob, float(expected[token]), abs_tol=1e-5)
        ids = torch.cat([ids, torch.tensor([[token]])], 1)


async def test_stop_tokens_and_max_tokens_end_an_answer(qwen3: MakeModel, update_of: UpdateOf) -> None:
    engine = TransformersEngine(qwen3(1))
    await engine.load(update_of(qwen3(1), 0))
    [free] = await generate(engine, [ask([5, 6], 10, seed=4)])
    stop = free.token_ids[3]
    first = free.token_ids.index(stop)
    [stopped, one] = await generate(engine, [ask([5, 6], 10, seed=4, stop=stop), ask([5, 6], 1, seed=4)])
    await engine.close()
    assert stopped.token_ids == free.token_ids[: first + 1]
    assert (stopped.finish_reason, one.finish_reason, one.token_ids) == ("stop", "length", free.token_ids[:1])


async def test_what_the_context_cannot_hold(qwen3: MakeModel, update_of: UpdateOf) -> None:
    engine = TransformersEngine(qwen3(1), max_context=16)
    await engine.load(update_of(qwen3(1), 0))
    [cut] = await generate(engine, [ask([5] * 12, 10)])
    assert len(cut.token_ids) == 4
    for prompt, kind in (([5] * 16, "too_long"), ([], "empty_prompt")):
        with pytest.raises(EpisodeError) as caught:
            await engine.generate(ask(prompt))
        assert caught.value.kind == kind
    await engine.close()


def speaking(model: torch.nn.Module, token: int) -> torch.nn.Module:
    """The model made to say ``token`` for ever: weights that encode the version."""
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.model.norm.weight.zero_()
        model.model.norm.weight[0] = 1.0
        model.model.embed_tokens.weight[:, 0] = 1.0
        model.lm_head.weight[token, 0] = 100.0
    return model


@pytest.mark.parametrize("mode", ["continue", "finish", "abort"])
async def test_every_token_says_the_version_that_drew_it(mode: str, llama: MakeModel, update_of: UpdateOf) -> None:
    engine = TransformersEngine(llama(1), update=mode, max_batch=8, max_context=10**6)  # type: ignore[arg-type]
    await engine.load(update_of(speaking(llama(1), 10), 0))
    slow = [asyncio.create_task(engine.generate(ask([3 + i], 60, seed=i))) for i in range(4)]
    for version in range(1, 8):
        await asyncio.sleep(0.01)
        await engine.load(update_of(speaking(llama(1), 10 + version), version))
        assert engine.version == version
    late = await engine.generate(ask([9], 3))
    answers = [*await asyncio.gather(*slow), late]
    await engine.close()
    for answer in answers:
        assert [token - 10 for token in answer.token_ids] == answer.versions
        assert answer.versions == sorted(answer.versions)
        if mode == "finish":
            assert len(set(answer.versions)) == 1
    assert set(late.versions) == {7}


async def gated(
    engine: TransformersEngine, model: torch.nn.Module, after: int
) -> tuple[asyncio.Event, Callable[[], None]]:
    """Stop the worker before its forward pass number ``after``; returns an event that it is there, and its release."""
    import threading

    loop, there, go, count = asyncio.get_running_loop(), asyncio.Event(), threading.Event(), [0]

    def wait(*_: object) -> None:
        count[0] += 1
        if count[0] == after:
            loop.call_soon_threadsafe(there.set)
            assert go.wait(30)

    model.register_forward_pre_hook(wait)
    return there, go.set


@pytest.mark.parametrize(
    ("mode", "versions"),
    [("continue", [0, 0, 0, 1, 1, 1]), ("finish", [0, 0, 0, 0, 0, 0]), ("abort", [1, 1, 1, 1, 1, 1])],
)
async def test_an_update_between_two_decode_steps(
    mode: str, versions: list[int], qwen3: MakeModel, update_of: UpdateOf
) -> None:
    model = qwen3(1)
    engine = TransformersEngine(model, update=mode)  # type: ignore[arg-type]
    await engine.load(update_of(qwen3(1), 0))
    there, release = await gated(engine, model, 3)  # the third token is being computed
    answering = asyncio.create_task(engine.generate(ask([5, 6, 7], 6)))
    await there.wait()
    loading = asyncio.create_task(engine.load(update_of(qwen3(2), 1)))
    await asyncio.sleep(0)
    newcomer = asyncio.create_task(engine.generate(ask([8, 9], 2)))
    await asyncio.sleep(0)
    release()
    answer, other, _ = await asyncio.gather(answering, newcomer, loading)
    await engine.close()
    assert answer.versions == versions
    assert other.versions == [1, 1]
    if mode == "abort":  # one version: exactly what the new weights would have said alone
        expected = reference(qwen3(2), [5, 6, 7], answer.token_ids, 1.0)
        assert worst(list(zip(answer.logprobs, expected, strict=True))) < 1e-5


async def test_an_update_that_does_not_fit_changes_nothing(qwen3: MakeModel, update_of: UpdateOf) -> None:
    engine = TransformersEngine(qwen3(1))
    await engine.load(update_of(qwen3(1), 0))
    [before] = await generate(engine, [ask([5, 6], 5)])
    good = update_of(qwen3(2), 1)
    name = "model.norm.weight"
    for tensors in (
        {**good.tensors, name: torch.zeros(3)},
        {**good.tensors, "extra": torch.zeros(3)},
        {key: value for key, value in good.tensors.items() if key != name},
    ):
        with pytest.raises(DataError) as caught:
            await engine.load(WeightUpdate("p", 1, 1, "", tensors, frozenset(tensors), 0))
        assert caught.value.kind == "shape"
        assert engine.version == 0
    assert (await generate(engine, [ask([5, 6], 5)]))[0].token_ids == before.token_ids
    # After a refused update «changed» may name too little: the engine takes everything.
    await engine.load(WeightUpdate("p", 1, 1, "", good.tensors, frozenset(), 0))
    [after] = await generate(engine, [ask([5, 6], 5)])
    await engine.close()
    expected = reference(qwen3(2), [5, 6], after.token_ids, 1.0)
    assert worst(list(zip(after.logprobs, expected, strict=True))) < 1e-5


async def test_only_changed_tensors_are_copied(qwen3: MakeModel, update_of: UpdateOf) -> None:
    engine = TransformersEngine(qwen3(1))
    await engine.load(update_of(qwen3(1), 0))
    tensors = update_of(qwen3(2), 1).tensors
    await engine.load(WeightUpdate("p", 1, 1, "", tensors, frozenset(["model.norm.weight"]), 0))
    [answer] = await generate(engine, [ask([5, 6], 5)])
    await engine.close()
    expected = reference(qwen3(1), [5, 6], answer.token_ids, 1.0)  # the norm is all ones in both
    assert worst(list(zip(answer.logprobs, expected, strict=True))) < 1e-5


async def test_a_dead_worker_tells_every_waiter(qwen3: MakeModel, update_of: UpdateOf) -> None:
    model = qwen3(1)
    engine = TransformersEngine(model, max_batch=2)
    await engine.load(update_of(qwen3(1), 0))

    def die(*_: object) -> None:
        raise MemoryError("no memory")

    model.register_forward_pre_hook(die)
    results = await asyncio.gather(*(engine.generate(ask([5])) for _ in range(6)), return_exceptions=True)
    assert [type(result) for result in results] == [EngineError] * 6
    assert {result.kind for result in results if isinstance(result, EngineError)} == {"died"}
    with pytest.raises(EngineError):
        await engine.generate(ask([5]))
    with pytest.raises(EngineError):
        await engine.load(update_of(qwen3(1), 1))
    await engine.close()


async def test_close_ends_waiters_and_requests_before_the_first_version_wait(qwen3: MakeModel) -> None:
    engine = TransformersEngine(qwen3(1))
    waiting = asyncio.create_task(engine.generate(ask([5])))
    await asyncio.sleep(0.02)
    assert not waiting.done()
    await engine.close()
    with pytest.raises(EngineError):
        await waiting


async def test_a_cancelled_request_leaves_the_batch(qwen3: MakeModel, update_of: UpdateOf) -> None:
    model = qwen3(1)
    engine = TransformersEngine(model, max_batch=1)
    await engine.load(update_of(qwen3(1), 0))
    there, release = await gated(engine, model, 2)
    endless = asyncio.create_task(engine.generate(ask([5], 10**6)))
    await there.wait()
    endless.cancel()
    await asyncio.gather(endless, return_exceptions=True)
    release()
    answer = await asyncio.wait_for(engine.generate(ask([6], 2)), 30)
    await engine.close()
    assert len(answer.token_ids) == 2
