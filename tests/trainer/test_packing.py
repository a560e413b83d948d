"""Packed, padded, cut small or trained in several updates: the same log-probs, losses and gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from astraflow.models import load_causal_lm
from astraflow.raas.sampling import Support
from astraflow.trainer.batch import fill_packs, micro_batches
from astraflow.trainer.logprobs import logprobs_of, micro_logprobs
from astraflow.trainer.losses import IcePop, M2po
from astraflow.trainer.step import train_batch
from tests.trainer.samples import first_moments, learner, loaded, parameters, sequence


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 200))
def test_full_packs_hold_every_row_once_within_the_budget(lengths, budget):
    packs = fill_packs(lengths, budget)
    assert sorted(row for pack in packs for row in pack) == list(range(len(lengths)))
    assert all(len(pack) == 1 or sum(lengths[row] for row in pack) <= budget for pack in packs)


def alone(model, row):
    """Log-probs and entropies of a sequence's response, from a plain forward pass of it alone."""
    ids = torch.tensor([[*row.prompt_ids, *row.response_ids]], dtype=torch.int64)
    with torch.no_grad():
        scaled = torch.log_softmax(model(input_ids=ids).logits[0, len(row.prompt_ids) - 1 : -1] / row.temperature, -1)
    if row.top_p < 1 or row.top_k:
        size = len(row.response_ids)
        support = Support(torch.tensor([row.top_k] * size), torch.tensor([row.top_p] * size), torch.zeros(size))
        kept = torch.isfinite(support.cut(scaled))
        kept[torch.arange(size), torch.from_numpy(row.response_ids).long()] = True
        scaled = torch.log_softmax(scaled.masked_fill(~kept, -torch.inf), -1)
    chosen = scaled[torch.arange(len(row.response_ids)), torch.from_numpy(row.response_ids).long()]
    entropy = -(scaled.exp() * scaled.clamp(min=-1e30)).sum(-1)
    return chosen, entropy


@pytest.mark.parametrize("packing", ["padded", "packed"])
@pytest.mark.parametrize("changes", [{}, {"temperature": 0.6}, {"temperature": 0.8, "top_p": 0.7}, {"top_k": 5}])
def test_logprobs_and_entropies_are_those_of_each_sequence_alone(model_folder, packing, changes):
    model = load_causal_lm(model_folder, torch.float32)
    rng = np.random.default_rng(0)
    rows = [sequence(rng, **changes) for _ in range(9)]
    shifted = 0.0
    for micro in micro_batches(rows, [0.0] * 9, torch.zeros(9), pad_id=0, budget_tokens=60, packing=packing):
        with torch.no_grad():
            logprobs, entropy = micro_logprobs(model, micro)
        assert not logprobs[~micro.mask].any()
        for line, number in enumerate(micro.rows):
            mask = torch.from_numpy(rows[number].loss_mask)
            wanted, spread = alone(model, rows[number])
            torch.testing.assert_close(logprobs[line][micro.mask[line]], wanted[mask], atol=1e-5, rtol=0)
            torch.testing.assert_close(entropy[line][micro.mask[line]], spread[mask], atol=1e-4, rtol=0)
            old = rows[number].logprobs[rows[number].loss_mask]
            assert micro.old_logprobs[line][micro.mask[line]].tolist() == old.tolist()
            shifted = max(shifted, float((logprobs[line][micro.mask[line]] - wanted.roll(1)[mask]).abs().max()))
    assert shifted > 1e-2  # the test would see labels that are shifted by one


def test_logprobs_have_the_gradient_of_log_softmax():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 4, 11, generator=generator, requires_grad=True)
    tokens = torch.randint(0, 11, (3, 4), generator=generator)
    temperatures = torch.tensor([1.0, 0.5, 2.0])
    up = torch.randn(3, 4, generator=generator)
    found = torch.autograd.grad((logprobs_of(logits, tokens, temperatures) * up).sum(), logits)[0]
    plain = torch.log_softmax(logits / temperatures[:, None, None], -1).gather(-1, tokens[..., None])[..., 0]
    wanted = torch.autograd.grad((plain * up).sum(), logits)[0]
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("aggregate", ["token", "sequence", "constant"])
def test_one_gradient_packed_and_padded(model_folder, aggregate):
    batch = loaded(np.random.default_rng(1))
    found = []
    for packing, budget in (("padded", 16384), ("packed", 16384), ("packed", 40), ("padded", 40)):
        pupil = learner(model_folder, aggregate=aggregate, packing=packing, micro_batch_tokens=budget)
        train_batch(pupil, batch)
        found.append(first_moments(pupil))
    assert found[0].abs().max() > 1e-4
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], atol=1e-7, rtol=1e-4)


def test_layers_that_are_computed_twice_give_the_same_gradient(model_folder):
    from astraflow.trainer.parallel import compute_layers_twice, decoder_layers

    batch = loaded(np.random.default_rng(1))
    pupil, other = learner(model_folder), learner(model_folder)
    assert len(decoder_layers(other.model)) == 2
    calls = []
    compute_layers_twice(other.model)
    decoder_layers(other.model)[0].self_attn.register_forward_hook(lambda *_: calls.append(1))
    train_batch(pupil, batch)
    train_batch(other, batch)
    assert len(calls) == 2
    torch.testing.assert_close(first_moments(other), first_moments(pupil), atol=1e-8, rtol=1e-5)


def test_bf16_arithmetic_keeps_fp32_masters(model_folder):
    batch = loaded(np.random.default_rng(1))
    pupil, other = learner(model_folder), learner(model_folder, compute="bfloat16")
    exact, rough = train_batch(pupil, batch).metrics, train_batch(other, batch).metrics
    assert {parameter.dtype for parameter in other.model.parameters()} == {torch.float32}
    assert rough["loss"] == pytest.approx(exact["loss"], abs=0.05) and rough["loss"] != exact["loss"]
    one, two = first_moments(pupil), first_moments(other)
    assert torch.nn.functional.cosine_similarity(one, two, dim=0) > 0.99


@pytest.mark.parametrize("loss", [IcePop(), M2po(threshold=0.05)])
def test_several_updates_a_batch_take_its_first_policy_as_the_proximal_one(model_folder, loss):
    batch = loaded(np.random.default_rng(5))
    one, four = learner(model_folder, loss), learner(model_folder, loss, minibatches=4)
    single, several = train_batch(one, batch), train_batch(four, batch)
    assert one.step == four.step == 1
    steps = {int(state["step"]) for state in four.optimizer.state.values()}
    assert steps == {4} and not torch.equal(parameters(one), parameters(four))
    assert several.metrics["trained_tokens"] == single.metrics["trained_tokens"]
    assert several.metrics["micro_batches"] == 4


def test_m2po_gives_one_choice_however_the_batch_is_cut(model_folder):
    batch = loaded(np.random.default_rng(7))
    found = []
    for budget in (16384, 30):
        pupil = learner(model_folder, M2po(threshold=0.02), micro_batch_tokens=budget)
        metrics = train_batch(pupil, batch).metrics
        found.append((first_moments(pupil), metrics["trained_share"]))
    assert 0 < found[0][1] < 1 and found[0][1] == found[1][1]
    torch.testing.assert_close(found[1][0], found[0][0], atol=1e-7, rtol=1e-4)


def test_ranks_get_as_many_passes_and_all_rows_between_them():
    rng = np.random.default_rng(2)
    rows = [sequence(rng) for _ in range(7)]
    for packing in ("padded", "packed"):
        shares = [
            micro_batches(rows, [1.0] * 7, torch.ones(7), pad_id=0, budget_tokens=25, packing=packing, share=(r, 3))
            for r in range(3)
        ]
        assert len({len(share) for share in shares}) == 1
        assert sorted(row for share in shares for micro in share for row in micro.rows) == list(range(7))
        idle = [micro for share in shares for micro in share if micro.is_idle]
        assert all(not micro.mask.any() and not micro.wanted.any() for micro in idle)


def test_advantages_of_tokens_stand_at_their_tokens():
    rng = np.random.default_rng(4)
    rows = [sequence(rng) for _ in range(3)]
    values = [rng.standard_normal(len(row.response_ids)) for row in rows]
    for packing in ("padded", "packed"):
        (micro,) = micro_batches(rows, values, torch.ones(3), pad_id=0, budget_tokens=999, packing=packing)
        for line, number in enumerate(micro.rows):
            mask = rows[number].loss_mask
            found = micro.advantages[line][micro.mask[line]]
            np.testing.assert_allclose(found, values[number][mask].astype(np.float32))
