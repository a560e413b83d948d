"""Packing, log-prob parity, and one batch being the same however it is cut."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from astraflow.config import Trainer
from astraflow.models import load_causal_lm
from astraflow.trainer.batch import micro_batches, pack_rows
from astraflow.trainer.logprobs import token_logprobs
from astraflow.trainer.losses import Grpo
from astraflow.trainer.reader import LoadedBatch, Part, Sequence
from astraflow.trainer.step import learning_rate, train_batch
from tests.trainer.samples import learner, loaded, sequence


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 200))
def test_packs_hold_every_row_once_within_the_budget(lengths, budget):
    packs = pack_rows(lengths, budget)
    assert sorted(row for pack in packs for row in pack) == list(range(len(lengths)))
    for pack in packs:
        assert len(pack) == 1 or len(pack) * max(lengths[row] for row in pack) <= budget


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_padded_logprobs_are_those_of_each_row_alone(model_folder, temperature):
    model = load_causal_lm(model_folder, torch.float32)
    rng = np.random.default_rng(0)
    rows = [sequence(rng, temperature=temperature) for _ in range(12)]
    shifted = 0.0
    for micro in micro_batches(rows, [0.0] * 12, torch.zeros(12), pad_id=0, budget_tokens=60):
        with torch.no_grad():
            found = token_logprobs(model, micro.input_ids, micro.keep, micro.temperatures)
        for line, number in enumerate(micro.rows):
            row = rows[number]
            ids = torch.tensor([[*row.prompt_ids, *row.response_ids]], dtype=torch.int64)
            with torch.no_grad():
                logits = model(input_ids=ids).logits[0] / temperature
            wanted = torch.log_softmax(logits[:-1], -1).gather(-1, ids[0, 1:, None])[:, 0][len(row.prompt_ids) - 1 :]
            mask = torch.from_numpy(row.loss_mask)
            torch.testing.assert_close(found[line][micro.mask[line]], wanted[mask], atol=1e-5, rtol=0)
            assert micro.old_logprobs[line][micro.mask[line]].tolist() == row.logprobs[row.loss_mask].tolist()
            shifted = max(shifted, float((found[line][micro.mask[line]] - wanted.roll(1)[mask]).abs().max()))
    assert shifted > 1e-2  # the test would see labels that are shifted by one


@pytest.mark.parametrize("aggregate", ["token", "sequence", "constant"])
def test_one_batch_is_its_uneven_micro_batches(model_folder, aggregate):
    rng = np.random.default_rng(1)
    batch = loaded(rng)
    gradients = []
    for budget in (16384, 40, 1):
        pupil = learner(model_folder, aggregate=aggregate, micro_batch_tokens=budget)
        before = copy.deepcopy(pupil.model.state_dict())
        train_batch(pupil, batch)
        moments = [state["exp_avg"] for state in pupil.optimizer.state.values()]
        gradients.append(torch.cat([moment.flatten() for moment in moments]))
        assert any(not torch.equal(before[name], value) for name, value in pupil.model.state_dict().items())
    assert gradients[0].abs().max() > 1e-4
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0], atol=1e-7, rtol=1e-4)


def test_a_wholly_masked_sequence_changes_no_gradient(model_folder):
    rng = np.random.default_rng(2)
    batch = loaded(rng)
    pupil, other = learner(model_folder), learner(model_folder)
    train_batch(pupil, batch)
    silent = sequence(rng)
    silent = Sequence(
        silent.pool, silent.prompt_ids, silent.response_ids, silent.logprobs * np.nan, silent.loss_mask & False,
        silent.lags, 0.0, 1.0,
    )  # fmt: skip
    train_batch(other, LoadedBatch(0, [*batch.parts, Part(99, [silent])], {}))
    for one, two in zip(pupil.optimizer.state.values(), other.optimizer.state.values(), strict=True):
        torch.testing.assert_close(one["exp_avg"], two["exp_avg"], atol=1e-7, rtol=1e-4)


def test_metrics_are_those_of_the_batch(model_folder):
    rng = np.random.default_rng(3)
    batch = loaded(rng, parts=2)
    batch.parts[0].sequences[0].lags[:] = 2
    pupil = learner(model_folder)
    result = train_batch(pupil, batch)
    rows = [row for part in batch.parts for row in part.sequences]
    metrics = result.metrics
    assert metrics["reward_mean"] == pytest.approx(np.mean([row.reward for row in rows]))
    assert metrics["response_tokens"] == sum(len(row.response_ids) for row in rows)
    assert metrics["trained_tokens"] == sum(row.loss_mask.sum() for row in rows)
    assert metrics["lag_max"] == 2 and 0 < metrics["lag_mean"] < 2
    assert metrics["mismatch_max"] >= metrics["mismatch_mean"] > 0
    assert result.mismatch_by_pool == {"local": pytest.approx(metrics["mismatch_mean"])}
    assert metrics["step_refused"] == 0 and metrics["grad_norm"] > 0


def test_the_learning_rate_warms_up_linearly():
    config = Trainer(lr=1e-2, lr_warmup_steps=4)
    rates = [learning_rate(config, step) for step in range(6)]
    assert rates == pytest.approx([2.5e-3, 5e-3, 7.5e-3, 1e-2, 1e-2, 1e-2])
    assert learning_rate(Trainer(lr=1e-2), 0) == 1e-2


def test_a_step_with_bad_numbers_changes_nothing_and_is_counted(model_folder):
    rng = np.random.default_rng(4)
    pupil = learner(model_folder)
    train_batch(pupil, loaded(rng))
    before = copy.deepcopy(pupil.model.state_dict())
    moments = [state["exp_avg"].clone() for state in pupil.optimizer.state.values()]

    def bad(logprobs, old, advantages, mask):
        result = Grpo()(logprobs, old, advantages, mask)
        return type(result)(result.loss * torch.inf, result.clipped)

    pupil.loss = bad
    result = train_batch(pupil, loaded(rng))
    assert result.metrics["step_refused"] == 1 and pupil.step == 2 and pupil.bad_steps == 1
    assert all(torch.equal(before[name], value) for name, value in pupil.model.state_dict().items())
    after = [state["exp_avg"] for state in pupil.optimizer.state.values()]
    assert all(torch.equal(one, two) for one, two in zip(moments, after, strict=True))
    pupil.loss = Grpo()
    train_batch(pupil, loaded(rng))
    assert pupil.bad_steps == 0


def test_an_empty_batch_is_a_step_without_change(model_folder):
    pupil = learner(model_folder)
    before = copy.deepcopy(pupil.model.state_dict())
    result = train_batch(pupil, LoadedBatch(0, [], {4: "missing"}))
    assert pupil.step == 1 and result.metrics["skipped_parts"] == 1 and result.metrics["reward_mean"] == 0
    assert all(torch.equal(before[name], value) for name, value in pupil.model.state_dict().items())
