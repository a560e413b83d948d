"""Which store a bucket's URL means. Clients are loaded only for whoever has such a bucket."""

from __future__ import annotations

from storage.bucket import BucketStore
from storage.location import Location


def open_bucket(location: Location) -> BucketStore:
    """The store of a location whose scheme is s3, az or gs. Raises ``StoreError`` if it is unusable."""
    if location.scheme == "az":
        from storage.azure import AzureStore  # noqa: PLC0415

        return AzureStore(location.bucket, location.prefix)
    if location.scheme == "gs":
        from storage.google import GoogleStore  # noqa: PLC0415

        return GoogleStore(location.bucket, location.prefix)
    from storage.s3 import S3Store  # noqa: PLC0415

    return S3Store(location.bucket, location.prefix, dict(location.options))
