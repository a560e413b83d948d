"""An ``ObjectStore`` as an fsspec filesystem, for libraries that want files, where there is no better one.

Reads are ranges, read ahead. What is written appears whole at its close: it is sent part by part where the store can
take that (``BucketStore.writer``), else it is kept until then.
"""

from __future__ import annotations

import io
from typing import IO, Any

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from storage.bucket import BucketStore
from storage.errors import NotFound
from storage.store import ObjectStore

_READ_AHEAD_BYTES = 4 << 20


class StoreFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Paths are keys. Folders exist as far as keys do."""

    protocol = "astraflow-store"
    cachable = False
    root_marker = ""

    def __init__(self, store: ObjectStore, **options: Any) -> None:
        super().__init__(**options)
        self.store = store

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(path).strip("/")

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        exact = next((found for found in self.store.list(path, limit=1) if found.key == path), None) if path else None
        if exact is not None:
            return {"name": path, "size": exact.size_bytes, "type": "file", "ETag": exact.e_tag}
        if not path or next(iter(self.store.list(f"{path}/", limit=1)), None) is not None:
            return {"name": path, "size": 0, "type": "directory"}
        raise FileNotFoundError(path)

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        path = self._strip_protocol(path)
        folder = f"{path}/" if path else ""
        entries: dict[str, dict[str, Any]] = {}
        for found in self.store.list(folder):
            name, slash, _rest = found.key[len(folder) :].partition("/")
            kind = {"size": 0, "type": "directory"} if slash else {"size": found.size_bytes, "type": "file"}
            entries.setdefault(folder + name, {"name": folder + name, **kind})
        if not entries:
            entries[path] = self.info(path)
        return list(entries.values()) if detail else list(entries)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        try:
            key = self._strip_protocol(path)
            if start is not None and end is not None and 0 <= start <= end:
                return self.store.get_range(key, start, end - start)
            return self.store.get(key)[start:end]
        except NotFound as error:
            raise FileNotFoundError(path) from error

    def pipe_file(self, path: str, value: bytes, **_: Any) -> None:
        self.store.put(self._strip_protocol(path), bytes(value))

    def rm_file(self, path: str) -> None:
        self.store.delete(self._strip_protocol(path))

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        if not self.isdir(path1):
            self.pipe_file(path2, self.cat_file(path1))

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """Folders need no making."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Folders need no making."""

    def rmdir(self, path: str) -> None:
        """A folder is gone with its last object."""

    def _open(self, path: str, mode: str = "rb", **_: Any) -> Any:
        if mode == "rb":
            return _Ranges(self, self._strip_protocol(path), mode, block_size=_READ_AHEAD_BYTES)
        if mode == "wb" and isinstance(self.store, BucketStore):
            return _Parts(self.store.writer(self._strip_protocol(path)))
        before = self.cat_file(path) if mode == "ab" and self.exists(path) else b""
        return _Upload(self, path, before)


class _Ranges(AbstractBufferedFile):  # type: ignore[misc]
    """An object being read."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        data: bytes = self.fs.cat_file(self.path, start, end)
        return data


class _Parts(io.RawIOBase):
    """An object being sent part by part; left out if its block failed."""

    def __init__(self, upload: IO[bytes]) -> None:
        super().__init__()
        self._upload = upload
        self._sent_bytes = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._sent_bytes

    def write(self, data: Any) -> int:
        self._upload.write(bytes(data))  # it may keep what it is given, and callers use their buffers again
        self._sent_bytes += memoryview(data).nbytes
        return memoryview(data).nbytes

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self.close()
        else:
            super().close()

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._upload.close()


class _Upload(io.BytesIO):
    """A file being written: put when it is closed, left out if its block failed."""

    def __init__(self, filesystem: StoreFileSystem, path: str, before: bytes) -> None:
        super().__init__()
        self.write(before)
        self._filesystem = filesystem
        self._path = path

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is None:
            self.close()
        else:
            super().close()

    def close(self) -> None:
        if not self.closed:
            self._filesystem.pipe_file(self._path, self.getvalue())
        super().close()
