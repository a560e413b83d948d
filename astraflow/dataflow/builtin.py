"""The built-in data algorithms: small classes on columnar metadata, without clocks or global randomness.

Each takes its context (problem count, seed, …) and its options as keyword arguments; what it does is
described in one sentence and nothing else in the system knows about it.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from typing import Any, Literal

from astraflow.dataflow.draws import STRETCH, permuted_stretch
from astraflow.dataflow.parts import Part, PartRows


class Sequential:
    """Problems in file order, again and again."""

    def __init__(self, *, problem_count: int, seed: int) -> None:
        if problem_count < 1:
            raise ValueError("there are no problems")
        self._count = problem_count
        self._seed = seed
        self._position = 0

    def select(self) -> int:
        return self._position % self._count

    def leased(self, problem: int) -> None:
        self._position += 1

    def observe(self, problem: int, rows: PartRows) -> None:
        """Outcomes do not matter."""

    def counts(self) -> dict[str, int]:
        """What this stage did, for load reports."""
        return {"selected": self._position}

    def state(self) -> dict[str, Any]:
        return {"position": self._position}

    def restore(self, state: dict[str, Any]) -> None:
        self._position = state["position"]


class Shuffled(Sequential):
    """Every problem once an epoch, in an order drawn from (seed, epoch)."""

    def __init__(self, *, problem_count: int, seed: int) -> None:
        super().__init__(problem_count=problem_count, seed=seed)
        self._first = 0  # position where ``_stretch`` begins
        self._stretch: list[int] = []  # what follows from there on; saves time only

    def select(self) -> int:
        return self.at(self._position)

    def at(self, position: int) -> int:
        """The problem at any position of the endless order."""
        place = position - self._first
        if not 0 <= place < len(self._stretch):
            epoch, index = divmod(position, self._count)
            number, place = divmod(index, STRETCH)
            self._first = position - place
            self._stretch = permuted_stretch(number, self._count, self._seed, "curator", epoch)
        return self._stretch[place]


def is_constant(rewards: Sequence[float], tolerance: float = 1e-6) -> bool:
    """Whether all rewards are equal, up to float noise."""
    return is_close(min(rewards), max(rewards), tolerance)


def is_close(low: float, high: float, tolerance: float = 1e-6) -> bool:
    """Whether the smallest and the largest of some rewards are equal, up to float noise."""
    spread = high - low
    return spread <= tolerance or spread <= tolerance * max(abs(low), abs(high))


class ZeroAdvantage:
    """Dynamic sampling: drops a part whose rewards are all equal, up to float noise.

    ``within`` says whose rewards share a baseline, as the trainer's ``advantage_within`` does: all of the part, those
    of a role, or those of a role's slot. A part is kept if any of them differ from their like.
    """

    def __init__(self, *, tolerance: float = 1e-6, within: Literal["part", "role", "slot"] = "part") -> None:
        if within not in ("part", "role", "slot"):
            raise ValueError(f"within is 'part', 'role' or 'slot', not {within!r}")
        self._tolerance = tolerance
        self._within = within

    def keep(self, rows: PartRows) -> bool:
        if self._within == "part":
            return not is_close(rows.low, rows.high, self._tolerance)
        rewards = rows.rewards
        slots = rows.slots if self._within == "slot" else [0] * len(rewards)
        alike: dict[tuple[str, int], list[float]] = {}
        for role, slot, reward in zip(rows.roles, slots, rewards, strict=True):
            alike.setdefault((role, slot), []).append(reward)
        return not all(is_constant(found, self._tolerance) for found in alike.values())


class Overlong:
    """Drops a part in which a response is longer than ``max_tokens``."""

    def __init__(self, *, max_tokens: int) -> None:
        self._max_tokens = max_tokens

    def keep(self, rows: PartRows) -> bool:
        return max(rows.response_tokens) <= self._max_tokens


class FailedRows:
    """Drops a part in which an episode broke before its first sampled token."""

    def keep(self, rows: PartRows) -> bool:
        return min(rows.response_tokens) > 0


class Edf:
    """Earliest deadline first: the oldest version, then arrival."""

    rank = staticmethod(operator.attrgetter("version", "arrival"))


class Fifo:
    """By arrival."""

    def rank(self, part: Part) -> tuple[int, ...]:
        return (part.arrival,)


class Lifo:
    """The newest arrival first."""

    def rank(self, part: Part) -> tuple[int, ...]:
        return (-part.arrival,)


class NoReplay:
    """Every part is trained on once."""

    def __init__(self, *, batch_size: int, max_staleness: int, seed: int) -> None:
        """Takes what every replay is given."""

    def supply(self, n: int) -> int:
        return 0

    def mix(self, n: int) -> list[Part]:
        return []

    def consumed(self, parts: Sequence[Part]) -> None:
        """Nothing is kept."""

    def used(self, n: int, groups: Sequence[int]) -> None:
        """Nothing is ever used again."""

    def forget(self, groups: Collection[int]) -> None:
        """Nothing was kept."""

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """There is nothing to restore."""
