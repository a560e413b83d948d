"""A copy that outlives its process: found whole, or found torn and given up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from astraflow.weights.kept_copy import KeptCopy
from astraflow.weights.subscriber import Subscriber
from storage.errors import ConfigError, StoreError
from storage.memory import MemoryStore
from tests.weights.chains import KEYS, chain, publisher


@pytest.fixture(scope="module")
def published() -> tuple[MemoryStore, list[torch.Tensor]]:
    store = MemoryStore()
    return store, chain(store, 12)


def life(store: Any, folder: Path) -> tuple[Subscriber, KeptCopy]:
    keep = KeptCopy(folder)
    return Subscriber(store, KEYS, "solver", keep=keep), keep


def test_the_next_life_goes_on_by_deltas(published: Any, tmp_path: Path) -> None:
    store, versions = published
    reader, keep = life(store, tmp_path)
    assert reader.fetch(5).payload_bytes > 20_000
    keep.close()
    reader, keep = life(store, tmp_path)
    assert reader.version == 5
    assert reader.newest() == 11
    update = reader.fetch(6)
    assert torch.equal(update.tensors["a"], versions[6])
    assert update.payload_bytes == reader.manifest(6).size_bytes
    assert update.changed == {"a"}
    keep.close()
    again, _ = life(store, tmp_path)
    assert again.fetch(6).changed == {"a"}  # an engine that has just started has nothing


def test_an_update_that_broke_off_is_seen_at_the_next_start(published: Any, tmp_path: Path) -> None:
    store, versions = published
    reader, keep = life(store, tmp_path)
    reader.fetch(3)

    class Killed(BaseException):
        pass

    def die(*_: object, **__: object) -> None:
        raise Killed

    reader._accept = die  # type: ignore[method-assign]
    with pytest.raises(Killed):
        reader.fetch(4)
    keep.close()
    reader, _ = life(store, tmp_path)
    assert reader.version == -1
    assert torch.equal(reader.fetch(4).tensors["a"], versions[4])


@pytest.mark.parametrize("damage", ["word", "size", "note", "no words"])
def test_a_copy_that_is_not_what_its_note_says_is_given_up(published: Any, tmp_path: Path, damage: str) -> None:
    store, versions = published
    reader, keep = life(store, tmp_path)
    reader.fetch(3)
    keep.close()
    words, note = tmp_path / "BF16.words", tmp_path / "held.json"
    if damage == "word":
        data = np.fromfile(words, np.uint16)
        data[77] ^= 1
        data.tofile(words)
    elif damage == "size":
        words.write_bytes(words.read_bytes()[:-2])
    elif damage == "note":
        note.write_bytes(note.read_bytes()[:-9])
    else:
        words.unlink()
    reader, _ = life(store, tmp_path)
    assert reader.version == -1
    assert torch.equal(reader.fetch(3).tensors["a"], versions[3])


def test_a_second_process_keeps_its_copy_in_memory(published: Any, tmp_path: Path) -> None:
    store, versions = published
    first, _ = life(store, tmp_path)
    first.fetch(3)
    second, other = life(store, tmp_path)
    assert (other.is_ours, second.version) == (False, -1)
    assert torch.equal(second.fetch(9).tensors["a"], versions[9])
    assert torch.equal(first.fetch(3).tensors["a"], versions[3])
    assert torch.equal(first.fetch(4).tensors["a"], versions[4])


def test_another_policy_or_layout_is_not_taken(published: Any, tmp_path: Path) -> None:
    store, _ = published
    reader, keep = life(store, tmp_path)
    reader.fetch(3)
    assert keep.find("other") is None
    note = tmp_path / "held.json"
    manifest = reader.manifest(3)
    note.write_bytes(note.read_bytes().replace(manifest.layout.encode(), b"0" * len(manifest.layout)))
    assert keep.find("solver") is None


def test_a_copy_of_another_run_of_the_same_name_is_not_served(published: Any, tmp_path: Path) -> None:
    store, versions = published
    other, mark = MemoryStore(), versions[0] + 1
    out = publisher(other)
    for step in range(4):
        out.publish({"a": mark + step}, step=step, incarnation=0, batch=step - 1)
    for wanted in (0, 3, 2):
        reader, keep = life(store, tmp_path)
        reader.fetch(wanted)
        keep.close()
        reader, keep = life(other, tmp_path)
        assert reader.version == wanted
        assert reader.newest() == 3
        update = reader.fetch(wanted)
        assert torch.equal(update.tensors["a"], mark + wanted)
        assert update.digest == reader.manifest(wanted).digest
        assert reader.newest() == 3
        keep.close()


def test_a_copy_beyond_the_end_of_another_store_is_not_taken_for_news(published: Any, tmp_path: Path) -> None:
    store, versions = published
    reader, keep = life(store, tmp_path)
    reader.fetch(11)
    keep.close()
    other = MemoryStore()
    chain(other, 3)
    reader, _ = life(other, tmp_path)
    assert torch.equal(reader.fetch(2).tensors["a"], versions[2])
    assert reader.newest() == 2


def test_a_copy_that_the_mirror_has_not_yet_is_known_by_the_root(published: Any, tmp_path: Path) -> None:
    store, versions = published
    reader, keep = life(store, tmp_path)
    reader.fetch(5)
    keep.close()
    region = MemoryStore()
    chain(region, 3)
    reader = Subscriber(region, KEYS, "solver", root=store, keep=KeptCopy(tmp_path))
    assert reader.fetch(5).payload_bytes == 0
    assert torch.equal(reader.fetch(2).tensors["a"], versions[2])


def test_room_is_taken_where_a_system_can_not_take_it_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.posix_fallocate", raising=False)
    store = MemoryStore()
    versions = chain(store, 2)
    reader, keep = life(store, tmp_path)
    reader.fetch(1)
    keep.close()
    reader, _ = life(store, tmp_path)
    assert torch.equal(reader.fetch(1).tensors["a"], versions[1])
    assert reader.version == 1


def test_a_store_that_fails_leaves_the_copy_as_it_was(published: Any, tmp_path: Path) -> None:
    store, _ = published
    reader, keep = life(store, tmp_path)
    reader.fetch(3)

    class Away(MemoryStore):
        def get(self, key: str) -> bytes:
            if key.endswith(".safetensors"):
                raise StoreError("away", where=key, kind="unreachable")
            return store.get(key)

    reader._store = Away()
    with pytest.raises(StoreError):
        reader.fetch(4)
    keep.close()
    again, _ = life(store, tmp_path)
    assert again.version == 3


def test_a_folder_that_can_not_be_written_is_said_and_a_full_one_done_without(published: Any, tmp_path: Path) -> None:
    store, versions = published
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="copy_folder"):
        KeptCopy(tmp_path / "file" / "folder")
    keep = KeptCopy(tmp_path / "full")
    (tmp_path / "full" / "BF16.words").mkdir()
    reader = Subscriber(store, KEYS, "solver", keep=keep)
    assert torch.equal(reader.fetch(3).tensors["a"], versions[3])
    assert not keep.is_ours
