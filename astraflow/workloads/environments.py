"""The seam to text environments: a world is reset, acted in, and scored.

``Environments`` makes worlds of problems; everything that a world holds is its own, and it is closed when its episode
ends, however that ends. A world that breaks raises ``EpisodeError``: nothing that breaks is ever a low score.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from astraflow.problems import Problem

BUILT_IN: dict[str, str] = {
    "shop": "astraflow.workloads.shop.environment:Shops",
    "household": "astraflow.workloads.household.environment:Households",
    "gymnasium": "astraflow.workloads.adapters.gymnasium:GymnasiumTexts",
    "openenv": "astraflow.workloads.adapters.openenv:OpenEnvs",
}


@dataclass(frozen=True, slots=True)
class Observation:
    """What is seen; ``actions`` are those that can be taken, if the world knows; ``score`` in [0, 1] so far."""

    text: str
    score: float = 0.0
    done: bool = False
    actions: tuple[str, ...] = ()


class World(Protocol):
    """One episode's environment."""

    async def reset(self) -> Observation:
        """The beginning."""
        ...

    async def step(self, action: str) -> Observation:
        """What an action leads to. An action that makes no sense changes nothing and says so."""
        ...


class Environments(Protocol):
    """Makes worlds."""

    def play(self, problem: Problem) -> AbstractAsyncContextManager[World]:
        """The world of a problem, for one episode."""
        ...
