"""Refuse a store that would lose data, before anything is written to it.

Everything rests on ``create``: if two writers can both create one key, logs lose records silently. Some servers take
the condition and ignore it, so it is tried out rather than believed. The probe's own objects are removed again.
"""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from storage.errors import NotFound, StoreError
from storage.fetch import is_near
from storage.store import Created, ObjectStore

PROBES = "probes/"
"""Prefix of the probe's keys."""


def check_store(
    store: ObjectStore,
    *,
    tries: int = 4,
    racers: int = 0,
    rounds: int = 8,
    torn: bool = False,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Try out every operation on new keys. Raises ``StoreError``: ``unsafe``, or what the store itself raised.

    A store that has just started may need a moment, so one writer alone has ``tries``. ``racers`` > 0 also lets that
    many threads create one key at the same time, ``rounds`` times; ``torn`` reads a large object while it is written.
    What is found then is final: a store that is careless now and then would pass the next time.
    """
    _patiently(lambda: _check_once(store), tries, sleep, forgiving=True)
    if racers:
        _patiently(lambda: _race(store, racers, rounds), tries, sleep, forgiving=False)
    if torn:
        _patiently(lambda: _watch(store), tries, sleep, forgiving=False)


def check_run_store(store: ObjectStore) -> None:
    """``check_store`` as a run's start has it: writers race where a server, not the system, keeps them apart."""
    check_store(store, racers=0 if is_near(store.url) else 2, rounds=2)


def is_same_place(one: ObjectStore, other: ObjectStore) -> bool:
    """Whether what one store writes is found in the other: two URLs may name one place. Raises ``StoreError``."""
    key = f"{PROBES}{uuid.uuid4().hex}"
    try:
        one.create(key, key.encode())
        return other.get(key) == key.encode()
    except NotFound:
        return False
    finally:
        _clean_up(one, key)


def _patiently(check: Callable[[], None], tries: int, sleep: Callable[[float], None], *, forgiving: bool) -> None:
    """``check``, again while the store cannot be reached (or, ``forgiving``, has not settled)."""
    for tried in range(1, tries + 1):
        try:
            check()
        except StoreError as error:
            is_final = error.kind in ("denied", "no_bucket") or (error.kind == "unsafe" and not forgiving)
            if tried == tries or is_final:
                raise
            sleep(0.5 * 2 ** (tried - 1))
        else:
            return


def _check_once(store: ObjectStore) -> None:
    key = f"{PROBES}{uuid.uuid4().hex}"
    try:
        _write_and_read(store, key)
    except NotFound as error:
        _clean_up(store, key)
        raise _unsafe(store, key, "does not find what was just written") from error
    except StoreError:
        _clean_up(store, key)
        raise
    store.delete(key)
    _expect(next(iter(store.list(key)), None) is None, store, key, "lists what was deleted")
    try:
        store.get(key)
    except NotFound:
        return
    raise _unsafe(store, key, "returns what was deleted")


def _write_and_read(store: ObjectStore, key: str) -> None:
    first, second = b"first " + key.encode(), b"second " + key.encode()
    _expect(store.create(key, first) is Created.CREATED, store, key, "says that a new object exists")
    _expect(store.create(key, second) is Created.EXISTED, store, key, "creates an object that exists")
    _expect(store.get(key) == first, store, key, "overwrites on a create that it refuses")
    _expect(store.get_range(key, 6, 6) == first[6:12], store, key, "returns another range than was asked for")
    listed = [(info.key, info.size_bytes) for info in store.list(key)]
    _expect(listed == [(key, len(first))], store, key, "does not list what was just written")
    store.put(key, second)
    _expect(store.get(key) == second, store, key, "returns old bytes after an overwrite")


def _clean_up(store: ObjectStore, key: str) -> None:
    """Remove the probe's object if that is possible: the verdict is what matters."""
    with suppress(StoreError):
        store.delete(key)


def _race(store: ObjectStore, racers: int, rounds: int) -> None:
    """Several threads create one key: exactly one wins, and its bytes stand."""
    with ThreadPoolExecutor(racers) as threads:
        for _ in range(rounds):
            key = f"{PROBES}{uuid.uuid4().hex}"
            offers = [b"%d" % racer * 1000 for racer in range(racers)]
            try:
                answers = list(threads.map(lambda data, key=key: store.create(key, data), offers))
                winners = [data for data, answer in zip(offers, answers, strict=True) if answer is Created.CREATED]
                _expect(winners == [store.get(key)], store, key, f"let {len(winners)} of {racers} writers create it")
            finally:
                _clean_up(store, key)


def _watch(store: ObjectStore, size_bytes: int = 8_000_000) -> None:
    """One thread creates a large object, this one reads it meanwhile: it is not there, or there whole."""
    key, data = f"{PROBES}{uuid.uuid4().hex}", os.urandom(1000) * (size_bytes // 1000)
    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(store.create, key, data)
        try:
            while True:
                is_over = writing.done()
                with suppress(NotFound):
                    _expect(store.get(key) == data, store, key, "shows a half of an object that is being written")
                if is_over:
                    break
            _expect(writing.result() is Created.CREATED, store, key, "says that a new object exists")
        finally:
            with suppress(StoreError):
                writing.result()
            _clean_up(store, key)


def _expect(holds: bool, store: ObjectStore, key: str, what: str) -> None:
    if not holds:
        raise _unsafe(store, key, what)


def _unsafe(store: ObjectStore, key: str, what: str) -> StoreError:
    return StoreError(
        f"this store {what}: runs on it would lose data",
        where=f"{store.url}/{key}",
        remedy="Use a store with conditional writes (If-None-Match): AWS S3, MinIO, Ceph, SeaweedFS, a local folder",
        kind="unsafe",
    )
