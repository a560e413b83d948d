"""One contract, every backend: what the rest of the system may rely on."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from storage import Created, ObjectStore, open_store
from storage.errors import DataError, NotFound, StoreError
from storage.log import NumberedLog
from storage.probe import check_store

_lock = threading.Lock()


class LockedFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """fsspec's memory filesystem, whose create is made atomic: what a good third-party filesystem is like."""

    protocol = "locked"
    store: dict[str, object] = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: object) -> None:
        with _lock:
            super().pipe_file(path, value, mode=mode, **kwargs)


fsspec.register_implementation("locked", LockedFileSystem, clobber=True)


@pytest.fixture(
    params=["memory", "local", "fsspec", "moto", pytest.param("s3", marks=pytest.mark.s3), "azure"],
)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    url: Callable[[], str] = {
        "memory": lambda: f"memory://{uuid.uuid4().hex}",
        "local": lambda: str(tmp_path / "store with a space"),
        "fsspec": lambda: f"locked://{uuid.uuid4().hex}/root",
        "moto": lambda: request.getfixturevalue("moto_store_url"),
        "s3": lambda: request.getfixturevalue("s3_store_url"),
        "azure": lambda: request.getfixturevalue("azure_store_url"),
    }[request.param]
    return open_store(url())


def is_seaweed(store: ObjectStore) -> bool:
    return store.url.startswith("s3:") and os.environ["AWS_ACCESS_KEY_ID"] != "moto-key"


def keys(store: ObjectStore, prefix: str = "", **arguments: object) -> list[str]:
    return [info.key for info in store.list(prefix, **arguments)]  # type: ignore[arg-type]


def test_what_is_written_is_read(store: ObjectStore) -> None:
    store.put("a/b/c.json", b"one")
    assert store.get("a/b/c.json") == b"one"
    store.put("a/b/c.json", b"another")
    assert store.get("a/b/c.json") == b"another"
    assert isinstance(store, ObjectStore)


def test_create_only_where_nothing_is(store: ObjectStore) -> None:
    assert store.create("log/0", b"first") is Created.CREATED
    assert store.create("log/0", b"second") is Created.EXISTED
    assert store.create("log/0", b"first") is Created.EXISTED
    assert store.get("log/0") == b"first"
    store.delete("log/0")
    assert store.create("log/0", b"third") is Created.CREATED
    assert store.get("log/0") == b"third"


def test_create_does_not_replace_a_put(store: ObjectStore) -> None:
    store.put("x", b"put")
    assert store.create("x", b"created") is Created.EXISTED
    assert store.get("x") == b"put"


def test_one_of_sixteen_racing_creators_wins(store: ObjectStore) -> None:
    # SeaweedFS lets rivals for one key wait for each other, a second each: few rounds there, and some of its answers
    # come too late, so that they must be asked for again.
    rounds = 2 if is_seaweed(store) else 10
    log = NumberedLog(store, "race/{:04d}".format)
    with ThreadPoolExecutor(16) as threads:
        for number in range(rounds):
            offers = [f"{writer} ".encode() * 100 for writer in range(16)]
            theirs = list(threads.map(lambda data, number=number: log.create(number, data), offers))
            winners = [data for data, other in zip(offers, theirs, strict=True) if other is None]
            assert winners == [store.get(log.key(number))]
            assert {other for other in theirs if other is not None} == set(winners)


def test_racing_creators_are_told(store: ObjectStore) -> None:
    rivals = 3 if is_seaweed(store) else 16
    with ThreadPoolExecutor(rivals) as threads:
        for number in range(3):
            offers = [f"{writer} ".encode() * 100 for writer in range(rivals)]
            key = f"race/{number:04d}"
            answers = list(threads.map(lambda data, key=key: store.create(key, data), offers))
            winners = [data for data, answer in zip(offers, answers, strict=True) if answer is Created.CREATED]
            assert winners == [store.get(key)]


def test_an_object_never_shows_in_part(store: ObjectStore) -> None:
    versions = [bytes([value]) * 300_000 for value in range(4)]
    store.put("big", versions[0])
    with ThreadPoolExecutor(4) as threads:
        writes = [threads.submit(store.put, "big", versions[turn % 4]) for turn in range(12)]
        reads = [threads.submit(store.get, "big") for _ in range(12)]
        assert all(read.result() in versions for read in reads)
        assert [write.result() for write in writes] == [None] * 12


def test_missing_objects(store: ObjectStore) -> None:
    with pytest.raises(NotFound, match="nothing/here"):
        store.get("nothing/here")
    with pytest.raises(NotFound):
        store.get_range("nothing/here", 0, 10)
    with pytest.raises(NotFound):
        store.get_range("nothing/here", 0, 0)
    store.delete("nothing/here")
    assert keys(store, "nothing/") == []
    store.put("folder/object", b"")
    with pytest.raises(NotFound):
        store.get("folder")
    with pytest.raises(NotFound):
        store.get("folder/object/below")
    store.delete("folder/object/below")


def test_deleted_is_gone(store: ObjectStore) -> None:
    store.put("a", b"1")
    store.put("b", b"2")
    store.delete("a")
    store.delete("a")
    assert keys(store) == ["b"]
    with pytest.raises(NotFound):
        store.get("a")


def test_ranges(store: ObjectStore) -> None:
    store.put("digits", b"0123456789")
    assert store.get_range("digits", 0, 4) == b"0123"
    assert store.get_range("digits", 7, 2) == b"78"
    assert store.get_range("digits", 7, 100) == b"789"
    assert store.get_range("digits", 10, 5) == b""
    assert store.get_range("digits", 50, 5) == b""
    assert store.get_range("digits", 3, 0) == b""


def test_empty_objects(store: ObjectStore) -> None:
    assert store.create("empty", b"") is Created.CREATED
    assert store.create("empty", b"") is Created.EXISTED
    assert store.get("empty") == b""
    assert store.get_range("empty", 0, 5) == b""
    assert [(info.key, info.size_bytes) for info in store.list("empty")] == [("empty", 0)]


@pytest.mark.parametrize("size_bytes", [10_000_000, 20_000_000])
def test_large_objects(store: ObjectStore, size_bytes: int) -> None:
    data = bytes(range(251)) * (size_bytes // 251 + 1)
    store.put("large", data)
    assert store.get("large") == data
    assert store.get_range("large", size_bytes - 9, 5) == data[size_bytes - 9 : size_bytes - 4]
    assert store.create("large-too", data) is Created.CREATED
    assert store.get("large-too") == data
    assert {info.size_bytes for info in store.list("large")} == {len(data)}


def test_listing_is_in_key_order(store: ObjectStore) -> None:
    names = ["b", "a/2", "a/10", "a/b/1", "a/b/0", "ab/0", "Z", "c/x.json", "c/x"]
    for name in names:
        store.put(name, name.encode())
    assert keys(store) == sorted(names)
    assert keys(store, "a/") == ["a/10", "a/2", "a/b/0", "a/b/1"]
    assert keys(store, "a") == ["a/10", "a/2", "a/b/0", "a/b/1", "ab/0"]
    assert keys(store, "a/b/") == ["a/b/0", "a/b/1"]
    assert keys(store, "c/x") == ["c/x", "c/x.json"]
    assert keys(store, "c/x.") == ["c/x.json"]
    assert keys(store, "d/") == []
    assert [info.size_bytes for info in store.list("c/")] == [3, 8]


def test_listing_after_and_limit(store: ObjectStore) -> None:
    names = [f"log/{number:04d}" for number in range(25)]
    for name in [*names, "other/1"]:
        store.create(name, b"x")
    assert keys(store, "log/", limit=3) == names[:3]
    assert keys(store, "log/", limit=0) == []
    assert keys(store, "log/", after="log/0004", limit=2) == names[5:7]
    assert keys(store, "log/", after="log/0004") == names[5:]
    assert keys(store, "log/", after="log/0024") == []
    assert keys(store, "log/", after="log/00045") == names[5:]
    assert keys(store, "log/001", after="log/0015") == names[16:20]
    assert keys(store, "log/", after="a") == names
    assert keys(store, "log/", after="z") == []
    assert keys(store, after="log/0022") == ["log/0023", "log/0024", "other/1"]


def test_listing_enters_only_what_is_after(store: ObjectStore) -> None:
    for folder in ("a", "b", "c"):
        for number in range(3):
            store.put(f"r/{folder}/{number}", b"")
    assert keys(store, "r/", after="r/b/1") == ["r/b/2", "r/c/0", "r/c/1", "r/c/2"]
    folders = "c" if is_seaweed(store) else "bc"  # SeaweedFS leaves out a folder that ``after`` names; no caller does
    assert keys(store, "r/", after="r/b") == [f"r/{folder}/{number}" for folder in folders for number in range(3)]


def test_listing_shows_more_than_a_page(store: ObjectStore) -> None:
    names = [f"many/{number:05d}" for number in range(1100)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda name: store.put(name, b"x"), names))
    assert keys(store, "many/") == names
    assert keys(store, "many/", after=names[1049]) == names[1050:]


def test_e_tag_changes_with_every_write(store: ObjectStore) -> None:
    seen = set()
    for text in (b"1", b"2", b"3", b"2"):
        store.put("status/p.json", text)
        (info,) = store.list("status/")
        seen.add((info.e_tag, text))
    assert len({e_tag for e_tag, _ in seen}) >= 3
    (before,) = store.list("status/")
    store.get("status/p.json")
    (after,) = store.list("status/")
    assert before == after


@pytest.mark.parametrize(
    "key",
    ["a b", "a%20b", "a+b", "policy=solver/version=3/x-y_z.parquet", "a#b?c", "~x", "q'&*(){}", "ä/ö", "a.", ".x"],
)
def test_odd_keys(store: ObjectStore, key: str) -> None:
    store.put(key, key.encode())
    assert store.get(key) == key.encode()
    assert keys(store) == [key]
    store.delete(key)
    assert keys(store) == []


@pytest.mark.parametrize(
    "key", ["", "/a", "a/", "a//b", "..", "a/../../b", "./a", "a/.", "a\nb", "a\x00b", "a\\b", "k" * 1025, "ä" * 600]
)
def test_keys_that_no_store_takes(store: ObjectStore, key: str) -> None:
    for call in (
        lambda: store.get(key),
        lambda: store.get_range(key, 0, 1),
        lambda: store.put(key, b""),
        lambda: store.create(key, b""),
        lambda: store.delete(key),
    ):
        with pytest.raises(DataError) as caught:
            call()
        assert caught.value.kind == "key"
    assert keys(store) == []


def test_listing_cannot_leave_the_root(store: ObjectStore) -> None:
    with pytest.raises(DataError):
        list(store.list("a/../../"))


def test_the_same_url_is_the_same_store(store: ObjectStore) -> None:
    store.put("x", b"1")
    again = open_store(store.url)
    assert again.url == store.url
    assert again.get("x") == b"1"
    assert store.url in repr(store)
    assert not store.url.endswith("/")


def test_stores_do_not_see_each_other(store: ObjectStore) -> None:
    inner = open_store(f"{store.url}/inner") if not store.url.startswith("memory:") else open_store(store.url + "-2")
    store.put("x", b"1")
    with pytest.raises(NotFound):
        inner.get("x")
    inner.put("y", b"2")
    assert keys(inner) == ["y"]


def test_every_backend_passes_its_own_probe(store: ObjectStore) -> None:
    check_store(store, racers=0 if is_seaweed(store) else 4)
    assert keys(store) == []


def test_errors_are_store_errors() -> None:
    assert issubclass(NotFound, StoreError)
