"""Blobs come in order, some ahead of their use: a few small ones, of large ones as many as fit."""

from __future__ import annotations

import threading

import pytest

from astraflow.weights import downloader
from astraflow.weights.container import digest_blob
from astraflow.weights.downloader import AHEAD, downloads
from astraflow.weights.manifest import Blob
from storage.errors import DataError
from storage.memory import MemoryStore


class Asked(MemoryStore):
    """Counts what is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.lock = threading.Lock()

    def get(self, key: str) -> bytes:
        with self.lock:
            self.asked += 1
        return super().get(key)


def filled(sizes: list[int]) -> tuple[Asked, list[tuple[str, Blob]]]:
    store, blobs = Asked(), []
    for number, size in enumerate(sizes):
        data = bytes([number]) * size
        store.put(f"{number}", data)
        blobs.append((f"{number}", Blob(name=f"{number}.safetensors", size_bytes=size, hash=digest_blob(data))))
    return store, blobs


@pytest.mark.parametrize(("size", "most"), [(10, AHEAD), (400, 2), (5000, 1)])
def test_no_more_are_under_way_than_fit(size: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloader, "AHEAD_BYTES", 1000)
    store, blobs = filled([size] * 9)
    for number, (key, data) in enumerate(downloads(store, blobs), start=1):
        assert (key, data) == (f"{number - 1}", bytes([number - 1]) * size)
        assert store.asked <= min(9, number + most - 1)
    assert store.asked == 9


def test_other_bytes_than_the_manifests_are_refused() -> None:
    store, blobs = filled([10, 10])
    store.put("1", b"x" * 10)
    stream = downloads(store, blobs)
    assert next(stream)[0] == "0"
    with pytest.raises(DataError) as caught:
        next(stream)
    assert (caught.value.kind, caught.value.where) == ("digest", "1")
