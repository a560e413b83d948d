"""A part: one policy's trajectories of one group, as the manager sees it: where it lies, how old, how long.

The manager never sees tokens. A part in memory is one small row; its per-trajectory columns stay in the
fact that brought it and are looked at once, at admission (``PartRows``).
"""

from __future__ import annotations

import msgspec

from astraflow.records import PartsObject


class Part(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One part that is ready, batched or kept for replay. ``step`` is the step of its oldest version."""

    group: int
    problem: int
    path: str
    store: str
    hash: str
    row_start: int
    row_count: int
    version: int  # the oldest among its tokens
    step: int
    tokens: int  # sampled tokens
    arrival: int  # number of its admission: the order of arrival
    spread: float  # largest less smallest reward


class PartRows(msgspec.Struct, frozen=True, gc=False):
    """The columns of one part's rows, for filters and curators; each property is one slice."""

    object: PartsObject
    start: int
    stop: int

    @property
    def policy(self) -> str:
        return self.object.policy

    @property
    def rewards(self) -> list[float]:
        return self.object.rewards[self.start : self.stop]

    @property
    def episodes(self) -> list[int]:
        return self.object.episodes[self.start : self.stop]

    @property
    def roles(self) -> list[str]:
        return self.object.roles[self.start : self.stop]

    @property
    def slots(self) -> list[int]:
        return self.object.slots[self.start : self.stop]

    @property
    def versions_min(self) -> list[int]:
        return self.object.version_min[self.start : self.stop]

    @property
    def prompt_tokens(self) -> list[int]:
        return self.object.prompt_tokens[self.start : self.stop]

    @property
    def response_tokens(self) -> list[int]:
        return self.object.response_tokens[self.start : self.stop]


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """A committed group in hand, before it is admitted: who brought which attempt, and its parts by policy."""

    participant: str
    attempt: int
    parts: dict[str, PartRows]
