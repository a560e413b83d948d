"""The object-store seam: six verbs, five of which every store has.

``create`` is the one that carries the system: it writes an object only if none is there, and says
which of the two happened. Nothing else coordinates between processes. The API is synchronous; async
callers use ``asyncio.to_thread``. Keys are relative to the store's root, ``/``-separated, never
starting with ``/``.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from storage.errors import DataError


class Created(enum.Enum):
    """What a ``create`` found."""

    CREATED = "created"
    EXISTED = "existed"


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """One row of a listing. ``e_tag`` changes whenever the object is written again."""

    key: str
    size_bytes: int
    e_tag: str


@runtime_checkable
class ObjectStore(Protocol):
    """A flat, strongly consistent key-value store of immutable or overwritten byte objects.

    All methods raise ``StoreError`` (kinds there); ``get`` and ``get_range`` raise ``NotFound``.
    """

    @property
    def url(self) -> str:
        """The URL this store was opened with (without credentials)."""
        ...

    def get(self, key: str) -> bytes:
        """Return the whole object."""
        ...

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return ``length`` bytes from byte ``start`` (fewer at the end of the object)."""
        ...

    def put(self, key: str, data: bytes) -> None:
        """Write or overwrite; readers see the old or the new object, never a part."""
        ...

    def create(self, key: str, data: bytes) -> Created:
        """Write only if absent. ``EXISTED`` may be the caller's own lost answer: read back and compare."""
        ...

    def list(self, prefix: str, *, after: str | None = None, limit: int | None = None) -> Iterator[ObjectInfo]:
        """Objects whose key starts with ``prefix``, in key order, with keys > ``after``, at most ``limit``."""
        ...

    def delete(self, key: str) -> None:
        """Delete; no error if it is not there."""
        ...


def check_key(key: str) -> str:
    """Return ``key`` if every backend can hold it. Raises ``DataError`` (kind ``key``).

    Keys may come out of records that another process wrote, so a key that would leave the root is data gone
    wrong, not a bug of the caller.
    """
    segments = key.split("/")
    if any(segment in ("", ".", "..") for segment in segments):
        problem = "an object key has no empty, «.» or «..» part and neither starts nor ends with a slash"
    elif "\\" in key or not key.isprintable():
        problem = "an object key has no backslash and no control character"
    elif len(key.encode()) > 1024:
        problem = "an object key has at most 1024 bytes"
    else:
        return key
    raise DataError(problem, where=repr(key[:200]), remedy="Keys are built by storage.keys", kind="key")


def check_prefix(prefix: str) -> str:
    """Check a listing's prefix like a key and return its folder: empty, or with a slash at the end."""
    folder = prefix[: prefix.rfind("/") + 1]
    if folder:
        check_key(folder[:-1])
    return folder
