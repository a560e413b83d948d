"""One growing token sequence of one role: what becomes a trajectory.

Sampled ids are appended as they came, injected ids (what a user or tool said in between) with no loss. Invariant:
a mark stands behind each answer; what the sequence was there never changes, so a conversation that goes on from an
earlier answer can begin a sequence of its own with the same ids.
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from astraflow.trajectory import Sampler, Trajectory, Turn
from astraflow.workflows.tools import Message, ToolCall

if TYPE_CHECKING:
    from astraflow.raas.engine import Generation, Progress

Tools = Items[dict[str, Any]]
"""JSON schemas as OpenAI has them."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A sequence as it stood behind one answer."""

    length: int  # of the response
    messages: int  # of the conversation, the answer included
    cue: str  # the text that the answer follows
    text: str  # what all ids but a last stop token stand for
    stop_id: int | None  # the token that ended the answer; None: it was cut by length, or ended by a stop text
    exact: bool = True  # the answer's message says what was sampled, not what was read out of it


@dataclass(slots=True, eq=False)
class Sequence:
    """A trajectory in the making. ``messages`` is the conversation so far, the last answer included; ``open`` while
    an answer is being sampled. ``reward`` is None until the workflow sets it."""

    trajectory: Trajectory
    sampler: Sampler
    messages: list[Message] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    reward: float | None = None
    open: bool = False

    @property
    def ids(self) -> list[int]:
        return self.trajectory.prompt_ids + self.trajectory.response_ids

    @property
    def was_sampled(self) -> bool:
        """Whether it holds an answer: one that never came leaves a sequence that says nothing."""
        return bool(self.marks)

    def extended_by(self, messages: Items[Message]) -> Mark | None:
        """The last mark whose conversation ``messages`` are, and more."""
        for mark in reversed(self.marks):
            if len(messages) > mark.messages > 0 and list(messages[: mark.messages]) == self.messages[: mark.messages]:
                return mark
        return None

    def ids_at(self, mark: Mark) -> list[int]:
        """The ids up to a mark."""
        return self.trajectory.prompt_ids + self.trajectory.response_ids[: mark.length]

    def is_free_at(self, mark: Mark) -> bool:
        """Whether the conversation can go on from ``mark`` in this sequence."""
        return not self.open and bool(self.marks) and self.marks[-1] is mark

    def inject(self, ids: Items[int], role: str, tool: str = "") -> None:
        """Append what others said: no loss, log-prob 0, the version of the token before."""
        row = self.trajectory
        if not ids:
            return
        start = len(row.response_ids)
        row.response_ids.extend(ids)
        row.logprobs.extend([0.0] * len(ids))
        row.loss_mask.extend([False] * len(ids))
        row.versions.extend([row.versions[-1]] * len(ids))
        row.turns.append(Turn(role, start, len(row.response_ids), tool=tool))

    def take_back(self) -> None:
        """Cut what was injected behind the last answer: nothing was said to it."""
        row, length = self.trajectory, self.marks[-1].length if self.marks else 0
        for column in (row.response_ids, row.logprobs, row.loss_mask, row.versions):
            del column[length:]
        row.turns = [turn for turn in row.turns if turn.end <= length]

    def append(self, generation: Generation) -> None:
        """Append sampled tokens."""
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


@dataclass(frozen=True, slots=True)
class Asked:
    """One request on its way: what the sequence is when its answer has come."""

    sequence: Sequence
    messages: list[Message]  # of the conversation, the answer left out
    cue: str
    max_tokens: int | None
    tools: Tools | None = None
    as_read: bool = False
    progress: Progress | None = None
    said: str = ""  # of the answer that goes on
    seed: int | None = None  # None: the episode's draws


@dataclass(slots=True, eq=False)
class Answer:
    """What a role said. Answers of one conversation share its sequence and its reward: the last one set holds.

    ``content`` and ``tool_calls`` are what was read out of ``text``: a call is not part of the content.
    """

    text: str
    token_ids: list[int]
    finish_reason: str
    sequence: Sequence = field(repr=False)
    logprobs: list[float] = field(default_factory=list, repr=False)
    content: str = ""
    tool_calls: list[ToolCall] = field(default_factory=list)
    prompt_tokens: int = 0
    mark: Mark | None = field(default=None, repr=False)  # where its sequence stood behind it

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
