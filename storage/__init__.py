"""The object store: the one thing that all processes of a run share.

    store = open_store("s3://bucket/astraflow")     # or a folder, memory://name, another fsspec URL
    check_store(store)                              # storage.probe: refuse one that would lose data

    log = NumberedLog(store, RunKeys("math-1").decision)
    number = log.append(b"...")                     # storage.log: create-if-absent at the first free number

    written = write_table(store, key, table)        # storage.tables: Parquet with a digest
    table = read_table(store, key, written.hash)

Six verbs (``storage.store.ObjectStore``): ``get, get_range, put, create, list, delete``. ``create`` writes an object
only if there is none; everything that two processes must agree on goes through it. All backends hold one contract,
tested as one: a reader sees a whole object or none, listings are in key order, exactly one of many creators wins.

========================  ============================================================================
``/path``, ``file://``    ``storage.local``: files; ``create`` is a hard link, so a Linux or macOS disk will do
``s3://bucket/prefix``    ``storage.s3``: obstore; AWS_* environment, AWS_ENDPOINT_URL for other servers
``az://container/prefix`` ``storage.azure``: obstore; AZURE_* environment, or the machine's managed identity
``gs://bucket/prefix``    ``storage.google``: obstore; Google's application default credentials
``memory://name``         ``storage.memory``: this process only; can lose answers on demand (``FaultPlan``)
any other fsspec URL      ``storage.fsspec_store``: opened only if its create survives a race and never shows a half
========================  ============================================================================

Errors are ``storage.errors.StoreError`` with a ``kind``: ``unreachable`` (ask again), ``denied``, ``no_bucket``,
``unsafe``; ``NotFound`` for an object that is not there. The API blocks; async callers use ``asyncio.to_thread``.
Stores are thread-safe; a forked child opens its own. ``storage.filesystem`` gives the same places as fsspec
filesystems to libraries that want files; ``storage.keys`` builds every key of a run.
"""

from __future__ import annotations

from storage.fetch import is_near
from storage.local import LocalStore
from storage.location import Location
from storage.memory import MemoryStore
from storage.store import Created, ObjectInfo, ObjectStore

__all__ = ["Created", "ObjectInfo", "ObjectStore", "is_near", "open_store"]


def open_store(url: str) -> ObjectStore:
    """Open the store at ``url``. Raises ``ConfigError`` for a URL that names none, ``StoreError`` if it is unusable."""
    location = Location.parse(url)
    if location.scheme == "file":
        return LocalStore(location.path)
    if location.scheme == "memory":
        return MemoryStore.at(location.url)
    if location.scheme in ("s3", "az", "gs"):
        from storage.buckets import open_bucket  # noqa: PLC0415 - only who uses a bucket loads its client

        return open_bucket(location)
    from storage.fsspec_store import open_fsspec_store  # noqa: PLC0415

    return open_fsspec_store(location.url)
