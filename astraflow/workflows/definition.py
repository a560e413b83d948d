"""Declaring a workflow, and binding it to the options of a config."""

from __future__ import annotations

import functools
import inspect
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from astraflow.component import check_options
from astraflow.problems import Problem
from astraflow.rewards import ScoredProblem
from astraflow.workflows.render import Message
from astraflow.workflows.runtime import Roles
from storage.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Demonstration:
    """What ``role`` should say after ``messages``; for the supervised start of a model that knows nothing yet."""

    role: str
    messages: Sequence[Message]
    completion: str


class Workflow(Protocol):
    """How an episode of one problem is played. One instance plays many at once and holds no state of one."""

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles it lets speak."""
        ...

    async def play(self, problem: ScoredProblem, roles: Roles) -> None:
        """Play one episode and set the reward of every answer (of every conversation)."""
        ...

    def demonstrate(self, problem: Problem, rng: random.Random) -> list[Demonstration]:
        """Demonstrations made from one problem. Raises ``ConfigError`` if the workflow has none."""
        ...


Play = Callable[..., Awaitable[None]]
Demonstrate = Callable[..., list[Demonstration]]


@dataclass(slots=True, eq=False)
class WorkflowDefinition:
    """What ``@workflow`` makes of a coroutine ``play(problem, roles, *, options…)``."""

    name: str
    roles: tuple[str, ...]
    play: Play
    demonstrator: Demonstrate | None = None

    def demonstration(self, function: Demonstrate) -> Demonstrate:
        """Decorator: ``function(problem, rng, *, the same options…)`` makes the demonstrations."""
        self.demonstrator = function
        return function

    def bind(self, options: Mapping[str, Any], *, where: str = "workflow.options") -> BoundWorkflow:
        """The workflow with its options set. Raises ``ConfigError`` for one that it does not take."""
        check_options(self.play, options, given=2, where=where)
        play = functools.partial(self.play, **options)
        if self.demonstrator is None:
            return BoundWorkflow(self.name, self.roles, play, None)
        check_options(self.demonstrator, options, given=2, where=where)
        return BoundWorkflow(self.name, self.roles, play, functools.partial(self.demonstrator, **options))


@dataclass(frozen=True, slots=True)
class BoundWorkflow:
    """Implements ``Workflow``."""

    name: str
    roles: tuple[str, ...]
    _play: Play
    _demonstrate: Demonstrate | None

    async def play(self, problem: ScoredProblem, roles: Roles) -> None:
        await self._play(problem, roles)

    def demonstrate(self, problem: Problem, rng: random.Random) -> list[Demonstration]:
        if self._demonstrate is None:
            raise ConfigError(
                f"the workflow {self.name!r} has no demonstrations, so it cannot warm a model up",
                where="policies.…warmup",
                remedy="Remove the warmup, or give the workflow a function with @NAME.demonstration",
                kind="no_demonstrations",
            )
        return self._demonstrate(problem, rng)


def workflow(*, roles: Sequence[str]) -> Callable[[Play], WorkflowDefinition]:
    """Declare a coroutine ``play(problem, roles, *, options…)`` as a workflow of these roles."""

    def decorate(play: Play) -> WorkflowDefinition:
        if not inspect.iscoroutinefunction(play):
            raise ConfigError(
                f"the workflow {getattr(play, '__name__', play)!r} is not a coroutine",
                where="workflow.name",
                remedy="Write it with `async def`",
                kind="workflow",
            )
        return WorkflowDefinition(getattr(play, "__name__", "workflow"), tuple(roles), play)

    return decorate
