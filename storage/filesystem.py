"""The same places as fsspec filesystems, for libraries that want one: pyarrow datasets, distributed checkpoints.

Only for bulk data. fsspec has no conditional create that can be relied on: logs go through ``ObjectStore``.
"""

from __future__ import annotations

import os

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
        return _s3(), location.rest
    if location.scheme == "memory":
        return StoreFileSystem(MemoryStore.at(location.url)), ""
    if location.scheme in ("s3", "az", "gs"):
        from storage.buckets import open_bucket  # noqa: PLC0415  # only who uses a bucket loads its client

        return StoreFileSystem(open_bucket(location)), ""
    filesystem, path = fsspec.core.url_to_fs(location.url)
    return filesystem, str(path)


def _s3() -> fsspec.AbstractFileSystem:
    """s3fs without its listing cache (others write), for stores with path-style addresses and no trailing checksums."""
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    return fsspec.filesystem(
        "s3",
        use_listings_cache=False,
        skip_instance_cache=False,
        endpoint_url=endpoint or None,
        config_kwargs={
            "s3": {"addressing_style": "path" if endpoint else "auto"},
            "max_pool_connections": 64,
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
            "connect_timeout": 5,
            "retries": {"max_attempts": 5, "mode": "standard"},
        },
    )
