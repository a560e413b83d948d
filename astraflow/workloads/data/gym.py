"""reasoning-gym: any of its procedural data sets by name, at a level of its curriculum, and its own graded scores.

Levels are mixed into one data set with the level of each problem in ``meta``, so that the curriculum of the data flow,
which follows what is solved, moves through them: nothing has to be generated while a run goes on.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from astraflow.problems import Problem
from astraflow.workloads.packages import need
from storage.errors import ConfigError, EpisodeError

_EXTRA = "gym"


def reasoning_gym(
    seed: int,
    *,
    dataset: str,
    count: int = 512,
    levels: Sequence[int] = (),
    parameters: dict[str, Any] | None = None,
) -> list[Problem]:
    """``count`` problems: ``levels`` of the data set's curriculum in equal shares, or ``parameters`` of its config."""
    need("reasoning_gym", _EXTRA)
    if levels and parameters:
        raise _wrong("levels and parameters cannot both be said")
    shares: list[int | None] = list(levels) or [None]
    problems: list[Problem] = []
    for place, level in enumerate(shares):
        size = count // len(shares) + (place < count % len(shares))
        if not size:
            continue
        for entry in _entries(dataset, seed + 1_000_003 * place, size, level, parameters or {}):
            meta = {"entry": json.dumps(entry, default=str), "dataset": dataset, "level": str(level or 0)}
            name = f"{dataset}-{len(problems)}"
            problems.append(Problem(len(problems), name, entry["question"], str(entry["answer"]), meta))
    return problems


def _entries(dataset: str, seed: int, size: int, level: int | None, parameters: dict[str, Any]) -> list[dict[str, Any]]:
    package = need("reasoning_gym", _EXTRA)
    factory = need("reasoning_gym.factory", _EXTRA)
    if dataset not in factory.DATASETS:
        raise _wrong(f"reasoning-gym has no data set {dataset!r}; it has {', '.join(sorted(factory.DATASETS))}")
    try:
        if level is not None:
            parameters = _of_level(factory, dataset, level)
        return list(package.create_dataset(dataset, **{**parameters, "seed": seed, "size": size}))
    except (AssertionError, TypeError, ValueError) as error:
        raise _wrong(f"reasoning-gym refuses these parameters of {dataset!r}: {error}") from error


def _of_level(factory: Any, dataset: str, level: int) -> dict[str, Any]:
    if dataset not in factory.CURRICULA:
        raise _wrong(f"the data set {dataset!r} has no curriculum, so no levels")
    curriculum = factory.create_curriculum(dataset)
    curriculum.set_global_level(level)
    config = curriculum.generate_configuration()
    return {name: value for name, value in vars(config).items() if name not in ("seed", "size")}


class GymReward:
    """The reward ``reasoning-gym``: the data set's own score. ``tag`` takes the answer from ``<tag>…</tag>``."""

    def __init__(self, *, tag: str = "") -> None:
        self._tag = tag
        self._scorers: dict[str, Any] = {}

    def __call__(self, problem: Problem, text: str) -> float:
        name = problem.meta["dataset"]
        if name not in self._scorers:
            self._scorers[name] = need("reasoning_gym", _EXTRA).get_score_answer_fn(name)
        answer = self._answer(text)
        if answer is None:
            return 0.0
        try:
            return float(self._scorers[name](answer, json.loads(problem.meta["entry"])))
        except RecursionError as error:
            raise EpisodeError(f"the score failed: {error}", where=f"problem {problem.id}", kind="reward") from error

    def _answer(self, text: str) -> str | None:
        if not self._tag:
            return text.strip()
        _, opened, rest = text.rpartition(f"<{self._tag}>")
        inside, closed, _ = rest.partition(f"</{self._tag}>")
        return inside.strip() if opened and closed else None


def _wrong(what: str) -> ConfigError:
    return ConfigError(what, where="problems.options", remedy="", kind="options")
