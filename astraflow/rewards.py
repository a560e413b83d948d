"""Scoring an answer: ``score(problem, text) -> float``, sync or async, built in or the user's own.

A reward that raises or is not finite fails its episode (``EpisodeError``, kind ``reward``): an error of the
infrastructure must never look like a wrong answer. A sync reward runs on the pool's event loop, so it must be quick;
a slow one is a coroutine.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import re
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, fields
from fractions import Fraction
from typing import Any, Self, cast

from astraflow import config as cfg
from astraflow.component import check_options, find
from astraflow.problems import Problem
from astraflow.records import LARGEST_REWARD
from storage.errors import ConfigError, EpisodeError

Reward = Callable[[Problem, str], float | Awaitable[float]]
_NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")
_MOST_DIGITS = 1000  # of a number that is one; Python refuses to read very long ones
_WHERE = "problems.reward"


def exact(problem: Problem, text: str) -> float:
    """1 if the text is the answer, spaces at both ends aside."""
    return float(text.strip() == problem.answer.strip())


def contains(problem: Problem, text: str) -> float:
    """1 if the answer stands anywhere in the text. Rewards listing guesses: for short answers prefer another."""
    return float(problem.answer.strip() in text)


def last_number(problem: Problem, text: str) -> float:
    """1 if the last number of the text equals the last number of the answer; «1,000.0» is 1000."""
    given, right = _last_number(text), _last_number(problem.answer)
    if right is None:
        raise EpisodeError(
            f"the answer {problem.answer!r} has no number", where=f"problem {problem.id}", remedy="", kind="reward"
        )
    return float(given == right)


def _last_number(text: str) -> Fraction | None:
    found = _NUMBER.findall(text)
    return Fraction(found[-1].replace(",", "")) if found and len(found[-1]) <= _MOST_DIGITS else None


class Shuffled:
    """The control: what another problem's answer scored, so rewards with the usual rate that teach nothing.

    Each answer is scored by ``base``, the score goes into a window of the last ``window`` ones, and the score returned
    is one of the window's that belongs to another problem, at a place drawn by a hash of (problem, text, count).
    Its mean follows that of ``base``, and it is independent of the answer in hand. A run that improves under it
    leaks. Before a second problem was scored there is nothing to draw from: 0.
    """

    def __init__(self, *, base: str = "exact", window: int = 1024) -> None:
        scorer = find(base, {"exact": exact, "contains": contains, "last_number": last_number}, where=_WHERE)
        self._base: Callable[[Problem, str], float] = scorer
        self._scores: deque[tuple[int, float]] = deque(maxlen=window)
        self._count = 0

    def __call__(self, problem: Problem, text: str) -> float:
        self._count += 1
        self._scores.append((problem.index, self._base(problem, text)))
        key = f"{problem.id}\0{text}\0{self._count}".encode()
        start = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")
        size = len(self._scores)
        for step in range(size):
            index, score = self._scores[(start + step) % size]
            if index != problem.index:
                return score
        return 0.0


BUILT_IN: dict[str, Any] = {"exact": exact, "contains": contains, "last_number": last_number, "shuffled": Shuffled}
WORKLOADS = {
    "maths": "astraflow.workloads.maths.reward:MathsReward",
    "code": "astraflow.workloads.code.reward:CodeReward",
    "f1": "astraflow.workloads.search.score:f1_reward",
    "reasoning-gym": "astraflow.workloads.data.gym:GymReward",
}
"""Rewards of the workloads, imported when they are used."""


def load_reward(component: cfg.Component) -> Reward:
    """The reward a config names: a function (options become keywords) or a class (options make the instance)."""
    found: Any = find(WORKLOADS.get(component.name, component.name), BUILT_IN, where=_WHERE)
    if not callable(found):
        raise ConfigError(
            f"{component.name!r} is a {type(found).__name__}, not callable",
            where=_WHERE,
            remedy="A reward is score(problem, text) -> float, sync or async, or a class with such a __call__",
            kind="reward",
        )
    if inspect.isclass(found):
        check_options(found, component.options, given=0, where=f"{_WHERE}.options")
        made: Any = found(**component.options)
        return cast("Reward", made)
    check_options(found, component.options, given=2, where=f"{_WHERE}.options")
    bound: Reward = functools.partial(found, **component.options) if component.options else found
    return bound


@dataclass(frozen=True, slots=True)
class ScoredProblem(Problem):
    """A problem as a workflow sees it: with its reward."""

    reward: Reward = field(default=exact, compare=False, repr=False, kw_only=True)

    @classmethod
    def of(cls, problem: Problem, reward: Reward) -> Self:
        return cls(**{f.name: getattr(problem, f.name) for f in fields(Problem)}, reward=reward)

    async def score(self, text: str) -> float:
        """The reward of ``text``. Raises ``EpisodeError`` (kind ``reward``) if there is no finite one."""
        try:
            value = self.reward(self, text)
            if inspect.isawaitable(value):
                value = await value
            score = float(value)
        except EpisodeError:
            raise
        except Exception as error:  # the boundary to the user's code
            raise EpisodeError(
                f"the reward raised {type(error).__name__}: {error}", where=f"problem {self.id}", kind="reward"
            ) from error
        if not abs(score) <= LARGEST_REWARD:  # also what is not a number
            raise EpisodeError(f"the reward is {score}", where=f"problem {self.id}", kind="reward")
        return score
