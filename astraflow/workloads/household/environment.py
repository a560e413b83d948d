"""The household as an environment: TextWorld plays the game of a problem in a process of its own; done is 1, else 0."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from astraflow.problems import Problem
from astraflow.workloads.environments import Observation
from astraflow.workloads.household.houses import house
from astraflow.workloads.household.players import Player, Players, python_of
from storage.errors import AstraFlowError

_LEFT_OUT = ("help", "inventory", "look")


class Households:
    """Implements ``Environments``. ``python`` is that of an environment with TextWorld, if this one has none."""

    def __init__(self, *, python: str = "", processes: int = 2, timeout_s: float = 60.0) -> None:
        self._players = Players(python_of(python), processes, timeout_s)

    @contextlib.asynccontextmanager
    async def play(self, problem: Problem) -> AsyncIterator[Household]:
        """The game of a problem, for one episode."""
        worker = self._players.next()
        worker.games += 1
        played = Household(worker, self._players.number(), game_of(problem))
        try:
            yield played
        finally:
            worker.games -= 1
            await played.end()

    async def close(self) -> None:
        """End the processes."""
        await self._players.close()


def game_of(problem: Problem) -> dict[str, Any]:
    """What a player needs of a problem: the path of its game, or the house and the task."""
    if "path" in problem.meta:
        return {"path": problem.meta["path"]}
    seed, index, chores = json.loads(problem.meta["house"])
    made = house(seed, index, chores)
    return {"pddl": made.pddl, "task": made.task}


class Household:
    """One game. Implements ``World``."""

    def __init__(self, worker: Player, number: int, game: dict[str, Any]) -> None:
        self._worker = worker
        self._number = number
        self._game = game
        self._life = 0

    async def reset(self) -> Observation:
        self._life, seen = await self._worker.begin(self._number, self._game)
        return _observed(seen)

    async def step(self, action: str) -> Observation:
        """An action that cannot be done here changes nothing: «Nothing happens.»."""
        return _observed(await self._ask({"action": action.strip().lower()}))

    async def end(self) -> None:
        """Let the process forget the game. One that is gone has forgotten it."""
        if self._life:
            with contextlib.suppress(AstraFlowError):
                await asyncio.shield(self._ask({"end": True}))

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        return await self._worker.ask(self._life, {"play": self._number, **request})


def _observed(seen: dict[str, Any]) -> Observation:
    actions = tuple(action for action in seen["actions"] if action not in _LEFT_OUT)
    return Observation(str(seen["text"]).strip(), float(seen["won"]), bool(seen["won"]), actions)
