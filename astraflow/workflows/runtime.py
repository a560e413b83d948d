"""What a workflow plays with: ``roles.NAME.chat(messages)`` gives an ``Answer``, whose ``reward`` it sets.

An episode can also be opened to a program outside of the pool, an agent harness that only knows OpenAI's API: what it
asks is recorded all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Protocol

from astraflow.problems import Problem
from astraflow.trajectory import Trajectory
from astraflow.workflows.role import RoleHandle, Voice
from storage.errors import EpisodeError

KEY_HEADER = "X-Astraflow-Key"
"""Carries a door's key where a client sets Authorization by itself."""

__all__ = ["KEY_HEADER", "Door", "Host", "Outcome", "RoleHandle", "Roles", "Voice"]


class Door(Protocol):
    """Where an outside program finds the open episode: an OpenAI-compatible ``url`` and the ``key`` to it."""

    @property
    def url(self) -> str: ...

    @property
    def key(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an outside harness says of an episode that it played. ``error`` means that it could not."""

    reward: float | None = None  # None: the problem's own reward scores the last answer
    rewards: dict[str, float] = field(default_factory=dict)  # by role, where they differ
    reward_parts: dict[str, float] = field(default_factory=dict)
    meta: dict[str, str] = field(default_factory=dict)
    error: str = ""


class Host(Protocol):
    """Opens episodes to outside programs."""

    def open(self, roles: Roles) -> AbstractAsyncContextManager[Door]:
        """An episode is reachable as long as the context lasts; the name of a role is the name of a model."""
        ...

    async def offer(self, problem: Problem, roles: Roles) -> Outcome:
        """Let a harness that lives elsewhere take the episode; returns what it says at the end."""
        ...


class Roles:
    """The roles of one episode, by attribute: ``roles.solver``."""

    def __init__(self, handles: Mapping[str, RoleHandle], host: Host | None = None) -> None:
        self._handles = dict(handles)
        self._host = host

    @classmethod
    def of(cls, voices: Mapping[str, Voice], seed: str, host: Host | None = None) -> Roles:
        """Roles that play with ``voices``; ``seed`` is the episode's and makes all its draws."""
        return cls({name: voice.handle(name, seed) for name, voice in voices.items()}, host)

    def __getattr__(self, name: str) -> RoleHandle:
        handles: dict[str, RoleHandle] = self.__dict__.get("_handles", {})
        if name not in handles:
            raise AttributeError(
                f"there is no role {name!r} here, only {sorted(handles)}: declare it in @workflow(roles=…)"
            )
        return handles[name]

    @property
    def handles(self) -> Mapping[str, RoleHandle]:
        """All roles by name, for who does not know the names."""
        return self._handles

    def served(self) -> AbstractAsyncContextManager[Door]:
        """Open this episode to an outside program: ``async with roles.served() as door``.

        What it asks of ``door.url`` with ``door.key`` is recorded as if the workflow had asked it.
        """
        return self._hosted().open(self)

    async def offered(self, problem: Problem) -> Outcome:
        """Let a harness that lives elsewhere take this episode from the pool, and play it to its end."""
        return await self._hosted().offer(problem, self)

    def _hosted(self) -> Host:
        if self._host is None:
            raise EpisodeError(
                "nobody serves this episode",
                where="workflow",
                remedy="Outside programs reach episodes that a pool plays",
                kind="workflow",
            )
        return self._host

    def give(self, reward: float) -> None:
        """Reward every conversation of the episode that has no reward yet."""
        for handle in self._handles.values():
            handle.give(reward)

    def trajectories(self) -> list[Trajectory]:
        """All trajectories of the episode. Raises ``EpisodeError`` if there is none or one lacks a reward."""
        rows = [row for handle in self._handles.values() for row in handle.trajectories()]
        if not rows:
            raise EpisodeError(
                "the episode has no trajectory",
                where="workflow",
                remedy="The workflow must await a role's chat or complete",
                kind="empty",
            )
        return rows
