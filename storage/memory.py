"""A store in this process's memory, with faults on demand.

It is what tests and simulations run on. A ``FaultPlan`` makes the network bad in the ways real ones are: requests
that never arrive, answers that are lost after the write, requests delivered twice, and requests that arrive after
their sender gave up. The plan is seeded: the same sequence of calls meets the same faults.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
import uuid
import weakref
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from storage.errors import NotFound, StoreError
from storage.store import Created, ObjectInfo, check_key, check_prefix

T = TypeVar("T")


@dataclass(slots=True)
class FaultPlan:
    """Probabilities, per request, of what can go wrong; at most one of them happens to a request.

    ``error_before``: nothing is done, the caller gets ``StoreError`` (unreachable). ``lost_answer``: it is done, the
    caller gets the same error. ``duplicate``: a write is done twice and the caller gets the second answer (a false
    «existed»). ``late``: a ``create`` errs now and is done before a later request. ``delay``: ``delay_s`` pass first.
    """

    seed: int = 0
    error_before: float = 0.0
    lost_answer: float = 0.0
    duplicate: float = 0.0
    late: float = 0.0
    delay: float = 0.0
    delay_s: float = 0.05
    sleep: Callable[[float], None] = time.sleep
    _random: random.Random = field(init=False, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False, repr=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def draw(self, verb: str) -> str:
        """The fault that meets the next request, or an empty string."""
        with self._lock:
            mark = self._random.random()
        faults = {"error_before": self.error_before, "delay": self.delay}
        if verb != "read":
            faults |= {"lost_answer": self.lost_answer, "duplicate": self.duplicate}
        if verb == "create":
            faults |= {"late": self.late}
        for name, chance in faults.items():
            if mark < chance:
                return name
            mark -= chance
        return ""


class _Objects:
    """The objects themselves and the requests still under way to them; shared by all clients of one store."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.data: dict[str, tuple[bytes, int]] = {}
        self.order: list[str] = []
        self.writes = itertools.count(1)
        self.under_way: list[Callable[[], object]] = []

    def put(self, key: str, data: bytes) -> None:
        with self.lock:
            if key not in self.data:
                insort(self.order, key)
            self.data[key] = (bytes(data), next(self.writes))

    def create(self, key: str, data: bytes) -> Created:
        with self.lock:
            if key in self.data:
                return Created.EXISTED
            self.put(key, data)
            return Created.CREATED

    def delete(self, key: str) -> None:
        with self.lock:
            if self.data.pop(key, None) is not None:
                del self.order[bisect_left(self.order, key)]

    def deliver(self) -> None:
        """Let the late requests arrive."""
        with self.lock:
            while self.under_way:
                self.under_way.pop(0)()


_live: weakref.WeakValueDictionary[str, MemoryStore] = weakref.WeakValueDictionary()
_kept: dict[str, MemoryStore] = {}


class MemoryStore:
    """A dictionary behind the store's protocol. A new instance is empty; ``open_store`` finds it by its URL."""

    def __init__(self, url: str = "", faults: FaultPlan | None = None) -> None:
        self._url = url or f"memory://{uuid.uuid4().hex[:12]}"
        self._faults = faults
        self._objects = _Objects()
        _live[self._url] = self

    def __repr__(self) -> str:
        return f"MemoryStore({self._url!r})"

    @classmethod
    def at(cls, url: str) -> MemoryStore:
        """The store of this process under ``url``, made if there is none; it lives as long as the process."""
        store = _live.get(url)
        if store is None:
            store = cls(url)
        _kept[url] = store
        return store

    def client(self, faults: FaultPlan | None = None) -> MemoryStore:
        """Another way to the same objects, with its own faults: what a second process would have."""
        other = object.__new__(MemoryStore)
        other._url, other._faults, other._objects = self._url, faults, self._objects
        return other

    @property
    def url(self) -> str:
        return self._url

    def get(self, key: str) -> bytes:
        check_key(key)
        return self._request("read", key, lambda: self._get(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self.get(key)[start : start + length]

    def put(self, key: str, data: bytes) -> None:
        check_key(key)
        self._request("put", key, lambda: self._objects.put(key, data))

    def create(self, key: str, data: bytes) -> Created:
        check_key(key)
        return self._request("create", key, lambda: self._objects.create(key, data))

    def list(self, prefix: str, *, after: str | None = None, limit: int | None = None) -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        return itertools.islice(self._list(prefix, after or ""), limit)

    def delete(self, key: str) -> None:
        check_key(key)
        self._request("delete", key, lambda: self._objects.delete(key))

    def _get(self, key: str) -> bytes:
        with self._objects.lock:
            found = self._objects.data.get(key)
        if found is None:
            raise NotFound("there is no such object", where=f"{self._url}/{key}", kind="not_found")
        return found[0]

    def _list(self, prefix: str, after: str) -> Iterator[ObjectInfo]:
        """Walk the order by the last key seen, so that writes between two steps do no harm."""
        self._request("read", prefix, lambda: None)
        while True:
            with self._objects.lock:
                order = self._objects.order
                at = max(bisect_left(order, prefix), bisect_right(order, after))
                if at == len(order) or not order[at].startswith(prefix):
                    return
                after = order[at]
                data, write = self._objects.data[after]
            yield ObjectInfo(after, len(data), f"{write:x}")

    def _request(self, verb: str, key: str, do: Callable[[], T]) -> T:
        """Carry out ``do`` as the fault plan lets it."""
        fault = self._faults.draw(verb) if self._faults else ""
        self._objects.deliver()
        if fault == "delay" and self._faults:
            self._faults.sleep(self._faults.delay_s)
        if fault == "late":
            self._objects.under_way.append(do)
        if fault in ("late", "error_before"):
            raise self._lost(key)
        result = do()
        if fault == "lost_answer":
            raise self._lost(key)
        return do() if fault == "duplicate" else result

    def _lost(self, key: str) -> StoreError:
        remedy = "This store has a fault plan: try again"
        return StoreError("the answer was lost", where=f"{self._url}/{key}", remedy=remedy, kind="unreachable")
