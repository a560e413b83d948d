"""Following what a run's manager decided on regions, from the newest snapshot on: for whoever starts pools or asks."""

from __future__ import annotations

from astraflow.config import RunConfig
from astraflow.dataflow.ledger import decode_ledger
from astraflow.dataflow.scale_book import ScaleBook
from astraflow.participant import DecisionsReader
from astraflow.records import Paused, Resumed, Scaled
from storage.errors import DataError, NotFound
from storage.keys import RunKeys
from storage.store import ObjectStore


class ScaleView:
    """``book`` is as the decisions say that were there at the last ``poll``."""

    def __init__(self, store: ObjectStore, config: RunConfig) -> None:
        self.book = ScaleBook()
        self._store = store
        self._config = config
        self._keys = RunKeys(config.name)
        self._reader: DecisionsReader | None = None

    def poll(self) -> None:
        """Read what is new. Raises ``StoreError``, and ``DataError`` for a damaged decision: it may be one of these."""
        if self._reader is None:
            self._reader = self._from_snapshot()
        while records := self._reader.poll():
            for _, record in records:
                for decision in record.decisions:
                    if isinstance(decision, Scaled):
                        self.book.take(decision, {})
                    elif isinstance(decision, Paused | Resumed) and decision.region:
                        self.book.pause(decision, {})

    def counts(self) -> dict[str, int]:
        """Pools that each region shall have."""
        return self.book.counts(self._config)

    def ever(self) -> dict[str, int]:
        """The largest number that each region was ever to have."""
        return self.book.ever(self._config)

    def _from_snapshot(self) -> DecisionsReader:
        for info in self._store.list(self._keys.snapshots):  # newest first
            try:
                ledger = decode_ledger(self._store.get(info.key), sorted(self._config.policies), where=info.key)
            except (DataError, NotFound):
                continue
            self.book = ledger.scaling
            return DecisionsReader(self._store, self._keys, self._keys.snapshot_seq(info.key) + 1)
        return DecisionsReader(self._store, self._keys)
