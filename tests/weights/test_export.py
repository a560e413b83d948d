"""An exported folder is what transformers loads, bit for bit the version's weights."""

from pathlib import Path

import pytest
import torch

from astraflow.models import build_tiny_qwen3, load_causal_lm, load_tokenizer, upload_model_files
from astraflow.weights.export import export_policy
from astraflow.weights.publisher import Publisher
from storage.errors import ConfigError, DataError
from storage.keys import RunKeys
from storage.memory import MemoryStore

KEYS = RunKeys("run")


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[MemoryStore, list[dict[str, torch.Tensor]]]:
    """Three versions of the tiny model, and what their tensors are."""
    source = tmp_path_factory.mktemp("source")
    build_tiny_qwen3(source, seed=1)
    store, versions = MemoryStore(), []
    upload_model_files(store, KEYS, "solver", source)
    publisher = Publisher(store, KEYS, "solver", anchor_every=2)
    model = load_causal_lm(source, torch.bfloat16)
    for step in range(3):
        weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
        publisher.publish(weights, step=step, incarnation=1, batch=step - 1, skipped={})
        versions.append(weights)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.01)
    return store, versions


@pytest.mark.parametrize("version", [None, 0, 1])
def test_transformers_loads_the_weights_of_a_version(published, version: int | None, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    store, versions = published
    done = export_policy(store, KEYS, "solver", tmp_path / "out" / "model", version=version)
    expected = versions[2 if version is None else version]
    assert (done.version, done.step) == ((2, 2) if version is None else (version, version))
    model = load_causal_lm(done.folder, torch.bfloat16)
    loaded = model.state_dict()
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)
    assert model.get_input_embeddings().weight is model.get_output_embeddings().weight  # ties are kept
    assert load_tokenizer(done.folder).encode("1+2=")
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(done.files)
    assert done.size_bytes == sum(path.stat().st_size for path in Path(done.folder).iterdir())
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["model"]


def test_what_cannot_be_exported_leaves_nothing(published, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    store, _ = published
    for policy, version, message in (("solver", 3, "There are 0 to 2"), ("other", None, "None is published")):
        with pytest.raises(ConfigError, match=message):
            export_policy(store, KEYS, policy, tmp_path / "model", version=version)
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "file").touch()
    with pytest.raises(ConfigError, match="something in the folder"):
        export_policy(store, KEYS, "solver", taken)
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


def test_damaged_weights_are_not_exported(published, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    store, _ = published
    damaged = MemoryStore()
    for info in store.list(""):
        data = store.get(info.key)
        damaged.put(info.key, data[:-8] + bytes(8) if info.key.endswith(".safetensors") else data)
    with pytest.raises(DataError):
        export_policy(damaged, KEYS, "solver", tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_there_and_empty_is_filled(published, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    store, versions = published
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    done = export_policy(store, KEYS, "solver", Path())
    assert done.folder == str(tmp_path / "here")
    assert "config.json" in done.files
    assert sorted(path.name for path in Path.cwd().iterdir()) == done.files
    loaded = load_causal_lm(tmp_path / "here", torch.bfloat16).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in versions[-1].items())


def test_a_whole_model_beside_an_adapters_description_is_a_whole_model(tmp_path: Path) -> None:
    source, store = tmp_path / "source", MemoryStore()
    build_tiny_qwen3(source, seed=1)
    model = load_causal_lm(source, torch.bfloat16)
    (source / "adapter_config.json").write_text('{"peft_type": "LORA", "modules_to_save": ["lm_head"]}')
    upload_model_files(store, KEYS, "solver", source)
    weights = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    Publisher(store, KEYS, "solver", anchor_every=2).publish(weights, step=0, incarnation=0, batch=-1)
    done = export_policy(store, KEYS, "solver", tmp_path / "out")
    assert "model.safetensors" in done.files
    assert not {"adapter_config.json", "adapter_model.safetensors"} & set(done.files)
    loaded = load_causal_lm(tmp_path / "out", torch.bfloat16).state_dict()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in weights.items())
