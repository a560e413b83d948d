"""Each loss against a scalar loop written from its paper's formula, and what masks and extremes do."""

from __future__ import annotations

import math

import pytest
import torch

from astraflow.config import Component
from astraflow.trainer.losses import Cispo, Grpo, Gspo, load_loss, row_weights, weighted_sum
from storage.errors import ConfigError

B, T = 5, 7


def batch(seed=0, spread=0.5):
    generator = torch.Generator().manual_seed(seed)
    old = -torch.rand(B, T, generator=generator) * 3
    new = (old + spread * torch.randn(B, T, generator=generator)).requires_grad_()
    advantages = torch.tensor([1.5, -0.7, 0.0, 2.0, -1.2])
    mask = torch.rand(B, T, generator=generator) < 0.6
    mask[:, 0] = True
    return new, old, advantages, mask


def scalar_grpo(new, old, a, low, high, kl=0.0, dual=None):
    ratio = math.exp(new - old)
    loss = max(-a * ratio, -a * min(max(ratio, 1 - low), 1 + high))
    if dual is not None and a < 0:
        loss = min(loss, -a * dual)
    return loss + kl * (1 / ratio - 1 + math.log(ratio))


@pytest.mark.parametrize(("kl", "dual"), [(0.0, None), (0.1, None), (0.0, 1.5)])
def test_grpo_is_the_scalar_loop(kl, dual):
    new, old, advantages, mask = batch()
    result = Grpo(0.2, 0.28, kl, dual)(new, old, advantages, mask)
    for b in range(B):
        for t in range(T):
            if mask[b, t]:
                a = float(advantages[b])
                expected = scalar_grpo(new[b, t].item(), float(old[b, t]), a, 0.2, 0.28, kl, dual)
                assert result.loss[b, t].item() == pytest.approx(expected, rel=1e-5, abs=1e-6)
    assert not result.clipped[~mask].any()
    assert result.clipped.any()


def test_gspo_is_the_scalar_loop():
    new, old, advantages, mask = batch(spread=0.01)
    result = Gspo(3e-3, 4e-3)(new, old, advantages, mask)
    for b in range(B):
        logs = [float(new[b, t] - old[b, t]) for t in range(T) if mask[b, t]]
        ratio = math.exp(sum(logs) / len(logs))
        a = float(advantages[b])
        expected = max(-a * ratio, -a * min(max(ratio, 1 - 3e-3), 1 + 4e-3))
        for t in range(T):
            if mask[b, t]:
                assert result.loss[b, t].item() == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_cispo_is_the_scalar_loop_and_its_weight_has_no_gradient():
    new, old, advantages, mask = batch()
    loss = Cispo(clip_high=0.2)(new, old, advantages, mask).loss
    weighted_sum(loss, mask, torch.ones(B)).backward()
    for b in range(B):
        for t in range(T):
            a, weight = float(advantages[b]), min(math.exp(float(new[b, t] - old[b, t])), 1.2)
            if mask[b, t]:
                assert float(loss[b, t]) == pytest.approx(-a * weight * float(new[b, t]), rel=1e-5, abs=1e-6)
            assert float(new.grad[b, t]) == pytest.approx(-a * weight if mask[b, t] else 0.0, rel=1e-5, abs=1e-6)


@pytest.mark.parametrize("loss", [Grpo(), Grpo(kl=0.1), Grpo(dual_clip=3), Gspo(), Cispo()])
@pytest.mark.parametrize("junk", [100.0, -100.0, math.inf, math.nan])
def test_masked_entries_change_nothing_and_have_no_gradient(loss, junk):
    new, old, advantages, mask = batch()
    weights = row_weights(mask.sum(-1), "token", T)
    clean = weighted_sum(loss(new, old, advantages, mask).loss, mask, weights)
    clean.backward()
    spoiled_new = torch.where(mask, new.detach(), torch.full_like(new, junk)).requires_grad_()
    spoiled_old = torch.where(mask, old, torch.full_like(old, -junk))
    spoiled = weighted_sum(loss(spoiled_new, spoiled_old, advantages, mask).loss, mask, weights)
    spoiled.backward()
    assert float(spoiled) == float(clean)
    assert torch.equal(spoiled_new.grad, torch.where(mask, new.grad, torch.zeros_like(new)))


@pytest.mark.parametrize("loss", [Grpo(), Grpo(kl=0.1), Gspo(), Cispo()])
@pytest.mark.parametrize("gap", [100.0, -100.0, 1000.0])
def test_extreme_ratios_where_it_counts_stay_finite(loss, gap):
    _, old, advantages, mask = batch()
    shifted = (old + gap).requires_grad_()
    total = weighted_sum(loss(shifted, old, advantages, mask).loss, mask, torch.ones(B))
    total.backward()
    assert torch.isfinite(total) and torch.isfinite(shifted.grad).all()


def scalar_mean(loss, mask, mode, constant):
    rows = [[float(loss[b, t]) for t in range(T) if mask[b, t]] for b in range(B)]
    rows = [values for values in rows if values]
    if mode == "token":
        return sum(map(sum, rows)) / sum(map(len, rows))
    if mode == "sequence":
        return sum(sum(values) / len(values) for values in rows) / len(rows)
    return sum(map(sum, rows)) / (len(rows) * constant)


@pytest.mark.parametrize("mode", ["token", "sequence", "constant"])
def test_aggregation_is_the_scalar_mean_however_it_is_cut(mode):
    new, old, advantages, mask = batch()
    mask[3] = False  # a row without a trained token counts nowhere
    loss = Grpo()(new, old, advantages, mask).loss.detach()
    weights = row_weights(mask.sum(-1), mode, 16)
    whole = float(weighted_sum(loss, mask, weights))
    assert whole == pytest.approx(scalar_mean(loss, mask, mode, 16), rel=1e-5)
    cut = sum(float(weighted_sum(loss[rows], mask[rows], weights[rows])) for rows in ([0], [1, 4], [2, 3]))
    assert cut == pytest.approx(whole, rel=1e-5)


def test_row_weights_of_nothing_are_zero():
    for mode in ("token", "sequence", "constant"):
        assert row_weights(torch.tensor([0, 0]), mode, 4).tolist() == [0.0, 0.0]


def test_losses_are_found_by_name_or_import_path():
    assert load_loss(Component(name="grpo", options={"clip_high": 0.3})) == Grpo(clip_high=0.3)
    assert load_loss(Component(name="astraflow.trainer.losses:Cispo")) == Cispo()


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("grop", {}),
        ("no.such.module:Loss", {}),
        ("astraflow.trainer.losses:Nothing", {}),
        ("grpo", {"clip": 0.2}),
        ("grpo", {"clip_low": 2.0}),
        ("grpo", {"dual_clip": 1.0}),
    ],
)
def test_a_wrong_loss_is_a_config_error_with_its_key(name, options):
    with pytest.raises(ConfigError) as raised:
        load_loss(Component(name=name, options=options), key="policies.solver.trainer.loss")
    assert raised.value.where.startswith("policies.solver.trainer.loss") and raised.value.remedy


def test_a_loss_that_is_nan_where_masked_is_no_harm():
    values = torch.tensor([[1.0, -1.0]], requires_grad=True)
    mask = torch.tensor([[True, False]])
    total = weighted_sum(values.log(), mask, torch.ones(1))  # log(-1) is NaN
    total.backward()
    assert total.item() == 0.0 and values.grad[0, 0].item() == 1.0
