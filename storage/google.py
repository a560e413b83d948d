"""Google Cloud Storage, through obstore (``storage.bucket``): ``gs://bucket/prefix``.

Credentials come from GOOGLE_APPLICATION_CREDENTIALS, from gcloud's own file or from the machine's service account;
they never stand in a URL or a message. A create is conditional by ``x-goog-if-generation-match: 0``.
"""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Any

from obstore.exceptions import BaseError
from obstore.store import GCSStore as Client

from storage.bucket import NO_TOKEN, RETRIES, BucketStore, Provider
from storage.errors import StoreError

if TYPE_CHECKING:
    from obstore.store import ClientConfig

ENDPOINT = "GOOGLE_STORAGE_ENDPOINT"  # of a server that speaks Google's XML API; asked with GOOGLE_BEARER_TOKEN
_REMEDY = "Set GOOGLE_APPLICATION_CREDENTIALS to a key file, run `gcloud auth application-default login`, or give the \
machine a service account"


class GoogleStore(BucketStore):
    """The objects of ``bucket`` under ``prefix``."""

    def __init__(self, bucket: str, prefix: str = "") -> None:
        endpoint = os.environ.get(ENDPOINT)
        token = os.environ.get("GOOGLE_BEARER_TOKEN") or "none"
        place: dict[str, Any] = {"base_url": endpoint, "bearer_token": token} if endpoint else {}

        def client(options: ClientConfig) -> Client:
            options = {"allow_http": bool(endpoint and endpoint.startswith("http:")), **options}
            return Client(bucket, client_options=options, retry_config=RETRIES, **place)

        provider = Provider(
            name="Google",
            scheme="gs",
            client=client,
            no_bucket=frozenset({"NoSuchBucket"}),
            endpoint=endpoint or "Google",
            network=f"{ENDPOINT} if that is set",
            remedy=partial(_remedy, bucket),
        )
        try:
            super().__init__(bucket, prefix, provider)
        except (BaseError, OSError) as error:  # its text may quote a key file
            raise StoreError(
                f"Google's credentials cannot be read ({type(error).__name__})",
                where=f"gs://{bucket}/{prefix}".rstrip("/"),
                remedy=_REMEDY,
                kind="denied",
            ) from None


def _remedy(bucket: str, code: str) -> str:
    if code in ("AuthenticationRequired", "InvalidSecurity", "ExpiredToken", NO_TOKEN):
        return _REMEDY
    return f"Give these credentials the role Storage Object Admin on bucket {bucket!r}"
