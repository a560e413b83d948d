"""Other filesystems: careless ones are refused, their errors are translated."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from storage import open_store
from storage.errors import ConfigError, NotFound, StoreError
from storage.fsspec_store import FsspecStore, open_fsspec_store
from storage.store import Created


class Careless(MemoryFileSystem):  # type: ignore[misc]
    """Takes the mode and ignores it, as filesystems do that do not know it."""

    protocol = "careless"

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: object) -> None:
        super().pipe_file(path, value, mode="overwrite", **kwargs)


class Failing(MemoryFileSystem):  # type: ignore[misc]
    """Raises what the test sets, from every call."""

    protocol = "failing"
    cachable = False
    error: Exception = OSError(5, "Input/output error")

    def _fail(self, *_: object, **__: object) -> None:
        raise self.error

    cat_file = info = pipe_file = rm_file = find = exists = _fail


fsspec.register_implementation("careless", Careless, clobber=True)


def test_a_filesystem_without_exclusive_create_is_refused() -> None:
    with pytest.raises(StoreError) as caught:
        open_fsspec_store(f"careless://{uuid.uuid4().hex}", tries=1)
    assert caught.value.kind == "unsafe"


@pytest.mark.parametrize("url", ["nosuchscheme://x/y", "gsx://bucket/x"])
def test_unknown_schemes(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_store(url)
    assert caught.value.kind == "store_url"
    assert url in caught.value.where


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(5, "Input/output error"), "unreachable"),
        (TimeoutError("slow"), "unreachable"),
        (PermissionError("no"), "denied"),
    ],
)
def test_errors_are_translated(error: Exception, kind: str) -> None:
    filesystem = Failing()
    filesystem.error = error
    store = FsspecStore(filesystem, "/root", "failing://root")
    calls: list[Callable[[], object]] = [
        lambda: store.get("x"),
        lambda: store.get_range("x", 0, 1),
        lambda: store.put("x", b""),
        lambda: store.create("x", b""),
        lambda: list(store.list("")),
        lambda: store.delete("x"),
    ]
    for call in calls:
        with pytest.raises(StoreError) as caught:
            call()
        assert caught.value.kind == kind
        assert caught.value.where.startswith("failing://root/")


def test_missing_is_no_error_where_it_need_not_be_one() -> None:
    filesystem = Failing()
    filesystem.error = FileNotFoundError("x")
    store = FsspecStore(filesystem, "/root", "failing://root")
    store.delete("x")
    assert list(store.list("")) == []
    with pytest.raises(NotFound):
        store.get("x")


def test_a_refusal_in_other_words_is_recognised() -> None:
    class Wordy(MemoryFileSystem):  # type: ignore[misc]
        protocol = "wordy"

        def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: object) -> None:
            try:
                super().pipe_file(path, value, mode=mode, **kwargs)
            except FileExistsError:
                raise OSError(22, "precondition failed") from None

    store = FsspecStore(Wordy(), f"/{uuid.uuid4().hex}", "wordy://root")
    assert store.create("x", b"1") is Created.CREATED
    assert store.create("x", b"2") is Created.EXISTED


def test_a_disk_behind_fsspec_is_refused_since_it_shows_halves(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"shows a half|writers create it") as caught:
        open_store(f"local://{tmp_path}")
    assert caught.value.kind == "unsafe"
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
