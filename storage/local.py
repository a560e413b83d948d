"""A folder on a local disk as an object store, with an atomic ``create``.

An object is written to a temporary file and then given its name: ``os.link`` for ``create`` (the kernel lets
exactly one caller win), ``os.replace`` for ``put``. So a reader sees a whole object or none, whatever is killed
when. Nothing is fsynced: the death of a process loses nothing, the death of the machine may.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from storage.errors import NotFound, StoreError
from storage.store import Created, ObjectInfo, check_key, check_prefix

TEMPORARY = ".tmp"
"""Folder under the root for files that have no name yet: on the same disk, never listed."""

_Entries = list[tuple[str, bool]]
_ABANDONED_S = 24 * 3600.0
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EMLINK)


class LocalStore:
    """Objects are files under ``root``. Any number of processes of one machine may share it."""

    def __init__(self, root: Path | str) -> None:
        self._root = os.fspath(Path(root).expanduser().resolve())
        self._url = Path(self._root).as_uri()  # asked for at every object that is not there
        self._temporary = f"{self._root}/{TEMPORARY}"
        # Two lives never share a temporary name, and a forked child has another pid.
        self._life = uuid.uuid4().hex
        self._counter = itertools.count()
        self._sweep()

    def __repr__(self) -> str:
        return f"LocalStore({self.url!r})"

    @property
    def url(self) -> str:
        return self._url

    def get(self, key: str) -> bytes:
        path = self._path(key)
        try:
            with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - hot path: no Path object
                return file.readall()
        except OSError as error:
            raise _mapped(error, key, self._url) from error

    def get_range(self, key: str, start: int, length: int) -> bytes:
        path = self._path(key)
        try:
            with open(path, "rb") as file:  # noqa: PTH123
                file.seek(start)
                return file.read(length)
        except OSError as error:
            raise _mapped(error, key, self._url) from error

    def put(self, key: str, data: bytes) -> None:
        path = self._path(key)
        try:
            temporary = self._write(data)
            try:
                self._name(os.replace, temporary, path)
            except OSError:
                with suppress(OSError):
                    os.unlink(temporary)  # noqa: PTH108
                raise
        except OSError as error:
            raise _mapped(error, key, self._url, writing=True) from error

    def create(self, key: str, data: bytes) -> Created:
        path = self._path(key)
        if os.path.lexists(path):  # spares the temporary file; the link below decides
            return Created.EXISTED
        try:
            temporary = self._write(data)
            try:
                self._name(os.link, temporary, path)
            finally:
                with suppress(OSError):
                    os.unlink(temporary)  # noqa: PTH108
        except FileExistsError:
            return Created.EXISTED
        except OSError as error:
            raise _mapped(error, key, self._url, writing=True) from error
        return Created.CREATED

    def list(self, prefix: str, *, after: str | None = None, limit: int | None = None) -> Iterator[ObjectInfo]:
        folder = check_prefix(prefix)
        return itertools.islice(self._walk(folder, prefix, after or ""), limit)

    def delete(self, key: str) -> None:
        try:
            os.unlink(self._path(key))  # noqa: PTH108
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            raise _mapped(error, key, self._url) from error

    def _path(self, key: str) -> str:
        check_key(key)
        if key == TEMPORARY or key.startswith(f"{TEMPORARY}/"):
            raise StoreError("that folder is the store's own", where=key, kind="denied")
        return f"{self._root}/{key}"

    def _write(self, data: bytes) -> str:
        """Write ``data`` to a new nameless file and return its path."""
        path = f"{self._temporary}/{self._life}-{os.getpid()}-{threading.get_ident()}-{next(self._counter)}"
        try:
            file = open(path, "xb", buffering=0)  # noqa: PTH123, SIM115
        except FileNotFoundError:
            os.makedirs(self._temporary, exist_ok=True)  # noqa: PTH103
            file = open(path, "xb", buffering=0)  # noqa: PTH123, SIM115
        try:
            with file:
                view = memoryview(data)
                while view:  # one write moves at most 2 GiB
                    view = view[file.write(view) :]
        except OSError:
            with suppress(OSError):
                os.unlink(path)  # noqa: PTH108
            raise
        return path

    @staticmethod
    def _name(give: Callable[[str, str], None], temporary: str, path: str) -> None:
        """Give the temporary file its name, making its folder first if it is the first object there."""
        try:
            give(temporary, path)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)  # noqa: PTH103, PTH120
            give(temporary, path)

    def _walk(self, folder: str, prefix: str, after: str) -> Iterator[ObjectInfo]:
        """Objects under ``folder`` in key order; folders that hold no key we want are not opened."""
        for name, is_folder in self._entries(folder):
            key = folder + name
            if is_folder:
                wanted = key.startswith(prefix) or prefix.startswith(key)
                if wanted and (key > after or after.startswith(key)):
                    yield from self._walk(key, prefix, after)
            elif key > after and key.startswith(prefix):
                try:
                    stat = os.stat(f"{self._root}/{key}")  # noqa: PTH116
                except OSError:  # deleted since
                    continue
                yield ObjectInfo(key, stat.st_size, f"{stat.st_mtime_ns:x}-{stat.st_ino:x}-{stat.st_size:x}")

    def _entries(self, folder: str) -> _Entries:
        """Names in ``folder``, those of folders with a slash: then their order is the order of the keys."""
        try:
            with os.scandir(f"{self._root}/{folder}") as scan:
                entries = [(f"{entry.name}/", True) if entry.is_dir() else (entry.name, False) for entry in scan]
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError as error:
            raise _mapped(error, folder, self._url) from error
        if not folder:
            entries = [entry for entry in entries if entry[0] != f"{TEMPORARY}/"]
        return sorted(entries)

    def _sweep(self) -> None:
        """Remove temporary files that a killed process left a day ago."""
        oldest = time.time() - _ABANDONED_S
        with suppress(OSError), os.scandir(self._temporary) as scan:
            for entry in scan:
                with suppress(OSError):
                    if entry.stat().st_mtime < oldest:
                        os.unlink(entry.path)  # noqa: PTH108


def _mapped(error: OSError, key: str, url: str, *, writing: bool = False) -> StoreError:
    """The store's error for a disk's error."""
    where = f"{url}/{key}"
    if writing and isinstance(error, NotADirectoryError | IsADirectoryError):
        remedy = "Choose another key: on a disk none is both an object and a folder of others"
        return StoreError(
            "a part of this key is an object, or it is a folder", where=where, remedy=remedy, kind="denied"
        )
    if isinstance(error, FileNotFoundError | NotADirectoryError | IsADirectoryError):
        return NotFound("there is no such object", where=where, kind="not_found")
    text = error.strerror or str(error)
    if error.errno in _NO_LINKS and error.filename2 is not None:
        remedy = "Put the store on a file system with hard links: create-if-absent needs them"
        return StoreError(f"this file system cannot link files ({text})", where=where, remedy=remedy, kind="unsafe")
    if isinstance(error, PermissionError):
        return StoreError(text, where=where, remedy="Give this user access to the folder", kind="denied")
    remedy = "Check the disk: that it is mounted and has room"
    return StoreError(text, where=where, remedy=remedy, kind="unreachable")
