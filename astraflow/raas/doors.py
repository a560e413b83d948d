"""Open episodes: who holds an episode's key speaks as its roles, for as long as the episode lasts.

A harness is either started by the workflow, which hands it the key (``Doors.open``), or it lives elsewhere and takes
episodes from here (``Doors.offer``). Invariant: once an episode's context has ended, nothing is sampled for it any
more.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from astraflow.problems import Problem
from astraflow.workflows.runtime import Outcome, Roles
from storage.errors import EngineError, EpisodeError

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class OpenDoor:
    """Implements ``Door``. ``requests`` are those being served."""

    url: str
    key: str
    roles: Roles
    requests: set[asyncio.Task[Any]] = field(default_factory=set)
    dead_engine: EngineError | None = None

    async def ask(self, request: Coroutine[Any, Any, T]) -> T:
        """Do ``request`` unless the episode ends before. Raises ``EpisodeError`` (``over``) then."""
        task = asyncio.create_task(request)
        self.requests.add(task)
        try:
            return await task
        except EngineError as error:
            self.dead_engine = error
            raise
        except asyncio.CancelledError:
            here = asyncio.current_task()
            if here is not None and here.cancelling():  # the client went away
                task.cancel()
                raise
            raise EpisodeError("the episode is over", kind="over") from None
        finally:
            self.requests.discard(task)

    async def close(self) -> None:
        """End what is being served."""
        for task in self.requests:
            task.cancel()
        await asyncio.gather(*self.requests, return_exceptions=True)


@dataclass(slots=True, eq=False)
class Offer:
    """An episode that a harness elsewhere may take; ``outcome`` is what it says at the end."""

    id: str
    problem: Problem
    door: OpenDoor
    outcome: asyncio.Future[Outcome]
    taken: bool = False


class Doors:
    """All open episodes of one pool. ``address`` gives the URL of its server, started when first needed."""

    def __init__(self, address: Callable[[], Awaitable[str]]) -> None:
        self._address = address
        self._open: dict[str, OpenDoor] = {}
        self._offers: dict[str, Offer] = {}
        self._waiting: deque[Offer] = deque()
        self._news = asyncio.Condition()

    def by_key(self, key: str) -> OpenDoor | None:
        """The episode of a key, None if there is none (any more)."""
        return self._open.get(key)

    def __len__(self) -> int:
        return len(self._open)

    @contextlib.asynccontextmanager
    async def open(self, roles: Roles) -> AsyncIterator[OpenDoor]:
        """Open an episode. An engine that died under it is raised here, so that no harness can hide that."""
        door = OpenDoor(await self._address(), f"episode-{secrets.token_urlsafe(24)}", roles)
        self._open[door.key] = door
        try:
            yield door
        finally:
            del self._open[door.key]
            await door.close()
            if door.dead_engine is not None:
                raise door.dead_engine

    async def offer(self, problem: Problem, roles: Roles) -> Outcome:
        """Let a harness elsewhere play the episode; returns what it says at its end."""
        async with self.open(roles) as door:
            outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
            offer = Offer(secrets.token_hex(8), problem, door, outcome)
            self._offers[offer.id] = offer
            try:
                async with self._news:
                    self._waiting.append(offer)
                    self._news.notify()
                return await outcome
            finally:
                del self._offers[offer.id]
                if not offer.taken:
                    self._waiting.remove(offer)

    async def take(self, wait_s: float) -> Offer | None:
        """The episode that has waited longest; None if none comes within ``wait_s``."""
        try:
            async with asyncio.timeout(wait_s), self._news:
                await self._news.wait_for(lambda: bool(self._waiting))
                offer = self._waiting.popleft()
        except TimeoutError:
            return None
        offer.taken = True
        return offer

    def end(self, id: str, door: OpenDoor, outcome: Outcome) -> None:
        """The harness is done with an episode that it took. Raises ``EpisodeError`` if it does not hold it."""
        offer = self._offers.get(id)
        if offer is None or offer.door is not door:
            raise EpisodeError(f"there is no episode {id!r} with this key", kind="over")
        if not offer.outcome.done():
            offer.outcome.set_result(outcome)
