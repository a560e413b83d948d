"""Adapters learn, the model beneath does not, and what is published is a whole model with them merged in."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from astraflow.config import Lora, RunConfig, Trainer
from astraflow.models import load_causal_lm
from astraflow.records import Consumed
from astraflow.trainer.cast import Bf16Weights
from astraflow.trainer.learner import Learner, new_optimizer
from astraflow.trainer.lora import MergedWeights, add_adapters
from astraflow.trainer.losses import Grpo
from astraflow.trainer.step import train_batch
from astraflow.weights.subscriber import Subscriber
from storage.errors import ConfigError
from tests.trainer.samples import loaded
from tests.trainer.test_resume import killed_at, live, manifests, recorded


def adapted(folder, **lora):
    model = load_causal_lm(folder, torch.float32)
    add_adapters(model, Lora(rank=4, alpha=8.0, **lora), where="trainer.lora")
    config = Trainer(lr=1e-2)
    return Learner(model, new_optimizer(model, config), Grpo(), config, pad_id=0, constant_tokens=8)


def test_only_adapters_learn_and_the_merge_is_base_plus_scaled_product(model_folder):
    plain = load_causal_lm(model_folder, torch.float32)
    pupil = adapted(model_folder)
    weights = MergedWeights(pupil.model)
    first = {name: tensor.clone() for name, tensor in weights.refresh().items()}
    assert first.keys() == Bf16Weights(plain).refresh().keys()
    assert all(torch.equal(first[name], tensor.bfloat16()) for name, tensor in plain.state_dict().items())
    before = copy.deepcopy(pupil.model.state_dict())
    for seed in range(3):
        train_batch(pupil, loaded(np.random.default_rng(seed)))
    changed = {name for name, tensor in pupil.model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert changed and all("lora_" in name for name in changed)
    merged = weights.refresh()
    state = pupil.model.state_dict()
    name = "model.layers.1.mlp.up_proj"
    product = state[f"{name}.lora_B.default.weight"] @ state[f"{name}.lora_A.default.weight"]
    wanted = (state[f"{name}.base_layer.weight"] + 8.0 / 4 * product).bfloat16()
    assert torch.equal(merged[f"{name}.weight"], wanted) and not torch.equal(wanted, first[f"{name}.weight"])
    assert merged["lm_head.weight"] is merged["model.embed_tokens.weight"]


def test_the_published_model_says_what_the_adapted_one_says(model_folder):
    pupil = adapted(model_folder)
    train_batch(pupil, loaded(np.random.default_rng(0)))
    whole = load_causal_lm(model_folder, torch.float32)
    whole.load_state_dict({name: tensor.float() for name, tensor in MergedWeights(pupil.model).refresh().items()})
    ids = torch.arange(3, 13)[None]
    with torch.no_grad():
        one, two = pupil.model(input_ids=ids).logits, whole(input_ids=ids).logits
    torch.testing.assert_close(one, two, atol=2e-2, rtol=0)  # but for rounding to bf16


def test_named_targets_and_wrong_ones(model_folder):
    pupil = adapted(model_folder, targets=["q_proj"])
    trained = [name for name, parameter in pupil.model.named_parameters() if parameter.requires_grad]
    assert len(trained) == 4 and all("q_proj" in name for name in trained)
    with pytest.raises(ConfigError) as raised:
        adapted(model_folder, targets=["no_such_layer"])
    assert raised.value.where == "trainer.lora.targets"


def test_a_run_with_adapters_is_served_and_resumed(make_run):
    lora = {"rank": 2, "alpha": 4.0}
    straight = recorded(make_run, "straight", lora=lora, lr=1e-2)
    live(straight, 0)
    run = recorded(make_run, "killed", lora=lora, lr=1e-2)
    assert killed_at(run, 0, "trainer.after_manifest", 4)
    live(run, 1)
    assert [fact.batch for fact in run.facts() if isinstance(fact, Consumed)][-1] == 5
    digests = {m.step: m.digest for m in manifests(straight)}
    assert all(m.digest == digests[m.step] for m in manifests(run)) and len(set(digests.values())) == 7
    update = Subscriber(run.store, run.keys, "solver").fetch(6)
    assert not any("lora" in name for name in update.tensors)


def test_adapters_and_ranks_are_refused_together(model_folder):
    with pytest.raises(ValueError, match="lora"):
        RunConfig.model_validate(
            {
                "name": "x",
                "policies": {"solver": {"model": str(model_folder)}},
                "problems": {"source": "addition"},
                "trainer": {"lora": {}, "ranks": 2},
            }
        )
