"""A step's figures for those who watch elsewhere: TensorBoard or Weights & Biases, each by an extra of the package.

They are told what stands in the ``steps`` table, by the life that trained the step; nothing of a run depends on them.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from astraflow.trainer.life import finite
from storage.errors import ConfigError

FOLDER = "ASTRAFLOW_TENSORBOARD"
"""Names the folder of TensorBoard's files; ``.astraflow/tensorboard`` by default."""


class Tracker(Protocol):
    """Somewhere to send figures to."""

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        """The figures of one step, all finite."""
        ...


class TensorBoard:
    """Scalars in a folder for each run and policy."""

    def __init__(self, run: str, policy: str) -> None:
        folder = Path(os.environ.get(FOLDER) or Path(".astraflow") / "tensorboard")
        self._writer: Any = _module("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(folder / run / policy))

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()


class Wandb:
    """One run of W&B for each run and policy; a later life goes on in it. Where and who: W&B's own environment."""

    def __init__(self, run: str, policy: str) -> None:
        wandb: Any = _module("wandb", "wandb")
        name = f"{run}-{policy}"
        self._run: Any = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "astraflow"), id=name, name=name, resume="allow"
        )

    def log(self, step: int, figures: Mapping[str, float]) -> None:
        self._run.log(dict(figures), step=step, commit=True)  # not only with the next step


TRACKERS: dict[str, Any] = {"tensorboard": TensorBoard, "wandb": Wandb}


class Trackers:
    """All that the config names. What one of them raises later costs its figures, never the step."""

    def __init__(self, names: Sequence[str], run: str, policy: str) -> None:
        self._trackers: list[Tracker] = [TRACKERS[name](run, policy) for name in names]
        self.failures = 0

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        for tracker in self._trackers:
            try:
                tracker.log(step, finite(metrics))
            except Exception:  # noqa: BLE001 - the boundary to others' services
                self.failures += 1


def _module(name: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"{extra} is not installed here: {error}",
            where="trainer.trackers",
            remedy=f"pip install 'astraflow-prefect[{extra}]', or take it out of trainer.trackers",
            kind="extra",
        ) from error
