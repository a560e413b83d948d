"""One trajectory as a person reads it: its row, token by token, with the text that its policy's tokenizer gives.

Tokens are decoded one by one from the ids that were sampled, for the eye only: text is never what is trained on. The
tokenizer is the one in the run's store; where it can't be loaded, texts are empty and the ids remain.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from astraflow.models import download_model_files, load_tokenizer
from astraflow.query.run import Run
from astraflow.trajectory import from_runs
from storage.errors import AstraFlowError, ConfigError


@dataclass(frozen=True, slots=True)
class Token:
    """One token of the response. ``trained``: whether it carries loss."""

    id: int
    text: str
    logprob: float
    version: int
    trained: bool


@dataclass(frozen=True, slots=True)
class ShownTurn:
    """A stretch of the response by one speaker."""

    role: str
    start: int
    end: int
    finish_reason: str
    tool: str
    error: str


@dataclass(frozen=True, slots=True)
class ShownTrajectory:
    """One trajectory. ``state`` and ``reason`` are what became of its part; ``facts`` the row's other columns."""

    trajectory_id: str
    run: str
    policy: str
    role: str
    reward: float
    reward_parts: dict[str, float]
    state: str
    reason: str
    prompt_ids: list[int]
    prompt: str
    tokens: list[Token]
    turns: list[ShownTurn]
    facts: dict[str, Any]


FACTS = ("group_id", "problem_id", "episode", "attempt", "slot", "pool", "region", "engine", "temperature")
TIMES = ("queue_s", "prefill_s", "decode_s", "environment_s")


def find_trajectory(run: Run, trajectory_id: str) -> ShownTrajectory:
    """The trajectory of that id. Raises ``ConfigError`` if the run has admitted none."""
    group = trajectory_id.partition("-")[0]
    if not group.isdecimal():
        raise _missing(run, trajectory_id)
    found = (run.fold.parts.get((policy, int(group))) for policy in run.config.policies)
    paths = [part.object.path for part in found if part is not None and part.object is not None]
    wanted = ds.field("path").isin(pa.array(paths, pa.string())) & (ds.field("trajectory_id") == trajectory_id)
    rows = run.trajectories().to_table(filter=wanted).to_pylist()
    if not rows:
        raise _missing(run, trajectory_id)
    return _shown(run, rows[0])


def _missing(run: Run, trajectory_id: str) -> ConfigError:
    return ConfigError(
        f"the run has no trajectory {trajectory_id!r}",
        where=run.keys.run,
        remedy='Ids look like 12-1-0-solver-0; `astraflow query "select trajectory_id, reward from trajectories"` '
        "lists them. A group that was not admitted does not show",
        kind="no_trajectory",
    )


def _shown(run: Run, row: dict[str, Any]) -> ShownTrajectory:
    ids: list[int] = row["response_ids"]
    texts = _texts(run, row["policy"], [*row["prompt_ids"], *ids])
    prompt, response = texts[: len(row["prompt_ids"])], texts[len(row["prompt_ids"]) :]
    versions = from_runs(row["version_start"], row["version_id"], len(ids))
    part = run.fold.parts.get((row["policy"], row["group_id"]))
    return ShownTrajectory(
        trajectory_id=row["trajectory_id"],
        run=run.keys.run,
        policy=row["policy"],
        role=row["role"],
        reward=row["reward"],
        reward_parts=dict(row["reward_parts"] or {}),
        state=part.state if part else "",
        reason=part.reason if part else "",
        prompt_ids=row["prompt_ids"],
        prompt="".join(prompt),
        tokens=[
            Token(*columns) for columns in zip(ids, response, row["logprobs"], versions, row["loss_mask"], strict=True)
        ],
        turns=[ShownTurn(**{name: turn[name] for name in ShownTurn.__slots__}) for turn in row["turns"] or []],
        facts={name: row[name] for name in (*FACTS, *TIMES)} | {"meta": dict(row["meta"] or {})},
    )


def _texts(run: Run, policy: str, ids: list[int]) -> list[str]:
    """The text of each token alone; empty where there is no tokenizer."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            download_model_files(run.store, run.keys, policy, Path(folder))
            tokenizer = load_tokenizer(folder)
        except AstraFlowError:
            return [""] * len(ids)
        return [str(tokenizer.decode([id])) for id in ids]
