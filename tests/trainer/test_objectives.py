"""What the kinds of training make of a batch."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch

from astraflow.config import RunConfig, Trainer
from astraflow.models import load_causal_lm
from astraflow.trainer.distill import Distill
from astraflow.trainer.kinds import load_kind
from astraflow.trainer.learner import learning_rate
from astraflow.trainer.objective import Rl, Setting
from astraflow.trainer.reader import LoadedBatch, Part
from astraflow.trainer.step import train_batch
from astraflow.trainer.supervised import Sft
from storage.errors import ConfigError, DataError
from tests.trainer.samples import first_moments, learner, loaded, parameters, sequence


def part(rng, rewards, group=0, **changes):
    return Part(group, [replace(sequence(rng, **changes), reward=reward) for reward in rewards])


def advantages(settings, *parts):
    return list(Rl(settings).examples(LoadedBatch(0, list(parts), {})).advantages)


def test_long_answers_are_penalised_by_dapos_ramp():
    rng = np.random.default_rng(0)
    settings = Trainer(advantage="mean", overlong={"max_tokens": 8, "buffer_tokens": 4, "penalty": 2.0})
    rows = [replace(sequence(rng, response=n), loss_mask=np.ones(n, bool), reward=1.0) for n in (2, 4, 5, 6, 8, 12)]
    examples = Rl(settings).examples(LoadedBatch(0, [Part(0, rows)], {}))
    rewards = np.array([1, 1, 0.5, 0, -1, -1])  # 1 - 2 · (0, 0, ¼, ½, 1, 1)
    np.testing.assert_allclose(examples.advantages, rewards - rewards.mean())
    assert examples.figures == {"overlong_penalty": pytest.approx((0.5 + 1 + 2 + 2) / 6)}


def test_whose_rewards_make_the_baseline():
    rng = np.random.default_rng(0)
    rows = part(rng, [1.0, 0.0, 1.0, 1.0]).sequences
    places = [("a", 0), ("a", 0), ("b", 0), ("b", 1)]
    rows = [replace(row, role=role, slot=slot) for row, (role, slot) in zip(rows, places, strict=True)]
    whole = Part(0, rows)
    assert advantages(Trainer(advantage="mean"), whole) == [0.25, -0.75, 0.25, 0.25]
    assert advantages(Trainer(advantage="mean", advantage_within="role"), whole) == [0.5, -0.5, 0.0, 0.0]
    rows[2:] = [replace(row, role="a") for row in rows[2:]]
    found = advantages(Trainer(advantage="mean", advantage_within="slot"), whole)
    assert found == pytest.approx([1 / 3, -2 / 3, 1 / 3, 0.0])


def test_the_batch_is_normalised_after_the_parts_and_zero_stays_zero():
    rng = np.random.default_rng(0)
    parts = [part(rng, [1.0, 0.0]), part(rng, [0.5] * 3), part(rng, [3.0, 0.0, 0.0])]
    plain = np.array(advantages(Trainer(advantage="mean"), *parts))
    found = np.array(advantages(Trainer(advantage="mean", normalise_batch=True), *parts))
    np.testing.assert_allclose(found, plain / plain.std(), rtol=1e-5)
    assert (found[2:5] == 0.0).all()


@pytest.mark.parametrize(
    ("schedule", "wanted"),
    [
        ("constant", [0.5, 1, 1, 1, 1, 1, 1, 1]),
        ("linear", [0.5, 1, 1, 0.82, 0.64, 0.46, 0.28, 0.1]),
        ("cosine", [0.5, 1, 1, 0.914058, 0.689058, 0.410942, 0.185942, 0.1]),
    ],
)
def test_schedules(schedule, wanted):
    config = Trainer(lr=1.0, steps=8, lr_warmup_steps=2, lr_schedule=schedule, lr_min_share=0.1)
    assert [learning_rate(config, step) for step in range(8)] == pytest.approx(wanted, abs=1e-6)
    assert learning_rate(config, 20) == pytest.approx(wanted[-1])


def setting(folder, first_model=None):
    config = RunConfig.model_validate(
        {"name": "x", "policies": {"solver": {"model": str(folder)}}, "problems": {"source": "addition"}}
    )
    return Setting(config, "solver", torch.device("cpu"), folder, first_model or (lambda: None))


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_pull_to_the_first_version_is_zero_there_and_grows_off_it(model_folder, estimator):
    batch = loaded(np.random.default_rng(1))
    pupil = learner(model_folder, kl={"weight": 0.5, "estimator": estimator})
    first = load_causal_lm(model_folder, torch.float32)
    pupil.objective = Rl(pupil.config)
    pupil.objective.start(setting(model_folder, lambda: first))
    metrics = train_batch(pupil, batch).metrics
    assert metrics["reference_kl"] == pytest.approx(0.0, abs=1e-6)
    assert metrics["loss"] == pytest.approx(metrics["policy_loss"], abs=1e-6)
    for _ in range(3):
        metrics = train_batch(pupil, batch).metrics
    assert abs(metrics["reference_kl"]) > 1e-4
    assert metrics["loss"] == pytest.approx(metrics["policy_loss"] + 0.5 * metrics["reference_kl"], abs=1e-5)


def test_sft_is_cross_entropy_and_learns_the_batch(model_folder):
    batch = loaded(np.random.default_rng(1))
    pupil = learner(model_folder, lr=3e-3)
    pupil.objective = Sft(pupil.config)
    model = copy.deepcopy(pupil.model)
    rows = [row for part in batch.parts for row in part.sequences]
    total, count = 0.0, 0
    for row in rows:
        ids = torch.tensor([[*row.prompt_ids, *row.response_ids]], dtype=torch.int64)
        labels = ids.clone()
        labels[0, : len(row.prompt_ids)] = -100
        labels[0, len(row.prompt_ids) :][~torch.from_numpy(row.loss_mask)] = -100
        with torch.no_grad():
            logits = model(input_ids=ids).logits[:, :-1]
        total += float(torch.nn.functional.cross_entropy(logits[0], labels[0, 1:], reduction="sum"))
        count += int(row.loss_mask.sum())
    losses = [train_batch(pupil, batch).metrics["loss"] for _ in range(12)]
    assert losses[0] == pytest.approx(total / count, rel=1e-4)
    assert losses[-1] < 0.6 * losses[0]


def test_distillation_moves_the_policy_to_its_teacher(model_folder, tmp_path):
    """Repeated on-policy samples: the reverse KL falls, measured exactly on contexts of its own."""
    teacher = load_causal_lm(model_folder, torch.float32)
    with torch.no_grad():
        for parameter in teacher.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    teacher.save_pretrained(tmp_path / "teacher")
    pupil = learner(model_folder, lr=1e-3, teacher=str(tmp_path / "teacher"), loss={"name": "cispo"})
    pupil.objective = Distill(pupil.config)
    pupil.objective.start(setting(model_folder))
    rng = np.random.default_rng(0)
    before = reverse_kl(pupil.model, teacher)
    for _ in range(40):
        rows = [sampled(pupil.model, rng) for _ in range(24)]
        assert np.isfinite(train_batch(pupil, LoadedBatch(0, [Part(0, rows)], {})).metrics["teacher_kl"])
    assert before > 0.02
    assert reverse_kl(pupil.model, teacher) < 0.8 * before


@torch.no_grad()
def reverse_kl(model, teacher):
    """KL(model ‖ teacher), mean over the tokens of random contexts."""
    ids = torch.randint(3, 128, (64, 8), generator=torch.Generator().manual_seed(5))
    own, other = (torch.log_softmax(each(input_ids=ids).logits, -1) for each in (model, teacher))
    return float((own.exp() * (own - other)).sum(-1).mean())


def sampled(model, rng, length=6):
    """One sequence drawn from the model, with its log-probs."""
    ids = rng.integers(3, 128, 3).tolist()
    logprobs = []
    for _ in range(length):
        with torch.no_grad():
            chances = torch.log_softmax(model(input_ids=torch.tensor([ids])).logits[0, -1].double(), -1)
        token = int(rng.choice(128, p=(chances.exp() / chances.exp().sum()).numpy()))
        logprobs.append(float(chances[token]))
        ids.append(token)
    return replace(
        sequence(rng, response=length),
        prompt_ids=np.array(ids[:3], np.int32),
        response_ids=np.array(ids[3:], np.int32),
        logprobs=np.array(logprobs, np.float32),
        loss_mask=np.ones(length, bool),
    )


def test_distillation_without_a_teacher_is_a_config_error(model_folder):
    with pytest.raises(ConfigError, match="needs a teacher"):
        Distill(Trainer()).start(setting(model_folder))


def test_distillation_refuses_a_loss_that_chooses_its_tokens_beforehand():
    with pytest.raises(ConfigError, match="m2po") as raised:
        Distill(Trainer(teacher="x", loss={"name": "m2po"}))
    assert raised.value.where == "trainer.loss.name"


class NoObjective:
    def __init__(self, settings):
        pass


def test_what_is_no_kind_is_a_config_error():
    with pytest.raises(ConfigError) as raised:
        load_kind(Trainer(kind="tests.trainer.test_objectives:NoObjective"), key="policies.solver.trainer")
    assert raised.value.where == "policies.solver.trainer.kind" and "examples" in raised.value.what


def test_a_stop_at_bad_numbers_ends_the_step_uncounted(model_folder):
    pupil = learner(model_folder, non_finite="stop")
    with torch.no_grad():
        next(pupil.model.parameters())[5] = torch.nan
    before = parameters(pupil)
    batch = loaded(np.random.default_rng(1))
    with pytest.raises(DataError) as raised:
        train_batch(pupil, batch)
    assert raised.value.kind == "non_finite" and pupil.step == 0
    torch.testing.assert_close(parameters(pupil), before, rtol=0, atol=0, equal_nan=True)
    assert not first_moments(pupil).any()
