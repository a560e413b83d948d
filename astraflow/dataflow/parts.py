"""A part: one policy's trajectories of one group, as the manager sees it: where it lies, how old, how long.

The manager never sees tokens. A part in memory is one small row; its per-trajectory columns stay in the
fact that brought it and are looked at once, at admission (``PartRows``). What every part needs of them, its oldest
version, its tokens and its extreme rewards, is found for all parts of an object at once (``Columns``).
"""

from __future__ import annotations

from itertools import repeat
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from astraflow.records import PartsObject

Array = npt.NDArray[Any]


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
    version: int  # the oldest among its tokens
    tokens: int  # sampled tokens
    low: float  # the smallest reward
    high: float  # the largest reward

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


class Columns:
    """One object's columns as arrays, and its parts. Its columns are alike in length, and its parts cover the rows.

    Raises ``OverflowError`` for a number that no column can hold.
    """

    def __init__(self, thing: PartsObject) -> None:
        self.object = thing
        self.rewards: Array = np.array(thing.rewards, np.float64)
        self.response_tokens: Array = np.array(thing.response_tokens, np.int64)
        oldest, starts = thing.version_min, np.array(thing.row_starts, np.intp)
        is_one_version = oldest.count(oldest[0]) == len(oldest)
        order = None if bool((starts[1:] > starts[:-1]).all()) else np.argsort(starts)
        self.parts: list[PartRows] = list(
            map(
                PartRows,
                repeat(thing),
                thing.row_starts,
                map(int.__add__, thing.row_starts, thing.row_counts),
                repeat(oldest[0])
                if is_one_version
                else _by_part(np.minimum, np.array(oldest, np.int64), starts, order),
                _by_part(np.add, self.response_tokens, starts, order),
                _by_part(np.minimum, self.rewards, starts, order),
                _by_part(np.maximum, self.rewards, starts, order),
            )
        )


class KeptColumns:
    """The columns of objects in hand: made once for each, by its identity, which it keeps as long as they are kept."""

    def __init__(self) -> None:
        self._found: dict[int, Columns] = {}

    def of(self, thing: PartsObject) -> Columns:
        """Raises what ``Columns`` does."""
        found = self._found.get(id(thing))
        if found is None:
            found = self._found[id(thing)] = Columns(thing)
        return found

    def clear(self) -> None:
        """The objects are out of hand."""
        self._found.clear()


def _by_part(reduce: np.ufunc, column: Array, starts: Array, order: Array | None) -> list[Any]:
    """One value a part, in the order of the parts; ``order`` says how they lie in the object, if in another one."""
    if order is None:
        found = reduce.reduceat(column, starts)
    else:
        found = np.empty(len(starts), column.dtype)
        found[order] = reduce.reduceat(column, starts[order])
    values: list[Any] = found.tolist()
    return values
