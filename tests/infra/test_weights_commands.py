"""``astraflow weights``: what it prints, refuses and deletes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from safetensors.torch import load_file

from astraflow.bootstrap import create_run
from astraflow.models import build_tiny_qwen3, load_causal_lm, upload_model_files
from astraflow.recipe import load_recipe
from astraflow.records import DecisionRecord, Stopped, encode
from astraflow.trainer.cast import Bf16Weights
from astraflow.weights.publisher import Publisher
from infra import cli
from storage import open_store
from storage.keys import RunKeys
from storage.store import ObjectStore
from storage.tables import encode_table

RECIPE = """
name = "small"
[policies.solver]
model = "tiny-qwen3"
[problems]
source = "addition"
options = { digits = 1, count = 30 }
"""
KEYS = RunKeys("small")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    """A run with ten versions of the tiny model at two learning rates, and one leftover blob."""
    monkeypatch.chdir(tmp_path)
    for name in ("ASTRAFLOW_STORE", "ASTRAFLOW_HOME", "ASTRAFLOW_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "small.toml").write_text(RECIPE)
    config = load_recipe(tmp_path / "small.toml")
    opened = open_store(config.store)
    create_run(opened, config)
    build_tiny_qwen3(tmp_path / "model", 0)
    upload_model_files(opened, KEYS, "solver", tmp_path / "model")
    weights = Bf16Weights(load_causal_lm(tmp_path / "model", torch.float32)).refresh()
    out, rng = Publisher(opened, KEYS, "solver", anchor_every=64, merge_every=(4,)), np.random.default_rng(0)
    for step in range(10):
        out.publish(weights, step=step, incarnation=0, batch=step - 1)
        for name, tensor in weights.items():
            words = tensor.view(torch.uint16).reshape(-1).numpy()
            if name != "lm_head.weight" and "norm" not in name:
                words[rng.choice(words.size, max(1, words.size // 100), replace=False)] ^= 1
        row = pa.table({"step": [step + 1], "version": [step + 1], "lr": [1e-6 if step < 4 else 3e-6]})
        opened.create(KEYS.step("solver", step + 1), encode_table(row))
    assert out.settle(60)
    opened.put(KEYS.version("solver", 3) + "0-x-1-delta-0000.safetensors", b"left over")
    return opened


@pytest.fixture
def weights(
    store: ObjectStore, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., tuple[int, str, str]]:
    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["astraflow", "weights", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return call


def test_list(weights: Any) -> None:
    code, out, _ = weights("list", "--json")
    rows = json.loads(out)
    assert code == 0
    assert [(row["version"], row["base"], row["kind"]) for row in rows][:3] == [
        (0, -1, "anchor"),
        (1, 0, "delta"),
        (2, 1, "delta"),
    ]
    assert [(row["base"], row["version"]) for row in rows if row["kind"] == "merge"] == [(0, 4), (4, 8)]
    code, out, _ = weights("list", "--last")
    assert code == 0
    assert "bytes_per_changed" in out


def test_show(weights: Any) -> None:
    code, out, _ = weights("show", "9", "--json")
    shown = json.loads(out)
    assert (code, shown["version"], shown["way"]["snapshot"]) == (0, 9, 0)
    assert [(hop["base"], hop["version"]) for hop in shown["way"]["deltas"]] == [(0, 4), (4, 8), (8, 9)]
    code, out, _ = weights("show", "0")
    assert "from nothing snapshot of 0" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show", "10"], "has no version 10"),
        (["diff", "0", "99"], "has no version 99"),
        (["list", "--policy", "other"], "no policy 'other'"),
        (["list", "--run", "none"], "there is no run 'none'"),
        (["collect"], "no run is named"),
        (["collect", "--last"], "has not stopped"),
        (["export", "99", "--to", "x"], "no version 99"),
        (["sparsity", "--from", "99"], "no version in that range"),
    ],
)
def test_wrong_input_is_said(weights: Any, words: list[str], message: str) -> None:
    code, out, err = weights(*words)
    assert (code, out) == (2, "")
    assert message in err


def test_verify(weights: Any, store: ObjectStore) -> None:
    code, out, _ = weights("verify")
    assert (code, out) == (0, "solver: nothing is damaged\n")
    for version, change in ((2, b"x"), (5, None)):
        key = next(info.key for info in store.list(KEYS.version("solver", version)) if "-delta-" in info.key)
        if change is None:
            store.delete(key)
        else:
            store.put(key, change)
    store.put(KEYS.merge("solver", 4, 8), b"{}")
    store.put(KEYS.manifest("solver", 9), b"{}")
    code, out, err = weights("verify", "--json")
    findings = json.loads(out)["findings"]
    assert code == 6
    assert "not as their manifests say" in err
    kinds = [(Path(finding["where"]).parent.name, finding["kind"]) for finding in findings]
    assert {
        ("00000002", "digest"),
        ("00000005", "gone"),
        ("merged", "undecodable"),
        ("00000009", "undecodable"),
    } <= set(kinds)


def test_diff(weights: Any) -> None:
    code, out, _ = weights("diff", "2", "4", "--json")
    rows = {row["tensor"]: row for row in json.loads(out)}
    assert code == 0
    assert all(row["changed"] == 0 for name, row in rows.items() if "norm" in name)
    assert 0.015 < rows["model.layers.0.mlp.up_proj.weight"]["share"] <= 0.02
    assert rows["model.layers.0.mlp.up_proj.weight"]["one_step"] == 1.0
    assert weights("diff", "4", "2", "--json")[1] == out
    assert "largest_step" in weights("diff", "2", "4")[1]


def test_sparsity(weights: Any, tmp_path: Path) -> None:
    code, out, _ = weights("sparsity", "--json", "--picture", str(tmp_path / "figure.svg"))
    found = json.loads(out)
    assert code == 0
    assert [row["group"] for row in found["lr"]] == [1e-6, 3e-6]
    assert [row["group"] for row in found["version"]] == list(range(1, 10))
    kinds = {row["group"]: row["share"] for row in found["kind"]}
    assert kinds["norm"] == 0
    assert 0.005 < kinds["up_proj"] < 0.015
    assert found["layer"][-1]["group"] is None
    assert found["full_bytes"] > 10 * found["shipped_bytes"]
    figure = (tmp_path / "figure.svg").read_text()
    assert figure.startswith("<svg")
    assert all(text in figure for text in ("lr 1e-06", "up_proj", "By layer"))
    code, out, _ = weights("sparsity", "--from", "3", "--until", "4")
    assert "2 versions" in out


def test_export(weights: Any, tmp_path: Path) -> None:
    code, out, _ = weights("export", "7", "--to", str(tmp_path / "folder"), "--json")
    assert (code, json.loads(out)["version"]) == (0, 7)
    assert load_file(tmp_path / "folder" / "model.safetensors")
    model = load_causal_lm(tmp_path / "folder", torch.bfloat16)
    assert sum(parameter.numel() for parameter in model.parameters()) > 300_000


def test_collect(weights: Any, store: ObjectStore) -> None:
    code, out, _ = weights("collect", "--dry-run", "--json")
    found = json.loads(out)
    assert (code, found["deleted"], found["keys"]) == (
        0,
        False,
        [KEYS.version("solver", 3) + "0-x-1-delta-0000.safetensors"],
    )
    stopped = DecisionRecord(id="x", epoch=0, now=0.0, cursors={}, observations={}, decisions=[Stopped(reason="done")])
    store.create(KEYS.decision(0), encode(stopped))
    code, out, _ = weights("collect", "--last", "--keep", "4")
    assert code == 0
    assert "are gone" in out
    assert weights("export", "4", "--to", "four")[0] == 0
    assert weights("export", "9", "--to", "nine")[0] == 0
    code, out, _ = weights("verify", "--json")
    assert code == 0
    assert {finding["kind"] for finding in json.loads(out)["findings"]} == {"gone"}
    assert weights("export", "2", "--to", "two")[0] == 6
