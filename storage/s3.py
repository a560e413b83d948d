"""S3 and what speaks like it, through obstore (``storage.bucket``).

Endpoint, region and credentials come from the AWS_* environment, profiles or the machine's role, or from what the URL
names (``storage.s3_access``); secrets never stand in a URL or a message. An upload that dies leaves parts that S3
keeps: give the bucket a lifecycle rule that aborts incomplete multipart uploads, or let maintenance do it
(``storage.uploads``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

import botocore.exceptions
import botocore.session
from obstore.store import S3Store as Client

from storage.bucket import RETRIES, BucketStore, Provider
from storage.errors import StoreError
from storage.location import query_of
from storage.s3_access import S3Access

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Credential

_CREDENTIALS_TTL = timedelta(minutes=10)


class S3Store(BucketStore):
    """The objects of ``bucket`` under ``prefix``; ``options`` are those of the URL."""

    def __init__(self, bucket: str, prefix: str = "", options: Mapping[str, str] | None = None) -> None:
        url = f"s3://{bucket}/{prefix}".rstrip("/")
        access = S3Access.of(options or {}, where=url)
        endpoint, region = access.endpoint, access.region
        credentials = _credentials(access.session, url)

        def client(options: ClientConfig) -> Client:
            place = {"endpoint": endpoint} if endpoint else {}
            return Client(
                bucket,
                region=region,
                client_options={"allow_http": endpoint.startswith("http:"), **options},
                retry_config=RETRIES,
                credential_provider=credentials,
                **place,  # type: ignore[arg-type]
            )

        provider = Provider(
            name="S3",
            scheme="s3",
            client=client,
            no_bucket=frozenset({"NoSuchBucket"}),
            endpoint=endpoint or "AWS",
            network="AWS_ENDPOINT_URL",
            remedy=partial(_remedy, bucket),
        )
        super().__init__(bucket, prefix, provider, query=query_of(options or {}))


def _credentials(session: botocore.session.Session, url: str) -> Callable[[], S3Credential]:
    """A provider that asks botocore, which knows every place where AWS credentials lie and renews them."""
    remedy = "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or give the machine a role"
    try:
        found = session.get_credentials()
    except botocore.exceptions.BotoCoreError as error:
        raise StoreError(f"AWS credentials cannot be read: {error}", where=url, remedy=remedy, kind="denied") from error
    if found is None:
        raise StoreError("there are no AWS credentials", where=url, remedy=remedy, kind="denied")

    def provide() -> S3Credential:
        frozen = found.get_frozen_credentials()
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(UTC) + _CREDENTIALS_TTL,
        }

    return provide


def _remedy(bucket: str, code: str) -> str:
    if code == "RequestTimeTooSkewed":
        return "Set this machine's clock"
    if code in ("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"):
        return f"Set AWS_REGION to the bucket's region, or name it in the URL: s3://{bucket}/…?region=…"
    if code in ("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"):
        return "Check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN"
    return f"Give these credentials read, write, list and delete on bucket {bucket!r}"
