"""What only a folder does: atomic names, its own corner, the disk's errors; and a model of it all."""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from storage import Created, open_store
from storage.errors import NotFound, StoreError
from storage.local import TEMPORARY, LocalStore
from storage.memory import MemoryStore

# No key is a folder of another: a disk cannot have both.
KEYS = [f"{folder}{name}" for folder in ("", "a/", "a-b/", "a/b/", "a.b/") for name in ("x", "x-1", "x.json", "y")]


class AgainstModel(RuleBasedStateMachine):
    """A folder and a memory store answer every sequence of calls as a dictionary does."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.stores = [LocalStore(self.folder), MemoryStore()]
        self.model: dict[str, bytes] = {}

    def teardown(self) -> None:
        shutil.rmtree(self.folder)

    @rule(key=st.sampled_from(KEYS), data=st.binary(max_size=20))
    def put(self, key: str, data: bytes) -> None:
        for store in self.stores:
            store.put(key, data)
        self.model[key] = data

    @rule(key=st.sampled_from(KEYS), data=st.binary(max_size=20))
    def create(self, key: str, data: bytes) -> None:
        expected = Created.EXISTED if key in self.model else Created.CREATED
        assert [store.create(key, data) for store in self.stores] == [expected] * 2
        self.model.setdefault(key, data)

    @rule(key=st.sampled_from(KEYS))
    def delete(self, key: str) -> None:
        for store in self.stores:
            store.delete(key)
        self.model.pop(key, None)

    @rule(key=st.sampled_from(KEYS), start=st.integers(0, 25), length=st.integers(0, 25))
    def read(self, key: str, start: int, length: int) -> None:
        for store in self.stores:
            if key in self.model:
                assert store.get(key) == self.model[key]
                assert store.get_range(key, start, length) == self.model[key][start : start + length]
            else:
                with pytest.raises(NotFound):
                    store.get(key)

    @rule(
        prefix=st.sampled_from(["", "a", "a/", "a-", "a/b", "a/b/", "a.b/x", "x", "zz/"]),
        after=st.sampled_from([None, *KEYS, "a", "a/b/", "m"]),
        limit=st.sampled_from([None, 0, 1, 3]),
    )
    def list(self, prefix: str, after: str | None, limit: int | None) -> None:
        expected = sorted(key for key in self.model if key.startswith(prefix) and key > (after or ""))[:limit]
        for store in self.stores:
            found = [*store.list(prefix, after=after, limit=limit)]
            assert [info.key for info in found] == expected
            assert [info.size_bytes for info in found] == [len(self.model[key]) for key in expected]


TestAgainstModel = AgainstModel.TestCase
TestAgainstModel.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)


def test_nothing_but_objects_is_left(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("a", b"1")
    store.create("b", b"1")
    store.create("b", b"2")
    assert list((tmp_path / TEMPORARY).iterdir()) == []
    assert [info.key for info in store.list("")] == ["a", "b"]


def test_the_stores_own_corner_is_closed(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for key in (TEMPORARY, f"{TEMPORARY}/x"):
        with pytest.raises(StoreError) as caught:
            store.put(key, b"")
        assert caught.value.kind == "denied"
    store.put("folder/.tmp/x", b"1")
    assert [info.key for info in store.list("")] == ["folder/.tmp/x"]


def test_files_that_a_killed_process_left_are_swept_after_a_day(tmp_path: Path) -> None:
    old, new = tmp_path / TEMPORARY / "old", tmp_path / TEMPORARY / "new"
    old.parent.mkdir()
    old.touch()
    new.touch()
    os.utime(old, (1, 1))
    LocalStore(tmp_path)
    assert [path.name for path in old.parent.iterdir()] == ["new"]


def test_a_killed_writer_leaves_whole_objects_only(tmp_path: Path) -> None:
    program = (
        "import itertools, sys; from storage.local import LocalStore; store = LocalStore(sys.argv[1])\n"
        "print('up', flush=True)\n"
        "for n in itertools.count():\n"
        "    store.create(f'log/{n:06d}', b'%06d' % n * 20000); store.put('status', b'%d' % (n % 10) * 50000)"
    )
    child = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.readline()
    store = LocalStore(tmp_path)
    while len(list(store.list("log/"))) < 20:
        assert child.poll() is None
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    logged = list(store.list("log/"))
    assert [info.key for info in logged] == [f"log/{number:06d}" for number in range(len(logged))]
    assert all(store.get(info.key) == info.key[-6:].encode() * 20000 for info in logged)
    assert len(set(store.get("status"))) == 1


def test_paths_that_name_the_same_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    urls = {
        open_store(path).url
        for path in ("runs", "./runs/", "~/runs", str(tmp_path / "runs"), f"file://{tmp_path}/runs")
    }
    assert urls == {(tmp_path / "runs").as_uri()}
    assert not (tmp_path / "runs").exists(), "opening writes nothing"


def test_a_listing_leaves_out_what_is_deleted_under_it(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    for name in "abc":
        store.put(name, b"")
    listing = store.list("")
    assert next(listing).key == "a"
    store.delete("b")
    assert [info.key for info in listing] == ["c"]


def failing(error: OSError) -> object:
    def call(*_: object, **__: object) -> None:
        raise error

    return call


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.EPERM, "Operation not permitted", "a", None, "b"), "unsafe"),
        (OSError(errno.ENOTSUP, "Not supported", "a", None, "b"), "unsafe"),
        (PermissionError(errno.EACCES, "Permission denied"), "denied"),
        (OSError(errno.ENOSPC, "No space left on device"), "unreachable"),
        (OSError(errno.EIO, "Input/output error"), "unreachable"),
    ],
)
def test_errors_of_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, kind: str) -> None:
    store = LocalStore(tmp_path)
    monkeypatch.setattr("os.link", failing(error))
    with pytest.raises(StoreError) as caught:
        store.create("x", b"1")
    assert caught.value.kind == kind
    assert caught.value.where == f"{store.url}/x"
    assert caught.value.remedy
    assert list((tmp_path / TEMPORARY).iterdir()) == []
    with pytest.raises(NotFound):
        store.get("x")


def test_a_key_is_an_object_or_a_folder(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("folder/x", b"1")
    for key in ("folder", "folder/x/y"):
        with pytest.raises(StoreError) as caught:
            store.put(key, b"2")
        assert caught.value.kind == "denied"
    with pytest.raises(StoreError) as caught:
        store.create("folder/x/y", b"2")
    assert caught.value.kind == "denied"
    assert [info.key for info in store.list("")] == ["folder/x"]
    assert list((tmp_path / TEMPORARY).iterdir()) == []


def test_a_full_disk_leaves_no_half_file(tmp_path: Path) -> None:
    store = LocalStore(tmp_path)
    store.put("x", b"before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))  # a real write that breaks off
    try:
        with pytest.raises(StoreError) as caught:
            store.put("x", b"after" * 1000)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.kind == "unreachable"
    assert store.get("x") == b"before"
    assert list((tmp_path / TEMPORARY).iterdir()) == []


def test_where_the_root_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    store = LocalStore(tmp_path / "file")
    assert list(store.list("")) == []
    with pytest.raises(StoreError):
        store.put("x", b"")
    with pytest.raises(NotFound):
        store.get("x")
    store.delete("x")


def test_delete_and_list_report_the_disks_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = LocalStore(tmp_path)
    store.put("x", b"")
    monkeypatch.setattr("os.unlink", failing(PermissionError(errno.EACCES, "no")))
    monkeypatch.setattr("os.scandir", failing(OSError(errno.EIO, "no")))
    with pytest.raises(StoreError, match="no"):
        store.delete("x")
    with pytest.raises(StoreError, match="no"):
        list(store.list(""))
