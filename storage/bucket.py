"""A cloud provider's bucket as a store, through obstore: what all of them have in common.

A provider says how a client is made and what its errors mean (``Provider``); the six verbs are the same. All waits are
bounded: a store that cannot be reached is a ``StoreError`` of kind ``unreachable`` within about 15 seconds, and who
wants to wait longer asks again.

After a lost answer the client's own retry meets its own object, so ``create`` may say ``EXISTED`` for a write that
was this caller's: ``NumberedLog`` reads back and compares.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import IO, TYPE_CHECKING

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError

from storage.errors import NotFound, StoreError
from storage.store import Created, ObjectInfo, check_key, check_prefix

if TYPE_CHECKING:
    from obstore.store import AzureStore, ClientConfig, GCSStore, RetryConfig, S3Store

    Client = S3Store | GCSStore | AzureStore

_SMALL_BYTES = 1 << 20
_PART_BYTES = 16 << 20
RETRIES: RetryConfig = {
    "max_retries": 8,
    "retry_timeout": timedelta(seconds=9),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2},
}
NO_TOKEN = "NoToken"
"""Stands for an error's code where the provider of credentials gave none: no key, and no role of the machine."""
_CODE = re.compile(r"<Code>(\w+)</Code>")
_STATUS = re.compile(r"status code: (\d{3})")


@dataclass(frozen=True, slots=True)
class Provider:
    """What of a bucket is its provider's: its name, how clients are made, and what helps when it refuses."""

    name: str
    scheme: str
    client: Callable[[ClientConfig], Client]
    no_bucket: frozenset[str]  # codes that say so
    endpoint: str  # for messages
    network: str  # what to check when nothing answers
    remedy: Callable[[str], str]  # of an error's code, when access is refused


class BucketStore:
    """The objects of ``bucket`` under ``prefix``."""

    def __init__(self, bucket: str, prefix: str, provider: Provider, *, query: str = "") -> None:
        self._bucket = bucket
        self._query = query  # of the URL
        self._prefix = f"{check_key(prefix)}/" if prefix else ""
        self._provider = provider
        # Timeouts belong to a client, so there are several: a read may last as long as bytes come, a small write
        # must be quick, a part of an upload may take a minute, one whole big object more.
        self._reads, self._small, self._parts, self._whole = (
            provider.client({"connect_timeout": "3s", **timeouts})  # type: ignore[typeddict-item]
            for timeouts in (
                {"read_timeout": "10s", "timeout": "1h"},
                {"timeout": "10s"},
                {"timeout": "60s"},
                {"timeout": "15m"},
            )
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    @property
    def url(self) -> str:
        return self._place + self._query

    @property
    def _place(self) -> str:
        return f"{self._provider.scheme}://{self._bucket}/{self._prefix}".rstrip("/")

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
                if _status(error) == 416 or "StartTooLarge" in str(error):  # the object ends before ``start``
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
                if _code(error) in self._provider.no_bucket:
                    raise

    def writer(self, key: str) -> IO[bytes]:
        """A file that is sent part by part and is an object once it is closed; left open, it never is one."""
        return obstore.open_writer(self._parts, self._path(key), buffer_size=_PART_BYTES)  # type: ignore[return-value]

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
        return _translated(f"{self._place}/{key}", self._bucket, self._provider)


def _just_before(prefix: str) -> str:
    """A key before all that start with ``prefix`` and after most that do not; empty if there is no simple one."""
    last = prefix[-1:]
    return prefix[:-1] + chr(ord(last) - 1) if last and chr(ord(last) - 1).isalnum() else ""


def _code(error: Exception) -> str:
    if "token request" in str(error):
        return NO_TOKEN
    match = _CODE.search(str(error))
    return match[1] if match else ""


def _status(error: Exception) -> int:
    match = _STATUS.search(str(error))
    return int(match[1]) if match else 0


@contextmanager
def _translated(where: str, bucket: str, provider: Provider) -> Iterator[None]:
    """Turn obstore's errors into the store's. Their text is not passed on: it quotes the request."""
    try:
        yield
    except (BaseError, FileNotFoundError) as error:
        raise _store_error(error, where, bucket, provider) from None


def _store_error(error: Exception, where: str, bucket: str, provider: Provider) -> StoreError:
    code, status = _code(error), _status(error)
    said = f"{provider.name} said {status} {code}".rstrip()
    if code in provider.no_bucket:
        remedy = f"Make the bucket or correct the store's URL (endpoint: {provider.endpoint})"
        return StoreError(f"there is no bucket {bucket!r}", where=where, remedy=remedy, kind="no_bucket")
    if isinstance(error, FileNotFoundError):
        return NotFound("there is no such object", where=where, kind="not_found")
    if code == NO_TOKEN:
        remedy = provider.remedy(code)
        return StoreError("there are no credentials that work", where=where, remedy=remedy, kind="denied")
    if status == 501:
        remedy = "Use a store with conditional writes (If-None-Match)"
        return StoreError(f"{said}: the store lacks this operation", where=where, remedy=remedy, kind="unsafe")
    if 300 <= status < 500 and status not in (408, 409, 429):
        return StoreError(f"access was refused: {said}", where=where, remedy=provider.remedy(code), kind="denied")
    what = said if status else "no answer"
    remedy = f"Check the network and {provider.network} (endpoint: {provider.endpoint})"
    return StoreError(f"the store cannot be reached: {what}", where=where, remedy=remedy, kind="unreachable")
