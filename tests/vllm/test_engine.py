"""The vLLM engine tells the truth: log-probs, versions, KV policy. Each check is shown a bug and must see it."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
import torch

from astraflow.raas.engine import Generation, GenerationRequest
from astraflow.raas.sampling import Support
from astraflow.raas.vllm_engine import VllmEngine
from astraflow.weights.update import WeightUpdate
from storage.errors import DataError, EpisodeError
from tests.vllm.conftest import expected_red, llama, nudge, update_of

pytestmark = [pytest.mark.anyio, pytest.mark.vllm]

EngineOf = Callable[..., VllmEngine]
CLOSE = 1e-5  # fp32; what traps ask for


def ask(prompt: Sequence[int], max_tokens: int = 8, *, stop_id: int = -1, **settings: object) -> GenerationRequest:
    stops = frozenset([stop_id]) if stop_id >= 0 else frozenset()
    return GenerationRequest("p", tuple(prompt), max_tokens, stops, **settings)  # type: ignore[arg-type]


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(3, 128) for _ in range(rng.randrange(1, 40))] for _ in range(count)]


async def generate(engine: VllmEngine, requests: Sequence[GenerationRequest]) -> list[Generation]:
    return list(await asyncio.gather(*(engine.generate(request) for request in requests)))


def distribution(logits: torch.Tensor, request: GenerationRequest) -> torch.Tensor:
    """Log-probs [T, V] a request draws from, written down plainly: first min-p, then top-k, then top-p."""
    logprobs = torch.log_softmax(logits.float() / (request.temperature or 1.0), -1)
    if request.min_p:
        least = logprobs.max(-1, keepdim=True).values + math.log(request.min_p)
        logprobs = torch.log_softmax(logprobs.masked_fill(logprobs < least, -torch.inf), -1)
    if request.top_k:
        least = logprobs.topk(request.top_k, -1).values[:, -1:]
        logprobs = torch.log_softmax(logprobs.masked_fill(logprobs < least, -torch.inf), -1)
    if request.top_p < 1:
        ordered, ids = logprobs.sort(-1, descending=True)
        before = ordered.exp().cumsum(-1) - ordered.exp()
        out = torch.zeros_like(logprobs, dtype=torch.bool).scatter(-1, ids, before >= request.top_p)
        logprobs = torch.log_softmax(logprobs.masked_fill(out, -torch.inf), -1)
    return logprobs


def reference(
    model: torch.nn.Module,
    request: GenerationRequest,
    ids: Sequence[int],
    shift: int = 0,
    support: Support | None = None,
) -> list[float]:
    """Log-probs of ``ids`` from one plain forward pass over the whole sequence; cut by ``support`` as trainers do."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([[*request.prompt_ids, *ids]])).logits[0]
    first = len(request.prompt_ids) - 1 + shift
    rows = distribution(logits[first : first + len(ids)], request)
    if support is not None:
        rows = support.cut(torch.log_softmax(logits[first : first + len(ids)].float() / request.temperature, -1))
    return [float(row[token]) for row, token in zip(rows, ids, strict=False)]


def assert_close(found: Sequence[float], expected: Sequence[float], within: float = CLOSE) -> None:
    assert len(found) == len(expected)
    assert max(abs(a - b) for a, b in zip(found, expected, strict=True)) < within


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.6},
        {"temperature": 1.3, "top_p": 0.8},
        {"top_k": 5},
        {"temperature": 1.2, "min_p": 0.2},
        {"min_p": 0.05, "top_k": 9, "top_p": 0.7},
        {"temperature": 0.0},
    ],
    ids=str,
)
async def test_logprobs_are_those_of_what_was_drawn_from(
    engine_of: EngineOf, versions: Iterator[int], settings: dict[str, float]
) -> None:
    """Trap 1: batched, with a KV cache, after any sampler setting. Labels off by one must be seen."""
    engine, model = engine_of(), llama(2)
    await engine.load(update_of(model, next(versions)))
    requests = [ask(p, 5 + i, seed=i, **settings) for i, p in enumerate(prompts(24))]
    answers = await generate(engine, requests)
    for request, answer in zip(requests, answers, strict=True):
        assert len(answer.token_ids) == len(answer.logprobs) == len(answer.versions) == request.max_tokens
        assert answer.finish_reason == "length"
        assert_close(answer.logprobs, reference(model, request, answer.token_ids))
        with expected_red():
            assert_close(answer.logprobs, reference(model, request, answer.token_ids, shift=1))
        if support := Support.of([request] * len(answer.token_ids), torch.device("cpu")):
            assert_close(answer.logprobs, reference(model, request, answer.token_ids, support=support))


async def test_seeds_stops_and_what_does_not_fit(engine_of: EngineOf, versions: Iterator[int]) -> None:
    engine = engine_of()
    await engine.load(update_of(llama(2), next(versions)))
    request = ask([5, 6, 7], 12, seed=2**64 - 5)
    first, again, other = await generate(engine, [request, request, ask([5, 6, 7], 12, seed=1)])
    assert first.token_ids == again.token_ids != other.token_ids
    stop = first.token_ids[4]
    [stopped] = await generate(engine, [ask([5, 6, 7], 12, seed=2**64 - 5, stop_id=stop)])
    assert stopped.token_ids == first.token_ids[: first.token_ids.index(stop) + 1]
    assert stopped.finish_reason == "stop"
    [cut] = await generate(engine, [ask([5] * 2040, 50)])
    assert len(cut.token_ids) == 8
    for prompt, kind in (([5] * 2048, "too_long"), ([], "empty_prompt")):
        with pytest.raises(EpisodeError) as caught:
            await engine.generate(ask(prompt))
        assert caught.value.kind == kind
    with pytest.raises(EpisodeError) as caught:
        await engine.generate(ask([5], top_p=2.0))
    assert caught.value.kind == "refused"


async def test_more_prompts_than_a_step_holds(engine_of: EngineOf, versions: Iterator[int]) -> None:
    """None is computed in pieces: vLLM's worker on CPUs would die of it, since the requests have seeds."""
    engine, model = engine_of(), llama(2)
    await engine.load(update_of(model, next(versions)))
    long = [[3 + (7 * i + j * j) % 120 for j in range(1500)] for i in range(6)]
    requests = [ask(prompt, 3, seed=i) for i, prompt in enumerate(long)]
    for request, answer in zip(requests, await generate(engine, requests), strict=True):
        assert_close(answer.logprobs, reference(model, request, answer.token_ids), 1e-4)


async def test_stop_texts_and_progress(engine_of: EngineOf, versions: Iterator[int]) -> None:
    """The tiny tokenizer knows ids 3 to 12 as digits."""
    engine = engine_of()
    await engine.load(update_of(speaking(7), next(versions)))
    told: list[int] = []
    [answer] = await generate(engine, [ask([4], 9, stop=("44",), progress=told.extend)])
    assert (answer.token_ids, answer.finish_reason, told) == ([7, 7], "stop", [7, 7])
    assert len(answer.logprobs) == len(answer.versions) == 2


async def test_min_p_leaves_out_what_is_far_less_likely(engine_of: EngineOf, versions: Iterator[int]) -> None:
    """Of the whole vocabulary such tokens are drawn; with min_p none is."""
    engine, model = engine_of(), llama(2)
    await engine.load(update_of(model, next(versions)))
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([[5, 6, 7]])).logits[0, -1].float()
    far = set(torch.nonzero(logits < logits.max() + math.log(0.5)).flatten().tolist())
    drawn = []
    for min_p in (0.0, 0.5):
        answers = await generate(engine, [ask([5, 6, 7], 1, seed=seed, min_p=min_p) for seed in range(100)])
        drawn.append({answer.token_ids[0] for answer in answers})
    free, cut = drawn
    assert free & far
    assert cut and not cut & far


def speaking(token: int) -> torch.nn.Module:
    """A model that says ``token`` for ever: weights that encode the version."""
    model = llama(1)
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.model.norm.weight.zero_()
        model.model.norm.weight[0] = 1.0
        model.model.embed_tokens.weight[:, 0] = 10.0
        model.lm_head.weight[token, 0] = 100.0
    return model


class LateLabel(VllmEngine):
    """The bug: tokens are labelled with the version before the one that drew them."""

    async def _label(self, version: int) -> None:
        await super()._label(version - 1)


async def versions_told(engine: VllmEngine, versions: Iterator[int], mode: str) -> None:
    """Trap 2: generations over seven updates, whose tokens say which weights drew them."""
    start = next(versions)
    await engine.load(update_of(speaking(10), start))
    slow = [asyncio.create_task(engine.generate(ask([3 + i], 300, seed=i))) for i in range(12)]  # four of them wait
    for number in range(1, 8):
        await asyncio.sleep(0.03)
        await engine.load(update_of(speaking(10 + number), next(versions)))
        assert engine.version == start + number
    answers = [*await asyncio.gather(*slow), await engine.generate(ask([9], 3))]  # all done: what follows only looks
    for answer in answers:
        assert [token - 10 for token in answer.token_ids] == [version - start for version in answer.versions]
        assert answer.versions == sorted(answer.versions)
        if mode == "finish":
            assert len(set(answer.versions)) == 1
    assert set(answers[-1].versions) == {start + 7}
    if mode == "continue":
        assert any(len(set(answer.versions)) > 1 for answer in answers), "no update came in mid-generation"


@pytest.mark.parametrize("kv", ["keep", "recompute"])
@pytest.mark.parametrize("mode", ["continue", "finish", "abort"])
async def test_every_token_says_the_version_that_drew_it(
    engine_of: EngineOf, versions: Iterator[int], mode: str, kv: str
) -> None:
    await versions_told(engine_of(update=mode, kv=kv), versions, mode)


async def test_a_late_label_would_be_seen(engine_of: EngineOf, versions: Iterator[int]) -> None:
    with expected_red():
        await versions_told(engine_of(LateLabel), versions, "continue")


async def started(engine: VllmEngine, request: GenerationRequest, tokens: int) -> asyncio.Task[Generation]:
    """A generation that has drawn ``tokens`` tokens, or a few more."""
    enough, count = asyncio.Event(), [0]

    def progress(ids: Sequence[int]) -> None:
        count[0] += len(ids)
        if count[0] >= tokens:
            enough.set()

    task = asyncio.create_task(engine.generate(replace(request, progress=progress)))
    await enough.wait()
    return task


def recomputed(
    old: torch.nn.Module, new: torch.nn.Module, request: GenerationRequest, ids: Sequence[int], drawn: int, kv: str
) -> list[float]:
    """Log-probs where the first ``drawn`` tokens are the old weights', under a KV policy."""
    first = reference(old, request, ids[:drawn])
    if kv == "recompute":
        return first + reference(new, request, ids)[drawn:]
    whole = [*request.prompt_ids, *ids]
    fed = len(request.prompt_ids) + drawn - 1  # the last token drawn is fed to the new weights
    with torch.inference_mode():
        cache = old(input_ids=torch.tensor([whole[:fed]]), use_cache=True).past_key_values
        logits = new(input_ids=torch.tensor([whole[fed:]]), past_key_values=cache, use_cache=True).logits[0]
    rows = distribution(logits[: len(ids) - drawn], request)
    return first + [float(row[token]) for row, token in zip(rows, ids[drawn:], strict=True)]


@pytest.mark.parametrize("kv", ["keep", "recompute"])
async def test_a_swap_in_mid_generation_has_the_declared_kv_policy(
    engine_of: EngineOf, versions: Iterator[int], kv: str
) -> None:
    """Trap 10: each token's log-prob is that of a recompute with its version; the other policy's is not."""
    engine, old = engine_of(kv=kv), llama(2)
    new = nudge(old, 5, share=0.2)
    before, after = next(versions), next(versions)
    await engine.load(update_of(old, before))
    request = ask([5, 6, 7, 8, 9], 400, seed=3)
    running = await started(engine, request, 10)
    await engine.load(update_of(new, after, old))
    answer = await running
    drawn = answer.versions.count(before)
    assert answer.versions == [before] * drawn + [after] * (400 - drawn)
    assert 10 <= drawn < 390
    assert_close(answer.logprobs, recomputed(old, new, request, answer.token_ids, drawn, kv), 1e-4)
    other = "keep" if kv == "recompute" else "recompute"
    with expected_red():
        assert_close(answer.logprobs, recomputed(old, new, request, answer.token_ids, drawn, other), 1e-4)


async def test_abort_gives_answers_of_one_version(engine_of: EngineOf, versions: Iterator[int]) -> None:
    engine, old = engine_of(update="abort"), llama(2)
    new = nudge(old, 5, share=0.2)
    await engine.load(update_of(old, next(versions)))
    slow = [asyncio.create_task(engine.generate(ask(p, 200, seed=i))) for i, p in enumerate(prompts(10))]
    await asyncio.sleep(0.2)
    assert not any(task.done() for task in slow)
    after = next(versions)
    await engine.load(update_of(new, after, old))
    for i, (prompt, answer) in enumerate(zip(prompts(10), await asyncio.gather(*slow), strict=True)):
        assert set(answer.versions) == {after}
        assert_close(answer.logprobs, reference(new, ask(prompt, 200, seed=i), answer.token_ids), 1e-4)


class NoSalt(VllmEngine):
    """The bug: with the KV cache kept, prefixes of old weights are found by new requests."""

    def _salt(self) -> str | None:
        return None


async def prefixes_apart(engine: VllmEngine, versions: Iterator[int], seed: int = 9) -> None:
    """The same long prompt, running, waiting and new, over an update: what the new version draws knows no old KV."""
    old = llama(2)
    new = nudge(old, 5, share=0.2)
    long = prompts(1, seed=seed)[0] * 40
    prompt = long[:900]
    await engine.load(update_of(old, next(versions)))
    running = await started(engine, ask(prompt, 300, seed=1), 3)
    crowd = [asyncio.create_task(engine.generate(ask(prompt, 40, seed=10 + i))) for i in range(14)]  # six wait
    after = next(versions)
    await engine.load(update_of(new, after, old))
    late = [asyncio.create_task(engine.generate(ask(prompt, 6, seed=50 + i))) for i in range(3)]
    answers = await asyncio.gather(*crowd, *late)
    await running
    seeds = [10 + i for i in range(14)] + [50 + i for i in range(3)]
    pure = [(seed, a) for seed, a in zip(seeds, answers, strict=True) if set(a.versions) == {after}]
    assert len(pure) >= 3
    for seed, answer in pure:
        request = ask(prompt, len(answer.token_ids), seed=seed)
        assert_close(answer.logprobs, reference(new, request, answer.token_ids), 1e-4)


@pytest.mark.parametrize("kv", ["keep", "recompute"])
async def test_the_prefix_cache_never_crosses_versions(engine_of: EngineOf, versions: Iterator[int], kv: str) -> None:
    await prefixes_apart(engine_of(kv=kv), versions)


async def test_a_prefix_that_crosses_would_be_seen(engine_of: EngineOf, versions: Iterator[int]) -> None:
    with expected_red():
        await prefixes_apart(engine_of(NoSalt), versions, seed=11)  # a prompt that no test before has left in the cache


async def test_an_update_that_does_not_fit_changes_nothing(engine_of: EngineOf, versions: Iterator[int]) -> None:
    engine, old = engine_of(), llama(2)
    start, bad = next(versions), next(versions)
    await engine.load(update_of(old, start))
    held = await engine.digests()
    good = update_of(nudge(old, 5), bad)
    name = "model.norm.weight"
    for tensors in (
        {**good.tensors, name: torch.zeros(3)},
        {**good.tensors, "model.extra.weight": torch.zeros(3)},
        {key: value for key, value in good.tensors.items() if key != name},
    ):
        with pytest.raises(DataError) as caught:
            await engine.load(WeightUpdate("p", bad, bad, "", tensors, frozenset(tensors), 0))
        assert caught.value.kind == "shape"
        assert engine.version == start
    assert await engine.digests() == held
    # After a refused update «changed» may name too little: the engine takes everything.
    await engine.load(WeightUpdate("p", bad, bad, "", good.tensors, frozenset(), 0))
    assert await engine.digests() != held
    [answer] = await generate(engine, [ask([5, 6], 5)])
    assert_close(answer.logprobs, reference(nudge(old, 5), ask([5, 6], 5), answer.token_ids))


async def test_a_cancelled_request_leaves_the_batch(engine_of: EngineOf, versions: Iterator[int]) -> None:
    engine = engine_of()
    await engine.load(update_of(llama(2), next(versions)))
    endless = [await started(engine, ask([5 + i], 2000), 2) for i in range(8)]  # all the places there are
    for task in endless:
        task.cancel()
    await asyncio.gather(*endless, return_exceptions=True)
    answer = await asyncio.wait_for(engine.generate(ask([6], 2)), 30)
    assert len(answer.token_ids) == 2
    assert not engine._jobs
