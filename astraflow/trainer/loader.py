"""Reading ahead: while one batch is trained, those that follow are read as soon as the manager has named them.

So a trainer whose trajectories lie an ocean away waits for none of them as long as reading keeps up with training. At
most ``most`` batches are held besides the one that is trained. What is read does not depend on when it is read, and
what went wrong while reading ahead is met again, and raised, by who needs the batch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from astraflow.pace import Pace
from astraflow.records import Batched
from astraflow.trainer.feed import BatchFeed
from astraflow.trainer.life import Life, log
from astraflow.trainer.reader import LoadedBatch, PartReader
from storage.errors import AstraFlowError, StoreError

REGION_PATIENCE_S = 180.0
"""How long a region that is cut off is waited for before its parts are skipped."""
_AGAIN_S = 1.0  # after something went wrong
_LEAVE_S = 3.0  # for the thread, of the seconds that a flow has when it is cancelled


class Loader:
    """Gives batches in their order; reads ahead in a thread of its own while ``ahead`` is entered."""

    def __init__(self, reader: PartReader, feed: BatchFeed, pace: Pace, *, most: int) -> None:
        self._reader = reader
        self._feed = feed
        self._pace = pace
        self._most = most
        self._using = threading.Lock()  # of the reader, which is one thread's at a time
        self._lock = threading.Lock()  # of what was read: nobody holds it while he reads
        self._ready: dict[int, LoadedBatch] = {}
        self._next = 0  # the first batch that nobody asked for yet
        self._may_look = threading.Event()
        self._ended = threading.Event()
        self._broken: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="ahead", daemon=True)

    def __enter__(self) -> Loader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._may_look.set()
        self._thread.join(_LEAVE_S)  # a read of a store that hangs ends with the process

    @property
    def held(self) -> tuple[int, ...]:
        """The batches that are read and not asked for yet."""
        return tuple(self._ready)

    @contextmanager
    def ahead(self) -> Iterator[None]:
        """Read ahead while this block runs: the loop trains and does not poll the feed itself."""
        self._pace.reset()
        self._may_look.set()
        try:
            yield
        finally:
            self._may_look.clear()

    def load(self, batch: Batched) -> LoadedBatch:
        """The batch's sequences. Raises ``StoreError`` if a store does not answer; then it may be asked for again."""
        found = self._take(batch.n)
        if found is None:
            with self._using:  # it may be what is being read: then it is there when that has ended
                found = self._take(batch.n) or self._reader.load(batch)
        with self._lock:
            self._next = batch.n + 1
        return found

    def _take(self, n: int) -> LoadedBatch | None:
        with self._lock:
            if self._broken is not None:
                raise self._broken
            return self._ready.pop(n, None)

    def _run(self) -> None:
        try:
            while True:
                self._may_look.wait()
                if self._ended.is_set():
                    return
                self._ended.wait(self._look())
        except BaseException as error:  # noqa: BLE001  # the end of this thread is the loop's too
            self._broken = error

    def _look(self) -> float:
        """Read a batch or ask whether there is one; seconds until the next look."""
        try:
            if self._read_next():
                self._pace.reset()
                return 0.0
            if len(self._ready) < self._most:
                self._feed.poll()
        except AstraFlowError as error:
            log.debug("reading ahead: %s", error)
            return _AGAIN_S
        return self._pace.next_s()

    def _read_next(self) -> bool:
        with self._using:
            with self._lock:
                held, n = len(self._ready), self._next + len(self._ready)
            batch = self._feed.get(n)
            if batch is None or held >= self._most:
                return False
            loaded = self._reader.load(batch)
            with self._lock:
                if n >= self._next:
                    self._ready[n] = loaded
            return True


def read_batch(life: Life, reader: PartReader, load: Callable[[], LoadedBatch], n: int) -> LoadedBatch:
    """What ``load`` gives, again while a store is unreachable.

    The parts that lie in the store of a region that stays cut off for ``REGION_PATIENCE_S`` are skipped, in this batch
    and in later ones until the store answers. A batch of which nothing else is left is waited for as long. Raises
    ``StoreError`` if the run's own store is not there, and if regions' stores refuse all of a batch.
    """
    deadline = time.monotonic() + REGION_PATIENCE_S
    while True:
        try:
            loaded = life.persist(load, f"reading batch {n}", patience_s=REGION_PATIENCE_S)
        except StoreError as error:
            if error.kind != "unreachable" or not reader.give_up():
                raise
            log.error("%s: parts of a region that is cut off are skipped: %s", life.policy, error)
            continue
        if not loaded.is_lost:
            return loaded
        if time.monotonic() >= deadline:
            if reader.is_cut_off:
                return loaded
            raise kept_back(loaded, "nothing of the batch can be read")
        life.wait_for(f"nothing of batch {n} can be read: {loaded.skipped[loaded.away[0]]}")
        time.sleep(_AGAIN_S)


def read_again(life: Life, load: Callable[[], LoadedBatch], n: int) -> LoadedBatch:
    """What ``load`` gives of a batch that was trained before: with other parts the weights would be others.

    Raises ``StoreError`` if some of them cannot be read now.
    """
    loaded = life.persist(load, f"reading batch {n} again", patience_s=REGION_PATIENCE_S)
    if loaded.away:
        raise kept_back(loaded, "what was trained on cannot be read again")
    return loaded


def kept_back(loaded: LoadedBatch, what: str) -> StoreError:
    """The error of a batch whose parts a region's store keeps back."""
    return StoreError(
        f"{what}: {loaded.skipped[loaded.away[0]]}",
        where=f"batch {loaded.n}",
        remedy="Let this trainer read the region's store, then `astraflow run --resume` goes on",
        kind="region_away",
    )
