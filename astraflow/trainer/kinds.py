"""The kinds of training by name: what ``trainer.kind`` may say."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from astraflow.component import find
from astraflow.config import Trainer
from astraflow.trainer.distill import Distill
from astraflow.trainer.learner import Learner, StepResult
from astraflow.trainer.objective import Objective, Rl
from astraflow.trainer.reader import LoadedBatch
from astraflow.trainer.supervised import Sft
from storage.errors import ConfigError

KINDS: dict[str, Callable[[Trainer], Objective]] = {"rl": Rl, "sft": Sft, "distill": Distill}

TrainFunction = Callable[[Learner, LoadedBatch], StepResult]


def load_kind(settings: Trainer, *, key: str = "trainer") -> tuple[Objective | None, TrainFunction | None]:
    """The objective that ``settings.kind`` names, or a function that does a whole step by itself.

    A class is made with the trainer's settings and must be an ``Objective``. Raises ``ConfigError``.
    """
    found: Any = find(settings.kind, KINDS, where=f"{key}.kind")
    if found is Rl:
        return Rl(settings, key=f"{key}.loss"), None
    if not inspect.isclass(found):
        if callable(found):
            return None, found
        made: Any = found
    else:
        factory: Any = found
        made = factory(settings)
    if not isinstance(made, Objective):
        raise ConfigError(
            f"{settings.kind!r} is no kind of training: it lacks start, examples or loss",
            where=f"{key}.kind",
            remedy="Name a class with these three methods (docs/trainer.md has an example), or a function",
            kind="kind",
        )
    return made, None
