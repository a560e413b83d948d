"""The same places as fsspec filesystems, for libraries that want one: pyarrow datasets, distributed checkpoints.

Only for bulk data. fsspec has no conditional create that can be relied on: logs go through ``ObjectStore``.
"""

from __future__ import annotations

import fsspec

from storage.location import Location
from storage.memory import MemoryStore
from storage.store_filesystem import StoreFileSystem


def open_filesystem(url: str) -> tuple[fsspec.AbstractFileSystem, str]:
    """The filesystem of a store URL, and the path of the store's root in it. Honours the AWS_* environment."""
    location = Location.parse(url)
    if location.scheme == "file":
        return fsspec.filesystem("file", auto_mkdir=True), location.rest
    if location.scheme == "s3" and not location.options:
        from storage.s3_filesystem import open_s3_filesystem  # noqa: PLC0415  # only who uses a bucket loads its client

        return open_s3_filesystem(), location.rest
    if location.scheme == "memory":
        return StoreFileSystem(MemoryStore.at(location.url)), ""
    if location.scheme in ("s3", "az", "gs"):
        from storage.buckets import open_bucket  # noqa: PLC0415  # only who uses a bucket loads its client

        return StoreFileSystem(open_bucket(location)), ""
    filesystem, path = fsspec.core.url_to_fs(location.url)
    return filesystem, str(path)
