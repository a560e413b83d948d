"""The object store: the one thing that all processes of a run share."""

from __future__ import annotations

from storage.local import LocalStore
from storage.location import Location
from storage.memory import MemoryStore
from storage.store import Created, ObjectInfo, ObjectStore

__all__ = ["Created", "ObjectInfo", "ObjectStore", "open_store"]


def open_store(url: str) -> ObjectStore:
    """Open the store at ``url``. Raises ``ConfigError`` for a URL that names none, ``StoreError`` if it is unusable."""
    location = Location.parse(url)
    if location.scheme == "file":
        return LocalStore(location.path)
    if location.scheme == "memory":
        return MemoryStore.at(location.url)
    if location.scheme == "s3":
        from storage.s3 import S3Store  # noqa: PLC0415 - only who uses S3 loads its client

        return S3Store(location.bucket, location.prefix)
    from storage.fsspec_store import open_fsspec_store  # noqa: PLC0415

    return open_fsspec_store(location.url)
