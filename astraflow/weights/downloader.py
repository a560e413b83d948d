"""Gets blobs in order, some ahead of their use, each checked against its manifest's digest.

Across an ocean a request costs more than the bytes of a delta, so the next blobs are under way while one
is being applied: at most ``AHEAD``, and of large ones as many as fit into ``AHEAD_BYTES``, but one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from astraflow.weights.container import digest_blob
from astraflow.weights.manifest import Blob
from storage.errors import DataError
from storage.store import ObjectStore

AHEAD = 4
AHEAD_BYTES = 3 * 2**24


def downloads(store: ObjectStore, blobs: Sequence[tuple[str, Blob]]) -> Generator[tuple[str, bytes], None, None]:
    """Each blob's key and bytes, in the order of ``blobs`` (key and manifest entry).

    Raises ``StoreError`` as the store does, ``DataError`` (kind ``digest``) for other bytes than the manifest's.
    """
    with ThreadPoolExecutor(AHEAD, thread_name_prefix="blobs") as pool:
        under_way: deque[tuple[str, int, Future[bytes]]] = deque()
        for key, blob in blobs:
            while under_way and (len(under_way) == AHEAD or _bytes_of(under_way) + blob.size_bytes > AHEAD_BYTES):
                yield _first(under_way)
            under_way.append((key, blob.size_bytes, pool.submit(_get, store, key, blob)))
        while under_way:
            yield _first(under_way)


def _bytes_of(under_way: Iterable[tuple[str, int, Future[bytes]]]) -> int:
    return sum(size_bytes for _, size_bytes, _ in under_way)


def _first(under_way: deque[tuple[str, int, Future[bytes]]]) -> tuple[str, bytes]:
    key, _, future = under_way.popleft()
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
