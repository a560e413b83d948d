"""S3 and what speaks like it, through obstore.

Endpoint, region and credentials come from the AWS_* environment, profiles or the machine's role, as for every AWS
tool; they never stand in a URL or a message. All waits are bounded: a store that cannot be reached is a
``StoreError`` of kind ``unreachable`` within about 15 seconds, and who wants to wait longer asks again.

After a lost answer the client's own retry meets its own object, so ``create`` may say ``EXISTED`` for a write that
was this caller's: ``NumberedLog`` reads back and compares. An upload that dies leaves parts that S3 keeps: give the
bucket a lifecycle rule that aborts incomplete multipart uploads.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import botocore.exceptions
import botocore.session
import obstore
from obstore.exceptions import AlreadyExistsError, BaseError
from obstore.store import S3Store as Client

from storage.errors import NotFound, StoreError
from storage.store import Created, ObjectInfo, check_key, check_prefix

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig, S3Credential

_SMALL_BYTES = 1 << 20
_PART_BYTES = 16 << 20
_RETRIES: RetryConfig = {
    "max_retries": 8,
    "retry_timeout": timedelta(seconds=9),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2},
}
_CODE = re.compile(r"<Code>(\w+)</Code>")
_STATUS = re.compile(r"status code: (\d{3})")
_CREDENTIALS_TTL = timedelta(minutes=10)


class S3Store:
    """The objects of ``bucket`` under ``prefix``."""

    def __init__(self, bucket: str, prefix: str = "") -> None:
        self._bucket = bucket
        self._prefix = f"{check_key(prefix)}/" if prefix else ""
        session = botocore.session.Session()
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        region = os.environ.get("AWS_REGION") or session.get_config_variable("region") or "us-east-1"
        self._endpoint = endpoint or "AWS"
        credentials = _credentials(session, self.url)

        def client(options: ClientConfig) -> Client:
            options = {
                "connect_timeout": "3s",
                "allow_http": bool(endpoint and endpoint.startswith("http:")),
                **options,
            }
            place = {"endpoint": endpoint} if endpoint else {}
            return Client(
                bucket,
                region=region,
                client_options=options,
                retry_config=_RETRIES,
                credential_provider=credentials,
                **place,  # type: ignore[arg-type]
            )

        # Timeouts belong to a client, so there are several: a read may last as long as bytes come, a small write
        # must be quick, a part of an upload may take a minute, one whole big object more.
        self._reads = client({"read_timeout": "10s", "timeout": "1h"})
        self._small = client({"timeout": "10s"})
        self._parts = client({"timeout": "60s"})
        self._whole = client({"timeout": "15m"})

    def __repr__(self) -> str:
        return f"S3Store({self.url!r})"

    @property
    def url(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}".rstrip("/")

    def get(self, key: str) -> bytes:
        path = self._path(key)
        with self._errors(key):
            return bytes(obstore.get(self._reads, path).bytes())

    def get_range(self, key: str, start: int, length: int) -> bytes:
        path = self._path(key)
        with self._errors(key):
            if length == 0:  # not a range that HTTP can say, but a missing object still is an error
                obstore.head(self._reads, path)
                return b""
            try:
                return bytes(obstore.get_range(self._reads, path, start=start, length=length))
            except BaseError as error:
                if _status(error) == 416:  # the object ends before ``start``
                    return b""
                raise

    def put(self, key: str, data: bytes) -> None:
        path = self._path(key)
        with self._errors(key):
            if len(data) <= _PART_BYTES:
                obstore.put(self._client_for(data), path, data, use_multipart=False)
            else:  # parts that fail are sent again alone
                obstore.put(self._parts, path, data, use_multipart=True, chunk_size=_PART_BYTES, max_concurrency=8)

    def create(self, key: str, data: bytes) -> Created:
        path = self._path(key)
        with self._errors(key):
            try:
                obstore.put(self._client_for(data), path, data, mode="create")
            except AlreadyExistsError:
                return Created.EXISTED
            return Created.CREATED

    def list(self, prefix: str, *, after: str | None = None, limit: int | None = None) -> Iterator[ObjectInfo]:
        folder = check_prefix(prefix)
        return self._list(folder, prefix, after or "", limit)

    def delete(self, key: str) -> None:
        path = self._path(key)
        with self._errors(key):
            try:
                obstore.delete(self._small, path)
            except FileNotFoundError as error:
                if _code(error) == "NoSuchBucket":
                    raise

    def _path(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _client_for(self, data: bytes) -> Client:
        if len(data) <= _SMALL_BYTES:
            return self._small
        return self._parts if len(data) <= _PART_BYTES else self._whole

    def _list(self, folder: str, prefix: str, after: str, limit: int | None) -> Iterator[ObjectInfo]:
        """Page through ``folder`` (the client knows only whole folders) from the first key that can match."""
        start = max(after, _just_before(prefix) if prefix != folder else "")
        left = -1 if limit is None else limit
        with self._errors(prefix):
            chunks = obstore.list(
                self._reads,
                (self._prefix + folder).rstrip("/") or None,
                offset=self._prefix + start.rstrip("/") if start else None,
            )
            for meta in (meta for chunk in chunks for meta in chunk):
                key = meta["path"].removeprefix(self._prefix)
                if left == 0 or (key > prefix and not key.startswith(prefix)):
                    return
                if key > after and key.startswith(prefix):
                    left -= 1
                    # S3's tag is the content's digest: the time tells the same bytes written again.
                    e_tag = f"{(meta['e_tag'] or '').strip(chr(34))}-{meta['last_modified'].timestamp():.3f}"
                    yield ObjectInfo(key, meta["size"], e_tag)

    def _errors(self, key: str) -> AbstractContextManager[None]:
        return _translated(f"{self.url}/{key}", self._bucket, self._endpoint)


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


def _just_before(prefix: str) -> str:
    """A key before all that start with ``prefix`` and after most that do not; empty if there is no simple one."""
    last = prefix[-1:]
    return prefix[:-1] + chr(ord(last) - 1) if last and chr(ord(last) - 1).isalnum() else ""


def _code(error: Exception) -> str:
    match = _CODE.search(str(error))
    return match[1] if match else ""


def _status(error: Exception) -> int:
    match = _STATUS.search(str(error))
    return int(match[1]) if match else 0


@contextmanager
def _translated(where: str, bucket: str, endpoint: str) -> Iterator[None]:
    """Turn obstore's errors into the store's. Their text is not passed on: it quotes the request."""
    try:
        yield
    except (BaseError, FileNotFoundError) as error:
        raise _store_error(error, where, bucket, endpoint) from None


def _store_error(error: Exception, where: str, bucket: str, endpoint: str) -> StoreError:
    code, status = _code(error), _status(error)
    said = f"S3 said {status} {code}".rstrip()
    if code == "NoSuchBucket":
        remedy = f"Make the bucket or correct the store's URL (endpoint: {endpoint})"
        return StoreError(f"there is no bucket {bucket!r}", where=where, remedy=remedy, kind="no_bucket")
    if isinstance(error, FileNotFoundError):
        return NotFound("there is no such object", where=where, kind="not_found")
    if status == 501:
        remedy = "Use a store with conditional writes (If-None-Match)"
        return StoreError(f"{said}: the store lacks this operation", where=where, remedy=remedy, kind="unsafe")
    if 300 <= status < 500 and status not in (408, 409, 429):
        return StoreError(f"access was refused: {said}", where=where, remedy=_remedy(code, bucket), kind="denied")
    what = said if status else "no answer"
    remedy = f"Check the network and AWS_ENDPOINT_URL (endpoint: {endpoint})"
    return StoreError(f"the store cannot be reached: {what}", where=where, remedy=remedy, kind="unreachable")


def _remedy(code: str, bucket: str) -> str:
    if code == "RequestTimeTooSkewed":
        return "Set this machine's clock"
    if code in ("PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"):
        return "Set AWS_REGION to the bucket's region"
    if code in ("InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"):
        return "Check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN"
    return f"Give these credentials read, write, list and delete on bucket {bucket!r}"
