"""The built-in data algorithms: small classes on columnar metadata, without clocks or global randomness.

Each takes its context (problem count, seed, …) and its options as keyword arguments; what it does is
described in one sentence and nothing else in the system knows about it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal

from astraflow.dataflow.draws import permuted
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

    def select(self) -> int:
        epoch, index = divmod(self._position, self._count)
        return permuted(index, self._count, self._seed, "curator", epoch)

    def at(self, position: int) -> int:
        """The problem at any position of the endless order."""
        epoch, index = divmod(position, self._count)
        return permuted(index, self._count, self._seed, "curator", epoch)


def is_constant(rewards: Sequence[float], tolerance: float = 1e-6) -> bool:
    """Whether all rewards are equal, up to float noise."""
    low, high = min(rewards), max(rewards)
    return high - low <= tolerance * max(1.0, abs(low), abs(high))


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
        rewards = rows.rewards
        if self._within == "part":
            return not is_constant(rewards, self._tolerance)
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

    def rank(self, part: Part) -> tuple[int, ...]:
        return (part.version, part.arrival)


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
