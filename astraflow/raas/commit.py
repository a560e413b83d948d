"""Group commit: played groups become a few objects and one ``Committed`` record at a time.

While one upload is on its way the next groups gather; they go as soon as it returned, but not sooner than ``flush_s``
after the last flush unless the pool is idle. Objects first, then the record: what no record names never happened.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Collection

from astraflow.raas.contact import Contact
from astraflow.raas.depot import Depot
from astraflow.raas.facts import FactWriter
from astraflow.raas.group import PlayedGroup
from astraflow.raas.rows import Bundle, Origin, bundle, describe, to_table
from astraflow.records import Committed, PartsObject
from storage.commit_points import commit_point
from storage.errors import DeadlineError
from storage.keys import RunKeys
from storage.tables import Written, encode_table, hash_bytes

_ANNOUNCE_S = 30.0


class Committer:
    """Takes played groups; ``run`` must be running. ``announced`` tells the newest version said to be applied."""

    def __init__(
        self,
        depot: Depot,
        keys: RunKeys,
        origin: Origin,
        writer: FactWriter,
        contact: Contact,
        *,
        flush_s: float,
        announced: Callable[[str], int],
    ) -> None:
        self.groups = 0
        self.trajectories = 0
        self.tokens = 0  # sampled, the prompts aside
        self.first_at: float | None = None  # monotonic time at which the first group was in the log
        self._depot = depot
        self._keys = keys
        self._origin = origin
        self._writer = writer
        self._contact = contact
        self._flush_s = flush_s
        self._announced = announced
        self._pending: list[PlayedGroup] = []
        self._arrived = asyncio.Event()
        self._hurry = asyncio.Event()
        self._free = asyncio.Event()
        self._free.set()

    def put(self, group: PlayedGroup) -> None:
        """Commit this group with the next flush."""
        self._pending.append(group)
        self._free.clear()
        self._arrived.set()

    def hurry(self) -> None:
        """Nothing more is coming soon: do not wait for ``flush_s``."""
        if self._pending:
            self._hurry.set()

    async def all_committed(self) -> None:
        """Wait until everything that was put is in the log, which nothing may hold up any more: the pool leaves."""
        self.hurry()
        self._depot.hurry()
        await self._free.wait()

    async def run(self) -> None:
        """Flush for ever."""
        try:
            await self._depot.begin()
            await self._flush_for_ever()
        finally:
            await self._depot.close()

    async def _flush_for_ever(self) -> None:
        flushed_at = -self._flush_s
        while True:
            await self._arrived.wait()
            await self._gather(flushed_at + self._flush_s - time.monotonic())
            self._arrived.clear()
            self._hurry.clear()
            groups, self._pending = self._pending, []
            flushed_at = time.monotonic()
            await self._flush(groups)
            if not self._pending:
                self._free.set()

    async def _gather(self, wait_s: float) -> None:
        """Let more groups come for ``wait_s``, or until hurried; at least those that end in this turn of the loop."""
        await asyncio.sleep(0)
        if wait_s > 0:
            try:
                await asyncio.wait_for(self._hurry.wait(), wait_s)
            except TimeoutError:
                return

    async def _flush(self, groups: list[PlayedGroup]) -> None:
        bundles = bundle(groups)
        commit_point("pool.before_upload")
        objects = await asyncio.gather(*(self._upload(item) for item in bundles))
        commit_point("pool.after_upload")
        await self._announcements(objects)
        self._writer.put(
            Committed(
                groups=[group.lease.group for group in groups],
                attempts=[group.lease.attempt for group in groups],
                objects=objects,
            )
        )
        await self._writer.written()
        commit_point("pool.after_commit")
        self.groups += len(groups)
        self.first_at = self.first_at or time.monotonic()
        self.trajectories += sum(len(item.rows) for item in bundles)
        self.tokens += sum(sum(item.response_tokens) for item in objects)

    async def _upload(self, item: Bundle) -> PartsObject:
        """Write one object."""
        path = self._keys.trajectory(item.policy, item.version, self._origin.pool, uuid.uuid4().hex[:12])
        data, written = await self._contact.run(self._encode, item)
        store = await self._depot.put(path, data)
        return describe(item, path, written, store)

    def _encode(self, item: Bundle) -> tuple[bytes, Written]:
        """The object's bytes (in a thread), and what a record must say of them."""
        data = encode_table(to_table(item.rows, self._origin))
        return data, Written(len(data), hash_bytes(data))

    async def _announcements(self, objects: list[PartsObject]) -> None:
        """Wait until every version in ``objects`` was put as ``Applied``: the record must stand behind it."""
        await self.until_announced({(item.policy, max(item.version_max)) for item in objects})

    async def until_announced(self, newest: Collection[tuple[str, int]]) -> None:
        """Wait until these versions (policy, version) were put as ``Applied``. Raises ``DeadlineError``."""
        deadline = time.monotonic() + _ANNOUNCE_S
        while late := [(policy, version) for policy, version in newest if self._announced(policy) < version]:
            if time.monotonic() > deadline:
                raise DeadlineError(f"versions that sampled were never said to be applied: {late}", kind="timeout")
            await asyncio.sleep(0.01)
