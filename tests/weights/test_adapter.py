"""A LoRA adapter is published as such: its own small layout, its own deltas, and a peft folder at the end."""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from astraflow.models import build_tiny_qwen3, load_causal_lm, upload_model_files
from astraflow.weights.adapter import adapter_places, adapter_tensors, load_adapter
from astraflow.weights.export import export_policy
from astraflow.weights.publisher import Publisher
from astraflow.weights.sparsity import kind_of, layer_of
from astraflow.weights.subscriber import Subscriber
from storage.errors import DataError
from storage.keys import RunKeys
from storage.memory import MemoryStore

KEYS = RunKeys("run")
PREFIX = "base_model.model.model.layers.{}.self_attn.q_proj."
CONFIG = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], "base_model_name_or_path": "x"}


def state() -> dict[str, torch.Tensor]:
    """What a peft model's state dict has: the model, two adapters, a module that is saved whole."""
    found: dict[str, torch.Tensor] = {}
    for layer in range(2):
        prefix = PREFIX.format(layer)
        found[prefix + "base_layer.weight"] = torch.randn(16, 16)
        for name in ("default", "other"):
            found[f"{prefix}lora_A.{name}.weight"] = torch.randn(4, 16)
            found[f"{prefix}lora_B.{name}.weight"] = torch.zeros(16, 4)
    found["base_model.model.score.original_module.weight"] = torch.randn(2, 16)
    found["base_model.model.score.modules_to_save.default.weight"] = torch.randn(2, 16)
    return found


def test_the_adapter_alone_is_taken() -> None:
    tensors = adapter_tensors(state())
    names = [PREFIX.format(layer) + f"lora_{side}.weight" for layer in range(2) for side in "AB"]
    assert sorted(tensors) == sorted([*names, "base_model.model.score.weight"])
    assert {tensor.dtype for tensor in tensors.values()} == {torch.bfloat16}
    assert len(adapter_tensors(state(), name="other")) == 4
    with pytest.raises(DataError) as caught:
        adapter_tensors(state(), name="none")
    assert caught.value.kind == "adapter"


def test_an_adapter_is_published_caught_up_with_and_exported(tmp_path: Path) -> None:
    store, source = MemoryStore(), tmp_path / "source"
    build_tiny_qwen3(source, 0)
    (source / "adapter_config.json").write_text(json.dumps(CONFIG))
    upload_model_files(store, KEYS, "solver", source)
    out, weights, versions = Publisher(store, KEYS, "solver", anchor_every=8, merge_every=(2,)), state(), []
    for step in range(4):
        tensors = adapter_tensors(weights)
        manifest = out.publish(tensors, step=step, incarnation=0, batch=step - 1)
        versions.append(tensors)
        weights[PREFIX.format(0) + "lora_B.default.weight"][step] += 0.5
    assert manifest.full_bytes == sum(2 * tensor.numel() for tensor in versions[0].values())
    assert out.settle(60)
    update = Subscriber(store, KEYS, "solver").fetch(3)
    assert all(torch.equal(update.tensors[name], tensor) for name, tensor in versions[3].items())
    done = export_policy(store, KEYS, "solver", tmp_path / "adapter", version=2)
    assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} <= set(done.files)
    assert "config.json" not in done.files
    written = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert written.keys() == versions[2].keys()
    assert all(torch.equal(written[name], tensor) for name, tensor in versions[2].items())


def test_its_tensors_have_layers_and_kinds() -> None:
    name = PREFIX.format(3) + "lora_A.weight"
    assert (layer_of(name), kind_of(name)) == (3, "q_proj.lora_A")


def test_peft_loads_what_is_exported(tmp_path: Path) -> None:
    import peft

    source = tmp_path / "source"
    build_tiny_qwen3(source, 0)
    config = peft.LoraConfig(
        r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], base_model_name_or_path=str(source)
    )
    model = peft.get_peft_model(load_causal_lm(source, torch.float32), config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn_like(parameter).bfloat16())
            elif "lora_A" in name:
                parameter.copy_(parameter.bfloat16())
    tensors = adapter_tensors(model.state_dict())
    assert tensors.keys() == peft.get_peft_model_state_dict(model).keys()
    described = tmp_path / "described"
    shutil.copytree(source, described)
    config.save_pretrained(described)
    store = MemoryStore()
    upload_model_files(store, KEYS, "solver", described)
    Publisher(store, KEYS, "solver", anchor_every=8).publish(tensors, step=0, incarnation=0, batch=-1)
    export_policy(store, KEYS, "solver", tmp_path / "adapter")
    loaded = peft.PeftModel.from_pretrained(load_causal_lm(source, torch.float32), tmp_path / "adapter")
    ids = torch.tensor([[1, 5, 9, 14]])
    with torch.no_grad():
        assert torch.equal(model(ids).logits, loaded(ids).logits)
        assert not torch.equal(loaded(ids).logits, load_causal_lm(source, torch.float32)(ids).logits)


def test_an_adapter_goes_from_trainer_to_engine_version_by_version(tmp_path: Path) -> None:
    import peft

    source = tmp_path / "source"
    build_tiny_qwen3(source, 0)
    config = peft.LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], modules_to_save=["norm"])
    trained, served = (peft.get_peft_model(load_causal_lm(source, torch.float32), config) for _ in range(2))
    optimizer = torch.optim.AdamW([p for p in trained.parameters() if p.requires_grad], lr=1e-2)
    store = MemoryStore()
    out, reader = Publisher(store, KEYS, "solver", anchor_every=8), Subscriber(store, KEYS, "solver")
    ids = torch.tensor([[1, 5, 9, 14]])
    for step in range(4):
        manifest = out.publish(adapter_tensors(trained.state_dict()), step=step, incarnation=0, batch=step - 1)
        assert manifest.full_bytes < 20_000
        load_adapter(served.state_dict(), reader.fetch(step), everything=step == 0)
        for name, place in adapter_places(served.state_dict()).items():
            assert torch.equal(place, adapter_tensors(trained.state_dict())[name].float())
        trained(ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    rounded = copy.deepcopy(trained)
    load_adapter(rounded.state_dict(), reader.fetch(3), everything=True)
    with torch.no_grad():
        assert torch.equal(rounded(ids).logits, served(ids).logits)
        assert not torch.equal(served(ids).logits, load_causal_lm(source, torch.float32)(ids).logits)


def test_an_adapter_of_another_rank_is_refused_before_a_word_is_written() -> None:
    store, weights = MemoryStore(), state()
    Publisher(store, KEYS, "solver", anchor_every=8).publish(adapter_tensors(weights), step=0, incarnation=0, batch=-1)
    update = Subscriber(store, KEYS, "solver").fetch(0)
    engine = {name: torch.zeros_like(tensor) for name, tensor in weights.items()}
    engine[PREFIX.format(1) + "lora_A.default.weight"] = torch.zeros(8, 16)
    with pytest.raises(DataError) as caught:
        load_adapter(engine, update, everything=True)
    assert caught.value.kind == "shape"
    assert not any(tensor.any() for tensor in engine.values())
    engine[PREFIX.format(1) + "lora_A.default.weight"] = torch.zeros(4, 16)
    load_adapter(engine, update, everything=True)
    assert torch.equal(
        engine["base_model.model.score.modules_to_save.default.weight"].bfloat16(),
        update.tensors["base_model.model.score.weight"],
    )
