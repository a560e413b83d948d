"""The one place of a pool that appends to its outbox, so facts stand there in the order in which they were put."""

from __future__ import annotations

import asyncio

from astraflow.participant import Outbox
from astraflow.raas.contact import Contact
from astraflow.records import AnyFact


class FactWriter:
    """Appends what is put; facts that wait together become one record. ``run`` must be running."""

    def __init__(self, outbox: Outbox, contact: Contact) -> None:
        self._outbox = outbox
        self._contact = contact
        self._queue: list[AnyFact] = []
        self._waiting = asyncio.Event()
        self._put = 0
        self._written = 0
        self._progress = asyncio.Condition()

    def put(self, *facts: AnyFact) -> None:
        """Say something; it is in the store some time later, after everything that was put before."""
        self._queue.extend(facts)
        self._put += len(facts)
        self._waiting.set()

    async def written(self) -> None:
        """Wait until everything that was put so far is in the store."""
        wanted = self._put
        async with self._progress:
            await self._progress.wait_for(lambda: self._written >= wanted)

    async def run(self) -> None:
        """Append for ever. A record whose answer stayed lost may be there twice; the manager ignores the second."""
        while True:
            await self._waiting.wait()
            self._waiting.clear()
            facts, self._queue = self._queue, []
            await self._contact.ask(self._outbox.append, facts)
            async with self._progress:
                self._written += len(facts)
                self._progress.notify_all()
