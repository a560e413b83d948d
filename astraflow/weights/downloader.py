"""Gets blobs in order, some ahead of their use, each checked against its manifest's digest.

Across an ocean a request costs more than the bytes of a delta, so the next blobs are under way while one
is being applied; never more than ``AHEAD``, since a blob may be large.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from astraflow.weights.container import digest_blob
from astraflow.weights.manifest import Blob
from storage.errors import DataError
from storage.store import ObjectStore

AHEAD = 4


def downloads(store: ObjectStore, blobs: Sequence[tuple[str, Blob]]) -> Generator[tuple[str, bytes], None, None]:
    """Each blob's key and bytes, in the order of ``blobs`` (key and manifest entry).

    Raises ``StoreError`` as the store does, ``DataError`` (kind ``digest``) for other bytes than the manifest's.
    """
    with ThreadPoolExecutor(AHEAD, thread_name_prefix="blobs") as pool:
        under_way: deque[tuple[str, Future[bytes]]] = deque()
        for key, blob in blobs:
            under_way.append((key, pool.submit(_get, store, key, blob)))
            if len(under_way) == AHEAD:
                yield _first(under_way)
        while under_way:
            yield _first(under_way)


def _first(under_way: deque[tuple[str, Future[bytes]]]) -> tuple[str, bytes]:
    key, future = under_way.popleft()
    return key, future.result()


def _get(store: ObjectStore, key: str, blob: Blob) -> bytes:
    data = store.get(key)
    if len(data) != blob.size_bytes or digest_blob(data) != blob.hash:
        raise DataError(
            "the blob's bytes are not those that its manifest names",
            where=key,
            remedy="It is passed over from the newest snapshot; else restore the object from a mirror",
            kind="digest",
        )
    return data
