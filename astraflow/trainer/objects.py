"""The trajectory objects of a batch, out of the stores they lie in: side by side where a read is a round trip.

What is wrong with an object (missing, damaged) would be found again at every read, so it is remembered like a good
one; what is wrong with a store may pass and never is. The run's own store must answer. So must a region's, until who
reads has waited long enough and gives it up: then what lies there is unusable until the store answers again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from astraflow.trainer.columns import COLUMNS, Columns, Unusable
from storage import is_near, open_store
from storage.errors import ConfigError, DataError, NotFound, StoreError
from storage.fetch import AT_ONCE
from storage.store import ObjectStore
from storage.tables import read_table

OBJECTS_KEPT = 64
KEPT_BYTES = 256 * 2**20
"""Of the columns that are kept: the objects of large models' long answers are few, but large."""


class ObjectName(NamedTuple):
    """What a decision says of an object; an empty ``store`` is the run's."""

    store: str
    path: str
    digest: str


class Away(NamedTuple):
    """A region's store refused, or did not answer and was given up: what lies there may be had later."""

    why: str


class ObjectReader:
    """Reads and remembers objects. One thread at a time."""

    def __init__(self, root: ObjectStore, *, opened: Callable[[str], ObjectStore] = open_store) -> None:
        self._stores: dict[str, ObjectStore] = {"": root}
        self._open = opened
        # Not the threads that everybody shares: a region that is cut off would keep them from the run's store.
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="objects")
        self._kept: OrderedDict[ObjectName, Columns | str] = OrderedDict()
        self._silent: set[str] = set()  # stores of regions that did not answer when they were asked last
        self._given_up: set[str] = set()

    def read(self, names: Sequence[ObjectName]) -> dict[ObjectName, Columns | str | Away]:
        """The columns of each object, what is wrong with it, or with the store that it lies in.

        Raises ``StoreError`` if a store does not answer that was not given up; what was read is not read again then.
        """
        found: dict[ObjectName, Columns | str | Away]
        found = {name: self._kept[name] for name in names if name in self._kept}
        fault: StoreError | None = None
        for name, result in self._read_all([name for name in dict.fromkeys(names) if name not in found]).items():
            if isinstance(result, Columns | str):
                self._kept[name] = found[name] = result
            else:
                found[name] = Away(f"{result.kind or 'unusable'} store {name.store!r}: {name.path}")
                fault = fault or self._note_fault(name.store, result)
        for name in [name for name in found if name in self._kept]:
            self._kept.move_to_end(name)
        self._forget()
        if fault is not None:
            raise fault
        return found

    def give_up(self) -> bool:
        """Wait no more for the regions' stores that do not answer; whether there are any that were waited for."""
        cut_off = self._silent - self._given_up
        self._given_up |= cut_off
        return bool(cut_off)

    @property
    def has_given_up(self) -> bool:
        """Whether a store was given up and has not answered since."""
        return bool(self._given_up)

    def _read_all(self, names: Sequence[ObjectName]) -> dict[ObjectName, Columns | str | ConfigError | StoreError]:
        results: dict[ObjectName, Columns | str | ConfigError | StoreError] = {}
        stores = {store: self._opened(store) for store in {name.store: None for name in names}}
        places = {name: store for name in names if not isinstance(store := stores[name.store], Exception)}
        far = [name for name, store in places.items() if not is_near(store.url)]
        reading = {name: self._threads.submit(_read, places[name], name) for name in far} if len(far) > 1 else {}
        for name in names:
            store = stores[name.store]
            if isinstance(store, Exception):
                results[name] = store
                continue
            results[name] = reading[name].result() if name in reading else _read(store, name)
            if not isinstance(results[name], StoreError):
                self._silent.discard(name.store)
                self._given_up.discard(name.store)
        return results

    def _opened(self, url: str) -> ObjectStore | ConfigError | StoreError:
        if url not in self._stores:
            try:
                self._stores[url] = self._open(url)
            except (ConfigError, StoreError) as error:
                return error
        return self._stores[url]

    def _note_fault(self, url: str, error: ConfigError | StoreError) -> StoreError | None:
        """The error, if it is to be raised; a store that refuses costs the parts that lie there and nothing else."""
        if not isinstance(error, StoreError) or (url and error.kind != "unreachable"):
            return None
        if url:
            self._silent.add(url)
        return None if url in self._given_up else error

    def _forget(self) -> None:
        while len(self._kept) > 1 and (len(self._kept) > OBJECTS_KEPT or self._kept_bytes() > KEPT_BYTES):
            self._kept.popitem(last=False)

    def _kept_bytes(self) -> int:
        return sum(found.size_bytes for found in self._kept.values() if isinstance(found, Columns))


def _read(store: ObjectStore, name: ObjectName) -> Columns | str | StoreError:
    """The object's columns, what is wrong with it, or with its store."""
    try:
        return Columns.of(read_table(store, name.path, hash=name.digest, columns=COLUMNS, optional=("sampler",)))
    except NotFound:
        return f"missing: {name.path}"
    except DataError as error:
        return f"{error.kind or 'undecodable'}: {name.path}"
    except Unusable as error:
        return f"undecodable: {error}"
    except StoreError as error:
        return error
