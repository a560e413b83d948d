"""Uploads that were begun and never finished: no listing shows them, and S3 keeps, and bills, their parts.

A local store sweeps its nameless files by itself; Google's and Azure's stores drop unfinished uploads after a week.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import botocore.exceptions
from botocore.config import Config

from storage.errors import StoreError
from storage.location import Location
from storage.s3_access import IGNORE_CONFIGURED, S3Access
from storage.store import ObjectStore

_CONFIG = Config(connect_timeout=3, read_timeout=30, retries={"total_max_attempts": 3}, **IGNORE_CONFIGURED)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """An upload that was begun. ``id`` is the server's."""

    key: str
    id: str


def unfinished(store: ObjectStore, prefix: str) -> list[Unfinished]:
    """Uploads under ``prefix`` that have not ended. Of a run that goes on, some may be under way.

    Raises ``StoreError``: ``denied`` where these credentials may not list them, ``unreachable``.
    """
    location = Location.parse(store.url)
    if location.scheme != "s3":
        return []
    root = f"{location.prefix}/" if location.prefix else ""
    with _translated(store.url):
        pages = (
            _client(location)
            .get_paginator("list_multipart_uploads")
            .paginate(Bucket=location.bucket, Prefix=root + prefix)
        )
        return [
            Unfinished(upload["Key"].removeprefix(root), upload["UploadId"])
            for page in pages
            for upload in page.get("Uploads", ())
        ]


def abort(store: ObjectStore, upload: Unfinished) -> None:
    """Give an upload up and free its parts. One that has ended meanwhile is no matter."""
    location = Location.parse(store.url)
    key = "/".join(part for part in (location.prefix, upload.key) if part)
    client = _client(location)
    with _translated(store.url), suppress(client.exceptions.NoSuchUpload):
        client.abort_multipart_upload(Bucket=location.bucket, Key=key, UploadId=upload.id)


@contextmanager
def _translated(url: str) -> Iterator[None]:
    """botocore's errors as the store's."""
    try:
        yield
    except botocore.exceptions.ClientError as error:
        code = error.response.get("Error", {}).get("Code", "")
        remedy = "Give these credentials s3:ListBucketMultipartUploads and s3:AbortMultipartUpload"
        raise StoreError(f"half uploads: S3 said {code}", where=url, remedy=remedy, kind="denied") from None
    except botocore.exceptions.BotoCoreError as error:
        raise StoreError(f"half uploads: {type(error).__name__}", where=url, kind="unreachable") from None


def _client(location: Location) -> Any:
    access = S3Access.of(dict(location.options), where=location.url)
    region, endpoint = access.region, access.endpoint or None
    return access.session.create_client("s3", region_name=region, endpoint_url=endpoint, config=_CONFIG)
