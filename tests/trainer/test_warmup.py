"""The supervised start: it stops at its accuracy, depends on the seed alone, and says what it lacks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from astraflow.config import Warmup
from astraflow.models import load_causal_lm, load_tokenizer, resolve_model
from astraflow.participant import Beat, Outbox
from astraflow.records import Consumed, Status
from astraflow.trainer.life import Life
from astraflow.trainer.logprobs import token_logprobs
from astraflow.trainer.loop import run_trainer
from astraflow.trainer.warmup import Demonstrations, expected_accuracy, warm_up
from storage.errors import ConfigError, DataError
from storage.keys import RunKeys

TINY = {"model": "tiny-qwen3", "sampling": {"max_tokens": 4}}


def life_of(run, tmp_path):
    beat = Beat(run.store, run.keys, Status(participant="t", role="trainer", state=""), every_s=60)
    settings = run.config.trainer_of("solver")
    return Life(run.store, run.keys, run.config, "solver", settings, Outbox(run.store, run.keys, "t"), beat, tmp_path)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return resolve_model("tiny-qwen3", 0, tmp_path_factory.mktemp("models"))


def test_it_learns_until_its_accuracy_the_same_way_each_time(make_run, tmp_path, tiny):
    life = life_of(make_run(policy=TINY), tmp_path)
    tokenizer = load_tokenizer(tiny)
    models = []
    for _ in range(2):
        model = load_causal_lm(tiny, torch.float32)
        accuracy = warm_up(life, model, tokenizer, Warmup(until_accuracy=0.002, max_steps=60, batch_size=32))
        assert accuracy >= 0.002
        assert 0 < life.beat.status.figures["warmup_step"] < 60
        models.append(model)
    assert all(torch.equal(one, two) for one, two in zip(*(m.parameters() for m in models), strict=True))


def test_it_stops_at_its_last_step(make_run, tmp_path, tiny):
    life = life_of(make_run(policy=TINY), tmp_path)
    model = load_causal_lm(tiny, torch.float32)
    accuracy = warm_up(life, model, load_tokenizer(tiny), Warmup(until_accuracy=1.0, max_steps=2, batch_size=4))
    assert 0 <= accuracy < 1


def test_expected_accuracy_is_the_chance_of_the_whole_answer(make_run, tmp_path, tiny):
    life = life_of(make_run(policy={**TINY, "sampling": {"max_tokens": 2}}), tmp_path)
    model, tokenizer = load_causal_lm(tiny, torch.float32), load_tokenizer(tiny)
    import random

    rows = Demonstrations.of(life, tokenizer).draw(3, random.Random(0))
    chances = []
    for row in rows["solver"]:
        assert row.prompt_ids[0] == 1 and row.response_ids[-1] == 2 and len(row.response_ids) == 4
        ids = torch.tensor([[*row.prompt_ids, *row.response_ids]], dtype=torch.int64)
        with torch.no_grad():
            chances.append(float(token_logprobs(model, ids, 4, torch.ones(1))[0, :2].sum().exp()))
    assert expected_accuracy(life, model, rows) == pytest.approx(sum(chances) / len(chances), rel=1e-4)


def test_a_warm_up_that_diverges_is_a_data_error(make_run, tmp_path, tiny):
    life = life_of(make_run(policy=TINY), tmp_path)
    model = load_causal_lm(tiny, torch.float32)
    with pytest.raises(DataError, match="not finite"):
        warm_up(life, model, load_tokenizer(tiny), Warmup(until_accuracy=1.0, max_steps=9, batch_size=4, lr=1e38))


def test_a_policy_that_no_role_demonstrates_is_a_config_error(make_run, tmp_path, tiny):
    run = make_run(policy=TINY)
    judge = run.config.policies["solver"]
    run.config = run.config.model_copy(update={"policies": {**run.config.policies, "judge": judge}})
    life = life_of(run, tmp_path)
    other = Life(life.store, RunKeys(run.config.name), run.config, "judge", life.settings, life.outbox, life.beat,
                 Path(tmp_path))  # fmt: skip
    with pytest.raises(ConfigError, match="demonstrates no role"):
        warm_up(other, load_causal_lm(tiny, torch.float32), load_tokenizer(tiny), Warmup())


def test_a_first_life_warms_up_and_a_later_one_does_not(make_run):
    warmup = {"until_accuracy": 0.0, "max_steps": 1}
    run = make_run(steps=2, policy={"model": "tiny-qwen3", "warmup": warmup})

    def small(row):
        length = len(row["response_ids"])
        return row | {"prompt_ids": [4, 5], "response_ids": [6] * length}

    run.decide(run.batched(0, change=small), run.batched(1, change=small))
    run_trainer(run.store, run.config, "solver", participant="trainer-solver-a")
    assert [fact.batch for fact in run.facts() if isinstance(fact, Consumed)] == [0, 1]
    run_trainer(run.store, run.config, "solver", participant="trainer-solver-b")
    figures = {
        name: run.store.get(run.keys.status(f"trainer-solver-{name}")).count(b"warmup_accuracy") for name in "ab"
    }
    assert figures == {"a": 1, "b": 0}
