"""Environments with Gymnasium's interface whose observations and actions are texts.

``make`` names a function (``package.module:function``), or ``id`` an environment that Gymnasium knows. Calls run in a
thread, one at a time for each environment. ``info["admissible_commands"]`` (or ``"actions"``), where given, are what
can be done. The score is the sum of rewards, or the last one, kept within 0 and 1.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

from astraflow.component import find
from astraflow.problems import Problem
from astraflow.workloads.environments import Observation
from astraflow.workloads.packages import need
from storage.errors import ConfigError, EpisodeError


class GymnasiumTexts:
    """Implements ``Environments``."""

    def __init__(
        self, *, make: str = "", id: str = "", options: Mapping[str, Any] | None = None, score: str = "sum"
    ) -> None:
        if bool(make) == bool(id) or score not in ("sum", "last"):
            raise ConfigError(
                "one of make and id has to be said, and score is 'sum' or 'last'",
                where="workflow.options.environment_options",
                kind="options",
            )
        self._make = find(make, {}, where="workflow.options.environment_options.make") if make else None
        self._id = id
        self._options = dict(options or {})
        self._sum = score == "sum"

    @contextlib.asynccontextmanager
    async def play(self, problem: Problem) -> AsyncIterator[GymnasiumText]:
        """A new environment for the episode."""
        environment = await asyncio.to_thread(self._create)
        world = GymnasiumText(environment, int(problem.meta.get("seed", problem.index)), cumulative=self._sum)
        try:
            yield world
        finally:
            if hasattr(environment, "close"):
                await asyncio.to_thread(environment.close)

    def _create(self) -> Any:
        if self._make is not None:
            return self._make(**self._options)
        return need("gymnasium", "gymnasium").make(self._id, **self._options)


class GymnasiumText:
    """Implements ``World``."""

    def __init__(self, environment: Any, seed: int, *, cumulative: bool) -> None:
        self._environment = environment
        self._seed = seed
        self._sum = cumulative
        self._score = 0.0

    async def reset(self) -> Observation:
        found = await self._call(self._environment.reset, seed=self._seed)
        text, info = found if isinstance(found, tuple) else (found, {})
        return self._seen(text, info, done=False)

    async def step(self, action: str) -> Observation:
        text, reward, *ends, info = await self._call(self._environment.step, action)  # one end in Gym, two in Gymnasium
        self._score = self._score + float(reward) if self._sum else float(reward)
        return self._seen(text, info, done=any(ends))

    def _seen(self, text: Any, info: Mapping[str, Any], *, done: bool) -> Observation:
        actions = info.get("admissible_commands") or info.get("actions") or ()
        return Observation(str(text), min(max(self._score, 0.0), 1.0), done, tuple(map(str, actions)))

    async def _call(self, method: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return await asyncio.to_thread(method, *args, **kwargs)
        except Exception as error:
            raise EpisodeError(
                f"the environment raised {type(error).__name__}: {error}",
                where=type(self._environment).__name__,
                kind="environment",
            ) from error
