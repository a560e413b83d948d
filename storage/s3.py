"""S3 and what speaks like it, through obstore (``storage.bucket``).

Endpoint, region and credentials come from the AWS_* environment, profiles or the machine's role, as for every AWS
tool; they never stand in a URL or a message. An upload that dies leaves parts that S3 keeps: give the bucket a
lifecycle rule that aborts incomplete multipart uploads, or let maintenance do it (``storage.uploads``).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

import botocore.exceptions
import botocore.session
from obstore.store import S3Store as Client

from storage.bucket import RETRIES, BucketStore, Provider
from storage.errors import StoreError

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Credential

_CREDENTIALS_TTL = timedelta(minutes=10)


class S3Store(BucketStore):
    """The objects of ``bucket`` under ``prefix``."""

    def __init__(self, bucket: str, prefix: str = "") -> None:
        session = botocore.session.Session()
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        region = os.environ.get("AWS_REGION") or session.get_config_variable("region") or "us-east-1"
        credentials = _credentials(session, f"s3://{bucket}/{prefix}".rstrip("/"))

        def client(options: ClientConfig) -> Client:
            place = {"endpoint": endpoint} if endpoint else {}
            return Client(
                bucket,
                region=region,
                client_options={"allow_http": bool(endpoint and endpoint.startswith("http:")), **options},
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
        super().__init__(bucket, prefix, provider)


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
        return "Set AWS_REGION to the bucket's region"
    if code in ("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"):
        return "Check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN"
    return f"Give these credentials read, write, list and delete on bucket {bucket!r}"
