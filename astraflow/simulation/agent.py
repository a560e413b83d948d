"""A virtual participant: an outbox that sends the same bytes until they are there, a beat, a reader of the log.

It acts when it is woken, never waits and never blocks; whatever the store does not answer is tried again later. The
protocol is the real one: the same records, keys and numbered logs as a pool or trainer of flesh and blood.
"""

from __future__ import annotations

import json
import random
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from astraflow import records as r
from astraflow.simulation.timeline import Alarm
from storage.errors import NotFound, StoreError
from storage.keys import RunKeys
from storage.log import NumberedLog, Patience
from storage.store import ObjectStore

if TYPE_CHECKING:
    from astraflow.simulation.world import World

NO_PATIENCE = Patience(total_s=0.0, sleep=lambda _: None, clock=lambda: 0.0)
RETRY_S = 1.0
"""How soon a request is repeated that the store did not answer."""


class Agent:
    """What pools and trainers have in common. ``act`` is theirs."""

    role = "agent"

    def __init__(self, world: World, name: str, away: Sequence[tuple[float, float]] = ()) -> None:
        self.world = world
        self.name = name
        self.keys = RunKeys(world.config.name)
        self.rng = random.Random(f"{world.config.seed}/{world.scenario.seed}/{name}")
        self.store: ObjectStore = world.client(self.rng)
        self.is_over = False
        self.is_told_to_go = False
        self.born_s = world.timeline.now
        self.gone_s: float | None = None
        self._away = away
        self._outbox: deque[bytes] = deque()
        self._sent = 0
        self._read = 0
        self._beats = 0
        self._beat_at = world.timeline.now
        self._log = NumberedLog(self.store, lambda seq: self.keys.outbox(self.name, seq), patience=NO_PATIENCE)
        self._alarm = Alarm(world.timeline, self._wake)
        for _, back_s in away:
            world.timeline.at(back_s, lambda: self.wake_in(0.0))

    # --- for the world ------------------------------------------------------------------------

    def wake_in(self, delay_s: float) -> None:
        """Look around in ``delay_s`` at the latest."""
        self._alarm.ring_in(delay_s)

    def die(self) -> None:
        """The process is gone: nothing more comes of it."""
        self.is_over = True
        self.gone_s = self.world.timeline.now

    @property
    def life_s(self) -> float:
        """How long it has lived so far."""
        return (self.world.timeline.now if self.gone_s is None else self.gone_s) - self.born_s

    # --- what it does ---------------------------------------------------------------------------

    def act(self) -> None:
        """Look at the store and do what is due. Raises ``StoreError``: it is called again."""
        raise NotImplementedError

    def say(self, *facts: r.AnyFact) -> None:
        """Put one record into the outbox; it is sent when the store takes it."""
        record = r.FactRecord(id=f"{self.rng.getrandbits(128):032x}", participant=self.name, facts=list(facts))
        self._outbox.append(r.encode(record))

    def _wake(self) -> None:
        if self.is_over:
            return
        try:
            if self._is_away():
                return  # it looks again when it is back
            self._beat()
            self.act()
            self._send()
        except StoreError:
            self.wake_in(RETRY_S)
        if not self.is_over:
            self.wake_in(max(0.01, self._beat_at - self.world.timeline.now))

    def _is_away(self) -> bool:
        return any(begin <= self.world.timeline.now < end for begin, end in self._away)

    def _beat(self) -> None:
        now = self.world.timeline.now
        if now >= self._beat_at:
            status = r.Status(participant=self.name, role=self.role, state="running", beat=self._beats + 1)
            self.store.put(self.keys.status(self.name), r.encode(status))
            self._beats += 1
            self._beat_at = now + self.world.beat_s

    def _send(self) -> None:
        while self._outbox:
            there = self._log.create(self._sent, self._outbox[0])
            assert there is None, "nobody else writes this outbox"
            self._outbox.popleft()
            self._sent += 1
            self.world.manager_hears()

    def decisions(self) -> Iterator[r.AnyDecision]:
        """All decisions that are there and not read yet."""
        while True:
            try:
                data = self.store.get(self.keys.decision(self._read))
            except NotFound:
                return
            record = self.world.decoded(self._read, data)
            self._read += 1
            yield from record.decisions

    def begin_at_tail(self) -> None:
        """Read the log from the newest snapshot on: for who needs only what comes now. Raises ``StoreError``."""
        for info in self.store.list(self.keys.snapshots, limit=1):
            self._read = self.keys.snapshot_seq(info.key) + 1

    def manifest(self, policy: str, version: int) -> dict[str, Any] | None:
        """A version's manifest, or None while there is none. Raises ``StoreError``."""
        try:
            found: dict[str, Any] = json.loads(self.store.get(self.keys.manifest(policy, version)))
        except NotFound:
            return None
        return found

    def is_meant(self, decision: r.DrainRequested) -> bool:
        """Whether it is asked to leave."""
        return not decision.participants or self.name in decision.participants
