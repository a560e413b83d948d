"""A patch as its readers see it is the update as its writer had it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from astraflow.raas import vllm_patch
from astraflow.raas.vllm_patch import read_patch, remove_patch, write_patch
from astraflow.weights.update import WeightUpdate


def update() -> WeightUpdate:
    run = torch.arange(40, dtype=torch.bfloat16)  # one buffer, as a subscriber's
    tensors = {"a": run[:20].view(4, 5), "b": run[20:36].view(16), "c": run[36:40]}
    tensors["tied"] = tensors["a"]
    places = {"a": torch.tensor([1, 7, 19]), "tied": torch.tensor([1, 7, 19])}
    return WeightUpdate("p", 3, 3, "", tensors, frozenset(["tied", "a", "b"]), 0, places)


@pytest.mark.parametrize("file_bytes", [0, 1 << 20], ids=["many files", "one file"])
def test_few_places_whole_tensors_and_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_bytes: int
) -> None:
    monkeypatch.setattr(vllm_patch, "_FILE_BYTES", file_bytes)
    given = update()
    written = write_patch(given, tmp_path, whole=False)
    patch = read_patch(written.folder)
    assert patch == written
    assert (patch.shapes, patch.ties) == ({"a": (4, 5), "b": (16,), "c": (4,)}, {"a": ["tied"]})
    found = {name: (values, places) for name, values, places in patch.tensors()}
    assert found.keys() == {"a", "b"}
    values, places = found["a"]
    assert places is not None
    assert places.tolist() == [1, 7, 19] == values.tolist()
    assert found["b"][1] is None
    assert torch.equal(found["b"][0], given.tensors["b"])
    remove_patch(patch)
    assert not patch.folder.exists()

    whole = write_patch(given, tmp_path, whole=True)
    found = {name: (values, places) for name, values, places in read_patch(whole.folder).tensors()}
    remove_patch(whole)
    assert found.keys() == {"a", "b", "c"}
    assert all(torch.equal(found[name][0], given.tensors[name]) and found[name][1] is None for name in found)


def test_a_patch_goes_to_disk_where_memory_has_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_patch, "_MEMORY", tmp_path / "none")
    patch = write_patch(update(), tmp_path, whole=False)
    assert patch.folder.parent == tmp_path
    assert {name for name, _, _ in patch.tensors()} == {"a", "b"}
