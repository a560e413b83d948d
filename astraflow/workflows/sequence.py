"""One growing token sequence of one role: what becomes a trajectory.

Sampled ids are appended as they came, injected ids (what a user or tool said in between) with no loss. Invariant:
``text`` is what all ids but a last stop token stand for, so a later conversation can be compared with it.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from astraflow.trajectory import Trajectory, Turn
from astraflow.workflows.render import Message, Renderer, assistant

if TYPE_CHECKING:
    from astraflow.raas.engine import Generation


@dataclass(slots=True, eq=False)
class Sequence:
    """A trajectory in the making. ``messages`` is the conversation so far, the last answer included; ``open`` while
    an answer is being sampled. ``reward`` is None until the workflow sets it."""

    trajectory: Trajectory
    temperature: float
    messages: list[Message] = field(default_factory=list)
    text: str = ""
    reward: float | None = None
    open: bool = False
    stop_id: int | None = field(default=None, init=False)

    @property
    def ids(self) -> list[int]:
        return self.trajectory.prompt_ids + self.trajectory.response_ids

    def extends(self, messages: Items[Message]) -> bool:
        """Whether ``messages`` are this conversation and more."""
        return (
            not self.open
            and len(messages) > len(self.messages)
            and list(messages[: len(self.messages)]) == self.messages
        )

    def inject(self, ids: Items[int], role: str) -> None:
        """Append what others said: no loss, log-prob 0, the version of the token before."""
        row = self.trajectory
        if not ids:
            return
        start = len(row.response_ids)
        row.response_ids.extend(ids)
        row.logprobs.extend([0.0] * len(ids))
        row.loss_mask.extend([False] * len(ids))
        row.versions.extend([row.versions[-1]] * len(ids))
        row.turns.append(Turn(role, start, len(row.response_ids)))

    def answer(self, generation: Generation, messages: Items[Message], text: str, renderer: Renderer) -> str:
        """Append a sampled answer to ``messages``, which render as ``text``; returns what it says."""
        row = self.trajectory
        start = len(row.response_ids)
        row.response_ids.extend(generation.token_ids)
        row.logprobs.extend(generation.logprobs)
        row.loss_mask.extend([True] * len(generation.token_ids))
        row.versions.extend(generation.versions)
        row.turns.append(Turn("assistant", start, len(row.response_ids), generation.finish_reason))
        row.queue_s += generation.queue_s
        row.prefill_s += generation.prefill_s
        row.decode_s += generation.decode_s
        stopped = generation.finish_reason == "stop"
        self.stop_id = generation.token_ids[-1] if stopped else None
        said = generation.token_ids[:-1] if stopped else generation.token_ids
        answer = renderer.decode(said, special=False)
        self.text = text + renderer.decode(said, special=True)
        self.messages = [*messages, assistant(answer)]
        return answer


@dataclass(slots=True, eq=False)
class Answer:
    """What a role said. Answers of one conversation share its sequence and its reward: the last one set holds."""

    text: str
    token_ids: list[int]
    finish_reason: str
    sequence: Sequence = field(repr=False)

    @property
    def reward(self) -> float | None:
        return self.sequence.reward

    @reward.setter
    def reward(self, value: float) -> None:
        self.sequence.reward = float(value)

    @property
    def reward_parts(self) -> dict[str, float]:
        """Named parts of the reward, kept beside it for the eye; they do not change it."""
        return self.sequence.trajectory.reward_parts

    @property
    def meta(self) -> dict[str, str]:
        """Anything worth a column in the data."""
        return self.sequence.trajectory.meta

    @property
    def messages(self) -> list[Message]:
        """The conversation, this answer included: extend it to go on in the same sequence."""
        return list(self.sequence.messages)
