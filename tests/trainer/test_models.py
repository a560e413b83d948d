from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from astraflow.models import (
    TINY_VOCABULARY,
    build_tiny_qwen3,
    check_model,
    context_of,
    download_model_files,
    empty_causal_lm,
    load_causal_lm,
    load_tokenizer,
    resolve_model,
    upload_model_files,
)
from astraflow.trainer.cast import Bf16Weights
from storage.errors import ConfigError, NotFound
from storage.keys import RunKeys
from storage.memory import MemoryStore


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tiny")
    build_tiny_qwen3(folder, seed=0)
    return folder


def test_the_tiny_model_has_its_size_and_its_seed(tiny, tmp_path):
    model = load_causal_lm(tiny, torch.float32)
    assert sum(parameter.numel() for parameter in model.parameters()) == 398_080
    assert model.lm_head.weight is model.model.embed_tokens.weight
    again, other = tmp_path / "again", tmp_path / "other"
    build_tiny_qwen3(again, seed=0)
    build_tiny_qwen3(other, seed=1)
    files = [(folder / "model.safetensors").read_bytes() for folder in (tiny, again, other)]
    assert files[0] == files[1] != files[2]


def test_the_tiny_tokenizer_is_by_character(tiny):
    tokenizer = load_tokenizer(tiny)
    ids = tokenizer.encode("12+34= ", add_special_tokens=False)
    assert [TINY_VOCABULARY[i] for i in ids] == list("12+34= ")
    assert tokenizer.decode([*ids, tokenizer.eos_token_id], skip_special_tokens=True) == "12+34= "
    assert (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1, 2)


def test_a_built_in_model_is_built_once(tmp_path):
    folder = resolve_model("tiny-qwen3", 3, tmp_path)
    stamp = (folder / "model.safetensors").stat().st_mtime_ns
    assert resolve_model("tiny-qwen3", 3, tmp_path) == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == stamp
    assert resolve_model("tiny-qwen3", 4, tmp_path) != folder
    assert resolve_model(str(folder), 9, tmp_path) == folder


def test_wrong_folders_are_config_errors_with_key_and_remedy(tmp_path):
    broken = tmp_path / "broken"
    broken.mkdir()
    for name in (str(tmp_path / "nowhere"), str(broken)):
        with pytest.raises(ConfigError) as raised:
            check_model(name, key="policies.solver.model")
        assert raised.value.where == "policies.solver.model" and "tiny-qwen3" in raised.value.remedy
    (broken / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="not JSON"):
        check_model(str(broken))
    (broken / "config.json").write_text('{"model_type": "no-such-model"}')
    for load in (load_causal_lm, empty_causal_lm):
        with pytest.raises(ConfigError) as raised:
            load(broken, torch.float32)
        assert raised.value.where == str(broken)
    with pytest.raises(ConfigError, match="no tokenizer"):
        load_tokenizer(broken)


@pytest.mark.parametrize(
    ("name", "settings", "context"),
    [
        ("GPT2Config", {"n_positions": 77}, 77),
        ("Qwen3Config", {"max_position_embeddings": 99}, 99),
        ("BloomConfig", {}, None),
        ("MptConfig", {"max_seq_len": 55}, 55),
    ],
)
def test_every_config_says_how_much_it_takes_or_that_nothing_limits_it(name, settings, context):
    import transformers

    assert context_of(getattr(transformers, name)(**settings)) == context


def test_a_model_without_attention_is_a_config_error(tmp_path):
    from transformers import MambaConfig

    MambaConfig(hidden_size=8, num_hidden_layers=1, vocab_size=16).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="cache of keys and values"):
        empty_causal_lm(tmp_path, torch.float32)


def test_a_tokenizer_without_eos_is_refused(tiny, tmp_path):
    tokenizer = load_tokenizer(tiny)
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_bytes((tiny / "config.json").read_bytes())
    with pytest.raises(ConfigError, match="no eos token"):
        load_tokenizer(tmp_path)


def test_model_files_go_through_the_store_without_weights(tiny, tmp_path):
    store, keys = MemoryStore("memory://models"), RunKeys("run")
    with pytest.raises(NotFound):
        download_model_files(store, keys, "solver", tmp_path / "a")
    names = upload_model_files(store, keys, "solver", tiny)
    assert "config.json" in names and "model.safetensors" not in names
    download_model_files(store, keys, "solver", tmp_path / "b")
    model = empty_causal_lm(tmp_path / "b", torch.float32)
    assert sum(parameter.numel() for parameter in model.parameters()) == 398_080
    assert load_tokenizer(tmp_path / "b").encode("1+1", add_special_tokens=False) == [4, 13, 4]


def test_the_bf16_copy_follows_the_masters_and_keeps_ties(tiny):
    model = load_causal_lm(tiny, torch.float32)
    weights = Bf16Weights(model)
    first = weights.refresh()
    assert set(first) == set(model.state_dict())
    assert first["lm_head.weight"] is first["model.embed_tokens.weight"]
    with torch.no_grad():
        model.lm_head.weight.add_(1.0)
    second = weights.refresh()
    assert torch.equal(second["lm_head.weight"], model.lm_head.weight.to(torch.bfloat16))


def test_the_module_imports_without_torch():
    code = "import sys, astraflow.models; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
