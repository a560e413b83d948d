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
