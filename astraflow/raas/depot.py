"""Where a pool puts its trajectory objects: in its region's store, or in the run's while that one is away.

Rows are large and a region's own store is near, so an object is written there, and the record that names it says so.
An object that is not in within ``timeout_s`` goes to the run's store, as do all after it until the region's store does
again what it must: a bucket that is down costs no groups. Each object lies where its record says, whatever became of
a write that was given up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from astraflow.config import Pool, RunConfig
from astraflow.raas.contact import Contact
from astraflow.weights.region import region_store
from storage.errors import StoreError
from storage.probe import check_store
from storage.store import ObjectStore

log = logging.getLogger("astraflow.raas")

_HURRY_S = 1.0
"""For a write to the region's store once nothing may wait any more; the run's store takes it then."""

Sleep = Callable[[float], Awaitable[None]]


class Depot:
    """Takes encoded objects; ``begin`` comes first. ``near`` is None where the region has no store of its own."""

    def __init__(
        self,
        root: ObjectStore,
        near: ObjectStore | None,
        contact: Contact,
        *,
        timeout_s: float = 0.0,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.far_objects = 0  # that went to the run's store because the region's was away
        self._root = root
        self._near = near
        self._contact = contact
        self._line = Contact()  # its threads too: a region's store that hangs must not keep the run's waiting
        self._timeout_s = timeout_s
        self._sleep = sleep
        self._hurry = asyncio.Event()
        self._return: asyncio.Task[None] | None = None  # looks for the region's store; running means away

    @classmethod
    def of(cls, store: ObjectStore, config: RunConfig, pool: Pool, contact: Contact) -> Depot:
        """The depot of a pool of this config."""
        near = region_store(store, config, pool.region)
        timeout_s = config.regions[pool.region].mirror_timeout_s if near is not None else 0.0
        return cls(store, near, contact, timeout_s=timeout_s)

    @property
    def is_away(self) -> bool:
        """Whether objects go past the region's store at present."""
        return self._return is not None

    @property
    def figures(self) -> dict[str, float]:
        """What a person wants to see of it; nothing where the region has no store."""
        if self._near is None:
            return {}
        return {"region_store_faults": self._line.faults, "far_objects": self.far_objects}

    async def begin(self) -> None:
        """Try the region's store; one that is unreachable is away. Raises ``StoreError`` if it cannot be used."""
        if self._near is None:
            return
        trying = asyncio.ensure_future(self._line.ask(check_store, self._near))
        if not await self._is_done(trying, "it did not answer"):
            log.warning("trajectories go to %s for now", self._root.url)

    async def put(self, key: str, data: bytes) -> str:
        """Write the object; the name of its store for ``PartsObject.store``. Raises ``StoreError`` if it is refused."""
        if self._near is not None:
            if not self.is_away:
                writing = asyncio.ensure_future(self._line.ask(self._near.put, key, data))
                if await self._is_done(writing, f"{key} could not be written"):
                    return self._near.url
            self.far_objects += 1
        await self._contact.ask(self._root.put, key, data)
        return ""

    def hurry(self) -> None:
        """The pool is leaving: the region's store is not waited for any more."""
        self._hurry.set()

    async def close(self) -> None:
        """Look for nothing any more."""
        if self._return is not None:
            self._return.cancel()
            await asyncio.gather(self._return, return_exceptions=True)
        self._line.close()

    async def _is_done(self, work: asyncio.Future[None], failure: str) -> bool:
        """Whether ``work`` ended in time; if not, the region's store is away from now on."""
        hurried = asyncio.ensure_future(self._hurry.wait())
        try:
            either: set[asyncio.Future[Any]] = {work, hurried}
            await asyncio.wait(either, timeout=self._timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if not work.done() and hurried.done():
                await asyncio.wait({work}, timeout=min(_HURRY_S, self._timeout_s))
            if work.done():
                work.result()
                return True
        except StoreError as error:
            assert self._near is not None
            raise StoreError(
                f"trajectories cannot be written to the region's store: {error.what}",
                where=error.where or self._near.url,
                remedy=error.remedy,
                kind=error.kind,
            ) from error
        finally:
            hurried.cancel()
            if not work.done():
                work.cancel()  # its thread goes on, and may write an object that no record names
        if self._return is None:
            log.warning("the region's store is away: %s within %g s", failure, self._timeout_s)
            self._return = asyncio.create_task(self._come_back())
        return False

    async def _come_back(self) -> None:
        """Wait until the region's store does again what it must."""
        assert self._near is not None
        while True:
            await self._sleep(self._timeout_s)
            try:
                await self._line.ask(check_store, self._near)
            except StoreError as error:
                log.warning("the region's store is still away: %s", error)
            else:
                break
        log.warning("the region's store is back")
        self._return = None
