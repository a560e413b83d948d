"""Playing an item of an evaluation: as a group of training is played, and then scored instead of committed.

Nothing of it is trained on and no trajectory is kept; what the manager is told is one score a play, and which versions
played. The score of a play is the reward, or a named part of it, of the last conversation of the evaluation's role.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from astraflow import config as cfg
from astraflow.raas.group import PlayedGroup, Playing, play_group
from astraflow.raas.leases import Lease
from astraflow.records import EvalFailed, Evaluated, Failed
from astraflow.rewards import ScoredProblem
from astraflow.trajectory import Trajectory
from astraflow.workflows.runtime import Voice
from storage.errors import EpisodeError


@dataclass(frozen=True, slots=True)
class Exam:
    """What the items of one evaluation are played with."""

    playing: Playing
    problems: Sequence[ScoredProblem]
    role: str
    part: str = ""


def make_exam(playing: Playing, evaluation: cfg.Evaluation, problems: Sequence[ScoredProblem]) -> Exam:
    """The run's workflow and voices, with the evaluation's problems, plays and temperature."""
    voices = {role: _voice(voice, evaluation.temperature) for role, voice in playing.voices.items()}
    its_own = dataclasses.replace(playing, voices=voices, group_size=evaluation.repeats)
    return Exam(its_own, problems, evaluation.role or playing.workflow.roles[0], evaluation.part)


def _voice(voice: Voice, temperature: float | None) -> Voice:
    if temperature is None:
        return voice
    return dataclasses.replace(voice, sampling=voice.sampling.model_copy(update={"temperature": temperature}))


async def play_item(lease: Lease, exam: Exam) -> Evaluated:
    """Play all plays of one problem and score them. Raises as ``play_group`` does."""
    if not 0 <= lease.problem < len(exam.problems):
        raise EpisodeError(f"there is no problem {lease.problem} in {lease.evaluation}", kind="problem")
    played = await play_group(lease, exam.problems[lease.problem], exam.playing)
    rows = [row for episode in played.episodes for row in episode]
    low: dict[str, int] = {}
    high: dict[str, int] = {}
    for row in rows:
        low[row.policy] = min(row.version_min, low.get(row.policy, row.version_min))
        high[row.policy] = max(row.version_max, high.get(row.policy, row.version_max))
    return Evaluated(
        evaluation=lease.evaluation,
        item=lease.item,
        attempt=lease.attempt,
        scores=[_score(played, episode, exam) for episode in played.episodes],
        low=low,
        high=high,
        response_tokens=sum(len(row.response_ids) for row in rows),
    )


def _score(played: PlayedGroup, episode: Sequence[Trajectory], exam: Exam) -> float:
    said = [row for row in episode if row.role == exam.role]
    if not said:
        raise EpisodeError(
            f"role {exam.role!r} did not speak, so there is nothing to score",
            where=f"problem {played.problem_id}",
            remedy="Name the role whose answer counts in evaluations.….role",
            kind="role",
        )
    last = max(said, key=lambda row: row.slot)
    return last.reward_parts.get(exam.part, 0.0) if exam.part else last.reward


def not_played(lease: Lease, kind: str, message: str = "") -> Failed | EvalFailed:
    """The word that a lease, of either sort, is handed back."""
    if lease.evaluation:
        return EvalFailed(item=lease.item, attempt=lease.attempt, kind=kind, message=message)
    return Failed(group=lease.group, attempt=lease.attempt, kind=kind, message=message)
