"""Any other fsspec filesystem as a store, if its exclusive create proves to be one.

fsspec promises nothing about ``mode="create"``: some filesystems refuse atomically, some check first and write then,
some ignore it, and those that are like a disk open the file first and fill it then, so that a reader, or everybody
after a kill, sees a half. So a store is opened only after a probe with racing writers and a reader beside a writer.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress

import fsspec

from storage.errors import ConfigError, NotFound, StoreError
from storage.location import Location
from storage.probe import check_store
from storage.store import Created, ObjectInfo, check_key, check_prefix

_RACERS = 8


def open_fsspec_store(url: str, *, tries: int = 4) -> FsspecStore:
    """Open and probe. Raises ``ConfigError`` for an unknown scheme, ``StoreError`` (unsafe) for a careless one."""
    location = Location.parse(url)
    try:
        filesystem, root = fsspec.core.url_to_fs(location.url, use_listings_cache=False)
    except (ValueError, ImportError) as error:
        raise ConfigError(
            f"no store for {location.scheme}:// ({error})",
            where=f"store {location.shown!r}",
            remedy=f"Use s3://, a folder, or install the fsspec package for {location.scheme}",
            kind="store_url",
        ) from error
    store = FsspecStore(filesystem, str(root).rstrip("/"), location.shown)
    check_store(store, tries=tries, racers=_RACERS, torn=True)
    return store


class FsspecStore:
    """Objects are files of ``filesystem`` under ``root``. Open it with ``open_fsspec_store``, which probes it."""

    def __init__(self, filesystem: fsspec.AbstractFileSystem, root: str, url: str) -> None:
        self._fs = filesystem
        self._root = root
        self._url = url

    def __repr__(self) -> str:
        return f"FsspecStore({self._url!r})"

    @property
    def url(self) -> str:
        return self._url

    def get(self, key: str) -> bytes:
        path = self._path(key)
        try:
            return bytes(self._fs.cat_file(path))
        except OSError as error:
            raise self._mapped(error, key) from error

    def get_range(self, key: str, start: int, length: int) -> bytes:
        path = self._path(key)
        try:
            size = int(self._fs.info(path)["size"])
            if length == 0 or start >= size:  # ranges that backends understand differently
                return b""
            return bytes(self._fs.cat_file(path, start=start, end=min(start + length, size)))
        except OSError as error:
            raise self._mapped(error, key) from error

    def put(self, key: str, data: bytes) -> None:
        path = self._path(key)
        try:
            self._make_folder(path)
            self._fs.pipe_file(path, data, mode="overwrite")
        except OSError as error:
            raise self._mapped(error, key) from error

    def create(self, key: str, data: bytes) -> Created:
        path = self._path(key)
        try:
            self._make_folder(path)
            self._fs.pipe_file(path, data, mode="create")
        except FileExistsError:
            return Created.EXISTED
        except OSError as error:
            # Some filesystems translate the refusal into another error; the object tells.
            if self._exists(path):
                return Created.EXISTED
            raise self._mapped(error, key) from error
        return Created.CREATED

    def list(self, prefix: str, *, after: str | None = None, limit: int | None = None) -> Iterator[ObjectInfo]:
        folder = check_prefix(prefix)
        return itertools.islice(self._list(folder, prefix, after or ""), limit)

    def delete(self, key: str) -> None:
        path = self._path(key)
        try:
            self._fs.rm_file(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise self._mapped(error, key) from error

    def _path(self, key: str) -> str:
        return f"{self._root}/{check_key(key)}"

    def _make_folder(self, path: str) -> None:
        with suppress(FileExistsError):
            self._fs.makedirs(path.rsplit("/", 1)[0], exist_ok=True)

    def _exists(self, path: str) -> bool:
        try:
            return bool(self._fs.exists(path))
        except OSError:
            return False

    def _list(self, folder: str, prefix: str, after: str) -> Iterator[ObjectInfo]:
        """fsspec lists whole trees and in no promised order: sorted here."""
        try:
            found = self._fs.find(f"{self._root}/{folder}".rstrip("/"), detail=True)
        except FileNotFoundError:
            return
        except OSError as error:
            raise self._mapped(error, prefix) from error
        for path in sorted(found):
            key = path.removeprefix(self._root).lstrip("/")
            if key.startswith(prefix) and key > after:
                yield ObjectInfo(key, int(found[path]["size"]), self._fs.ukey(path))

    def _mapped(self, error: OSError, key: str) -> StoreError:
        where = f"{self._url}/{key}"
        if isinstance(error, FileNotFoundError | IsADirectoryError | NotADirectoryError):
            return NotFound("there is no such object", where=where, kind="not_found")
        if isinstance(error, PermissionError):
            remedy = "Give these credentials read, write, list and delete"
            return StoreError(f"access was refused: {error}", where=where, remedy=remedy, kind="denied")
        remedy = "Check the network and the store's URL"
        return StoreError(f"the store cannot be reached: {error}", where=where, remedy=remedy, kind="unreachable")
