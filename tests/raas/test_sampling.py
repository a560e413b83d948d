"""From which tokens a row may draw, and that its log-prob is that of what it drew from."""

from __future__ import annotations

import asyncio
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from astraflow.raas.engine import GenerationRequest
from astraflow.raas.sampling import Support, sample
from astraflow.raas.transformers_engine import TransformersEngine
from storage.errors import EpisodeError
from tests.raas.conftest import SIZES, _qwen3

CPU = torch.device("cpu")


def asking(**settings: float | int | tuple[str, ...]) -> GenerationRequest:
    return GenerationRequest("p", (5, 6), 8, frozenset([-1]), **settings)  # type: ignore[arg-type]


def by_hand(logits: list[float], top_k: int, top_p: float, min_p: float) -> dict[int, float]:
    """Token -> probability, by a loop over the sorted tokens, cut as vLLM does: min-p, then top-k, then top-p."""
    likely = [i for i in range(len(logits)) if math.exp(logits[i] - max(logits)) >= min_p]
    ranked = sorted(likely, key=lambda i: (-logits[i], i))[: top_k or None]
    mass = sum(math.exp(logits[i]) for i in ranked)
    kept, seen = [], 0.0
    for i in ranked:
        if kept and seen >= top_p - 1e-9 and top_p < 1:
            break
        seen += math.exp(logits[i]) / mass
        kept.append(i)
    left = sum(math.exp(logits[i]) for i in kept)
    return {i: math.exp(logits[i]) / left for i in kept}


@given(
    rows=st.lists(
        st.tuples(
            st.lists(st.integers(-20, 20), min_size=9, max_size=9, unique=True),
            st.sampled_from([0, 1, 2, 5, 20]),
            st.sampled_from([1.0, 0.95, 0.5, 0.07]),
            st.sampled_from([0.0, 0.02, 0.3, 0.9]),
        ),
        min_size=1,
        max_size=4,
    )
)
@settings(max_examples=80, deadline=None)
def test_the_support_is_that_of_a_loop(rows: list[tuple[list[int], int, float, float]]) -> None:
    logits = torch.tensor([[x / 5 for x in values] for values, *_ in rows])
    support = Support.of([asking(top_k=k, top_p=p, min_p=m) for _, k, p, m in rows], CPU)
    if support is None:
        assert all((k, p, m) == (0, 1.0, 0.0) for _, k, p, m in rows)
        return
    cut = support.cut(torch.log_softmax(logits, -1))
    for row, (values, top_k, top_p, min_p) in zip(cut, rows, strict=True):
        expected = by_hand([x / 5 for x in values], top_k, top_p, min_p)
        found = {i: math.exp(p) for i, p in enumerate(row.tolist()) if p > -math.inf}
        assert found.keys() == expected.keys()
        assert all(abs(found[i] - expected[i]) < 1e-5 for i in found)


def test_draws_stay_in_the_support_and_follow_it() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]]).repeat(20000, 1)
    count = len(logits)
    support = Support.of([asking(top_k=2)] * count, CPU)
    uniform = torch.from_numpy(np.random.default_rng(0).random(count))
    ids, logprobs = sample(logits, torch.full((count,), 0.5), uniform, support)
    assert set(ids.tolist()) == {0, 1}
    share = math.exp(4) / (math.exp(4) + math.exp(2))
    assert abs((ids == 0).double().mean().item() - share) < 0.01
    assert abs(logprobs[ids == 0][0].item() - math.log(share)) < 1e-5


def test_one_row_changes_no_other() -> None:
    torch.manual_seed(0)
    logits, uniform = torch.randn(3, 50), torch.tensor([0.3, 0.6, 0.9], dtype=torch.float64)
    plain, warm = sample(logits, torch.ones(3), uniform), torch.ones(3)
    mixed = sample(logits, warm, uniform, Support.of([asking(), asking(top_k=1), asking()], CPU))
    for row in (0, 2):
        assert plain[0][row] == mixed[0][row]
        assert torch.allclose(plain[1][row], mixed[1][row], atol=1e-6)
    assert mixed[0][1] == logits[1].argmax() and mixed[1][1].abs() < 1e-6


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.anyio
@pytest.mark.parametrize("cuts", [{"top_p": 0.8, "top_k": 40, "min_p": 0.01}, {"min_p": 0.3}], ids=str)
async def test_logprobs_match_a_recompute_on_the_same_support(update_of, cuts) -> None:  # type: ignore[no-untyped-def]
    """Warm, and with a nucleus: the recorded log-probs are those of a plain pass over the sequence, cut alike."""
    engine = TransformersEngine(_qwen3(1))
    await engine.load(update_of(_qwen3(2), 0))
    request = GenerationRequest("p", (5, 6, 7), 20, frozenset([-1]), 0.7, 3, **cuts)
    answer = await engine.generate(request)
    await engine.close()
    with torch.inference_mode():
        logits = _qwen3(2)(input_ids=torch.tensor([[5, 6, 7, *answer.token_ids]])).logits[0, 2:-1].float()
    support = Support.of([request] * 20, CPU)
    assert support is not None
    expected = support.cut(torch.log_softmax(logits / 0.7, -1))
    found = torch.tensor(answer.logprobs)
    cut = expected.gather(1, torch.tensor(answer.token_ids)[:, None])[:, 0]
    whole = torch.log_softmax(logits / 0.7, -1).gather(1, torch.tensor(answer.token_ids)[:, None])[:, 0]
    assert (found - cut).abs().max() < 1e-5
    assert (found - whole).abs().max() > 1e-2  # the whole vocabulary is another distribution


@pytest.mark.anyio
async def test_min_p_leaves_out_what_is_far_less_likely_than_the_likeliest(update_of) -> None:  # type: ignore[no-untyped-def]
    """Of the whole vocabulary such tokens are drawn; with min_p none is, and at 1 only the likeliest is left."""
    engine = TransformersEngine(_qwen3(1))
    await engine.load(update_of(_qwen3(2), 0))
    with torch.inference_mode():
        logits = _qwen3(2)(input_ids=torch.tensor([[5, 6, 7]])).logits[0, -1].float()
    far = torch.nonzero(logits < logits.max() + math.log(0.5)).flatten().tolist()

    async def first_tokens(min_p: float) -> set[int]:
        asked = [GenerationRequest("p", (5, 6, 7), 1, frozenset([-1]), 1.0, s, min_p=min_p) for s in range(200)]
        return {answer.token_ids[0] for answer in await asyncio.gather(*map(engine.generate, asked))}

    free, cut, one = [await first_tokens(min_p) for min_p in (0.0, 0.5, 1.0)]
    await engine.close()
    assert free & set(far)
    assert cut and not cut & set(far)
    assert one == {int(logits.argmax())}


@pytest.mark.anyio
async def test_stop_texts_end_an_answer_across_tokens(update_of) -> None:  # type: ignore[no-untyped-def]
    def decode(ids):  # type: ignore[no-untyped-def]
        return "".join(chr(97 + i % 26) for i in ids)

    engine = TransformersEngine(_qwen3(1), decode=decode)
    await engine.load(update_of(_qwen3(1), 0))
    free = await engine.generate(asking(seed=4))
    text = decode(free.token_ids)
    stop = text[2:5]
    cut = await engine.generate(asking(seed=4, stop=("no such", stop)))
    end = text.find(stop) + 3
    assert (cut.token_ids, cut.finish_reason) == (free.token_ids[:end], "stop")
    told: list[int] = []
    streamed = await engine.generate(GenerationRequest("p", (5, 6), 8, frozenset([-1]), seed=4, progress=told.extend))
    assert told == streamed.token_ids == free.token_ids
    await engine.close()
    deaf = TransformersEngine(_qwen3(1))
    with pytest.raises(EpisodeError) as caught:
        await deaf.generate(asking(stop=("x",)))
    assert caught.value.kind == "unsupported"
    await deaf.close()
    assert SIZES["vocab_size"] == 128


@pytest.mark.anyio
async def test_what_is_streamed_is_kept_when_updates_throw_answers_away(update_of) -> None:  # type: ignore[no-untyped-def]
    engine = TransformersEngine(_qwen3(1), update="abort")
    await engine.load(update_of(_qwen3(1), 0))
    told: list[int] = []
    answer = await engine.generate(GenerationRequest("p", (5, 6), 8, frozenset([-1]), progress=told.extend))
    await engine.close()
    assert told == answer.token_ids[: len(told)]
