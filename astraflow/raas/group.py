"""Playing a leased group: all its episodes at once; if one fails, the group fails.

A part must be whole (its rewards are compared with each other), so the first failed episode cancels the rest.
"""

from __future__ import annotations

import asyncio
import ctypes
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass

from astraflow.raas.leases import Lease
from astraflow.rewards import ScoredProblem
from astraflow.trajectory import Trajectory
from astraflow.workflows.definition import Workflow
from astraflow.workflows.runtime import Host, Roles, Voice
from storage.errors import EngineError, EpisodeError


@dataclass(frozen=True, slots=True)
class Playing:
    """What all groups of a pool are played with."""

    workflow: Workflow
    voices: Mapping[str, Voice]  # by role
    group_size: int
    episode_timeout_s: float
    seed: int
    host: Host | None = None  # opens episodes to outside programs


@dataclass(frozen=True, slots=True)
class PlayedGroup:
    """A group that was played whole: the trajectories of each of its episodes."""

    lease: Lease
    problem_id: str
    episodes: list[list[Trajectory]]


async def play_group(lease: Lease, problem: ScoredProblem, playing: Playing) -> PlayedGroup:
    """Play all episodes. Raises ``EpisodeError`` of the first that fails, ``EngineError`` if an engine is dead."""
    names = [f"{playing.seed}/{lease.group}/{lease.attempt}/{episode}" for episode in range(playing.group_size)]
    tasks = [asyncio.create_task(play_episode(problem, playing, seed)) for seed in names]
    try:
        return PlayedGroup(lease, problem.id, list(await asyncio.gather(*tasks)))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def play_episode(problem: ScoredProblem, playing: Playing, seed: str) -> list[Trajectory]:
    """Play one episode within its deadline; whatever goes wrong in it is an ``EpisodeError``."""
    roles = Roles.of(playing.voices, seed, playing.host)
    begun = time.monotonic()
    where = f"problem {problem.id}"
    try:
        async with asyncio.timeout(playing.episode_timeout_s) as deadline:
            await playing.workflow.play(problem, roles)
    except (EpisodeError, EngineError):
        raise
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # Nobody cancelled this episode: the workflow awaited something that it, or a library of it, had cancelled.
        raise EpisodeError("the workflow awaited a cancelled task", where=where, kind="workflow") from error
    except Exception as error:  # the boundary to the user's code
        if deadline.expired():
            what, kind = f"an episode took longer than {playing.episode_timeout_s:g} s", "timeout"
        else:
            what, kind = f"the workflow raised {type(error).__name__}: {error}", "workflow"
        raise EpisodeError(what, where=where, kind=kind) from error
    rows = roles.trajectories()
    asked_s = sum(row.queue_s + row.prefill_s + row.decode_s for row in rows)
    for row in rows:  # what the episode spent outside the engines
        row.environment_s = max(0.0, time.monotonic() - begun - asked_s)
        _make_storable(row, where)
    return rows


def _make_storable(row: Trajectory, where: str) -> None:
    """Bring what the workflow set into the stored types: the log and the rows then say the same.

    Raises ``EpisodeError`` naming the key that has none.
    """
    row.reward = _float32(row.reward, f"the reward of role {row.role!r}", where)
    for name, part in row.reward_parts.items():
        row.reward_parts[name] = _float32(part, f"reward_parts[{name!r}] of role {row.role!r}", where)
    row.reward_parts = {str(name): part for name, part in row.reward_parts.items()}
    row.meta = {str(name): str(value) for name, value in row.meta.items()}


def _float32(value: object, what: str, where: str) -> float:
    try:
        number = ctypes.c_float(float(value)).value  # type: ignore[arg-type]
    except (TypeError, ValueError) as error:
        raise EpisodeError(f"{what} is {value!r}, not a number", where=where, kind="workflow") from error
    if not math.isfinite(number):
        raise EpisodeError(f"{what} is {value!r}, too large for 32 bits", where=where, kind="reward")
    return number
