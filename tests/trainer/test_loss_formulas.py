"""Every loss equals a scalar loop, and its gradient finite differences of that loop."""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from astraflow.trainer.losses import LOSSES, Cispo, Decoupled, Grpo, Gspo, IcePop, M2po, Tis
from astraflow.trainer.proximal import TokensOfBatch
from astraflow.trainer.surrogate import reference_kl, row_weights, weighted_sum
from tests.trainer.scalar_losses import SCALAR, Token, m2po_kept

B, T, STEP = 5, 7, 1e-5
BUILT = {
    "grpo": Grpo(),
    "grpo_dual": Grpo(dual_clip=1.5),
    "grpo_kl": Grpo(kl=0.1),
    "gspo": Gspo(0.03, 0.04),
    "cispo": Cispo(clip_high=0.2),
    "decoupled": Decoupled(),
    "decoupled_capped": Decoupled(weight_cap=1.3),
    "tis": Tis(cap=1.2),
    "icepop": IcePop(0.7, 1.4),
    "m2po": M2po(),
}


def data(seed, by_token):
    generator = torch.Generator().manual_seed(seed)

    def noise(scale):
        return scale * torch.randn(B, T, generator=generator, dtype=torch.float64)

    old = -torch.rand(B, T, generator=generator, dtype=torch.float64) * 3
    proximal = old + noise(0.3)
    new = proximal + noise(0.3)
    advantages = noise(1.0) if by_token else torch.tensor([1.5, -0.7, 0.0, 2.0, -1.2], dtype=torch.float64)
    mask = torch.rand(B, T, generator=generator) < 0.6
    mask[:, 0] = True
    return new, old, proximal, advantages, mask


def tokens_of(new, held, old, proximal, advantages, mask):
    """{(row, column): Token} of the trained tokens."""
    found = {}
    for b in range(B):
        trained = [t for t in range(T) if mask[b, t]]
        for t in trained:
            a = advantages[b] if advantages.dim() == 1 else advantages[b, t]
            found[b, t] = Token(
                float(new[b, t]), float(held[b, t]), float(old[b, t]), float(proximal[b, t]), float(a),
                [float(held[b, i]) for i in trained], [float(old[b, i]) for i in trained],
            )  # fmt: skip
    return found


def call(loss, new, old, proximal, advantages, mask):
    extra = {"proximal": proximal} if getattr(loss, "needs_proximal", False) else {}
    return loss(new, old, advantages, mask, **extra)


@pytest.mark.parametrize("by_token", [False, True])
@pytest.mark.parametrize("name", BUILT)
def test_values_and_gradients_are_those_of_the_scalar_loop(name, by_token):
    new, old, proximal, advantages, mask = data(3, by_token)
    leaf = new.clone().requires_grad_()
    weights = torch.rand(B, dtype=torch.float64) + 0.5
    outcome = call(BUILT[name], leaf, old, proximal, advantages, mask)
    weighted_sum(outcome.loss, mask, weights).backward()
    scalar = SCALAR[name]
    for (b, t), token in tokens_of(new, new, old, proximal, advantages, mask).items():
        assert float(outcome.loss[b, t]) == pytest.approx(scalar(token), rel=1e-9, abs=1e-12)
        moved = [Token(**{**token.__dict__, "new": token.new + sign * STEP}) for sign in (1, -1)]
        slope = (scalar(moved[0]) - scalar(moved[1])) / (2 * STEP)
        assert float(leaf.grad[b, t]) == pytest.approx(float(weights[b]) * slope, rel=1e-6, abs=1e-8)
    assert (leaf.grad[~mask] == 0).all()
    assert leaf.grad[mask].abs().max() > 0.1


def test_every_loss_by_name_is_in_the_table():
    assert {name.partition("_")[0] for name in BUILT} == set(LOSSES)


def test_the_page_has_every_loss_with_its_options_and_source():
    page = (Path(__file__).parents[2] / "docs" / "trainer.md").read_text(encoding="utf-8")
    table = page.split("## Losses", 1)[1].split("\n\n", 3)[2]
    rows = {cells[1].strip(" `"): cells for line in table.splitlines()[2:] if (cells := line.split("|"))}
    assert rows.keys() == LOSSES.keys()
    shared = {"clip_low", "clip_high"}  # of all that clip
    for name, (_, _, formula, options, source, _) in rows.items():
        assert formula.strip() and re.search(r"\d{4}", source), name
        wanted = {field.name for field in dataclasses.fields(LOSSES[name]) if field.init}
        assert set(re.findall(r"`(\w+)`", options)) | shared >= wanted, name


@pytest.mark.parametrize("name", BUILT)
@pytest.mark.parametrize("junk", [100.0, -100.0, math.inf, math.nan])
def test_masked_entries_change_nothing(name, junk):
    new, old, proximal, advantages, mask = (x.float() if x.is_floating_point() else x for x in data(5, False))
    values, gradients = [], []
    for filling in (0.0, junk):
        leaf = torch.where(mask, new, torch.full_like(new, filling)).requires_grad_()
        others = [torch.where(mask, x, torch.full_like(x, -filling)) for x in (old, proximal)]
        total = weighted_sum(call(BUILT[name], leaf, *others, advantages, mask).loss, mask, torch.ones(B))
        total.backward()
        values.append(float(total))
        gradients.append(leaf.grad)
    assert values[0] == values[1] and math.isfinite(values[0])
    assert torch.equal(*gradients)


@pytest.mark.parametrize("name", BUILT)
@pytest.mark.parametrize("gap", [100.0, -100.0])
def test_extreme_ratios_where_it_counts_stay_finite(name, gap):
    new, old, proximal, advantages, mask = (x.float() if x.is_floating_point() else x for x in data(5, False))
    leaf = (new + gap).requires_grad_()
    total = weighted_sum(call(BUILT[name], leaf, old, proximal + gap, advantages, mask).loss, mask, torch.ones(B))
    total.backward()
    assert torch.isfinite(total) and torch.isfinite(leaf.grad).all()


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_reference_kl_is_its_formula(estimator):
    new, reference, _, _, mask = data(9, False)
    leaf = new.clone().requires_grad_()
    found = reference_kl(leaf, reference, mask, estimator)
    weighted_sum(found, mask, torch.ones(B, dtype=torch.float64)).backward()
    formula = {"k1": lambda d: d, "k2": lambda d: d * d / 2, "k3": lambda d: math.exp(-d) - 1 + d}[estimator]
    for b in range(B):
        for t in range(T):
            d = float(new[b, t] - reference[b, t])
            wanted = formula(d) if mask[b, t] else 0.0
            slope = (formula(d + STEP) - formula(d - STEP)) / (2 * STEP) if mask[b, t] else 0.0
            assert float(found[b, t]) == pytest.approx(wanted, rel=1e-9, abs=1e-12)
            assert float(leaf.grad[b, t]) == pytest.approx(slope, rel=1e-5, abs=1e-7)


@given(
    st.lists(st.lists(st.floats(-1, 1, width=32), min_size=1, max_size=6), min_size=1, max_size=5),
    st.sampled_from([0.001, 0.01, 0.1]),
    st.integers(1, 3),
)
def test_m2po_takes_the_largest_moments_of_the_whole_batch(rows, threshold, ranks):
    """However the rows lie on micro-batches and ranks, the choice is that of one loop over all tokens."""
    views = []
    for number, row in enumerate(rows):
        old = torch.zeros(1, len(row))
        advantage = torch.tensor([1.0 if number % 2 else -1.0])
        views.append(TokensOfBatch(torch.tensor([row]), old, advantage, torch.ones(1, len(row), dtype=torch.bool)))
    shares = [views[rank::ranks] for rank in range(ranks)]
    told = []
    for share in shares:  # what each rank would send
        M2po(threshold).select(share, lambda own: told.append(own) or [own])
    found = {}
    for rank, share in enumerate(shares):
        masks = M2po(threshold).select(share, lambda own: told)
        found.update({rank + i * ranks: mask for i, mask in enumerate(masks)})
    drifting = [
        (number, t, value * value)
        for number, row in enumerate(rows)
        for t, value in enumerate(torch.tensor(row).double().tolist())
        if value * (1 if number % 2 else -1) > 0
    ]
    moments = [float(torch.tensor(m, dtype=torch.float32)) for _, _, m in drifting]
    kept = {drifting[i][:2] for i in m2po_kept(moments, threshold)}
    gone = {(n, t) for n, mask in found.items() for t in range(mask.shape[1]) if not mask[0, t]}
    expected = {(n, t) for n, t, _ in drifting} - kept
    # Tokens of equal moments go or stay together, where the loop takes them one by one.
    edge = {m for (n, t, _), m in zip(drifting, moments, strict=True) if (n, t) in gone ^ expected}
    assert len(edge) <= 1
    if not edge:
        assert gone == expected


def test_m2po_is_ppo_when_nothing_drifts_far():
    _, old, _, advantages, mask = data(1, False)
    views = [TokensOfBatch(old + 0.01, old, advantages, mask)]
    assert torch.equal(M2po(0.01).select(views, lambda own: [own])[0], mask)
    none = M2po(1e-9).select(views, lambda own: [own])[0]  # 0.01² is too far for it
    assert (none <= mask).all() and none.sum() < mask.sum()


def test_constant_weights_do_not_see_length():
    weights = row_weights(torch.tensor([1, 100, 0]), "constant", 50)
    assert weights.tolist() == pytest.approx([0.01, 0.01, 0.0])
