"""Curators that learn which problems are worth a lease. All start from the shuffled order and skip or draw in it.

A problem's success is the mean reward of a part of it. Arithmetic is +, −, × and comparisons only, so that decisions
are the same on every platform; draws are keyed by the number of the draw. State is bounded by the problem count.
"""

from __future__ import annotations

from typing import Any

from astraflow.dataflow.builtin import Shuffled, is_close
from astraflow.dataflow.draws import draw, uniform
from astraflow.dataflow.parts import PartRows

DECAY = 0.9
"""Weight of the past in a problem's running success."""
MOST_SKIPPED = 1000
"""Problems that one lease may pass over: bounds the time of a step."""


class Skipping(Shuffled):
    """Passes over what ``_is_skipped`` names; after ``MOST_SKIPPED`` of them, none. The base of the others."""

    def __init__(self, *, problem_count: int, seed: int) -> None:
        super().__init__(problem_count=problem_count, seed=seed)
        self._skipped = 0
        self._found: tuple[int, int] | None = None  # the next lease, until something is learned; saves time only

    def select(self) -> int:
        return self._next()[1]

    def leased(self, problem: int) -> None:
        position = self._next()[0]
        self._skipped += position - self._position
        self._position = position + 1
        self._found = None

    def counts(self) -> dict[str, int]:
        return {"selected": self._position - self._skipped, "skipped": self._skipped}

    def state(self) -> dict[str, Any]:
        return {**super().state(), "skipped": self._skipped}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._skipped = state["skipped"]
        self._found = None

    def _next(self) -> tuple[int, int]:
        """The position and problem of the next lease."""
        if self._found is None:
            self._found = self._search()
        return self._found

    def _search(self) -> tuple[int, int]:
        for position in range(self._position, self._position + min(2 * self._count, MOST_SKIPPED)):
            problem = self.at(position)
            if not self._is_skipped(position, problem):
                return position, problem
        return self._position, self.at(self._position)

    def _is_skipped(self, position: int, problem: int) -> bool:
        raise NotImplementedError


class FilterSolved(Skipping):
    """Skips problems whose running success is above ``above``; when (nearly) all are, none is skipped."""

    def __init__(self, *, problem_count: int, seed: int, above: float = 0.95) -> None:
        super().__init__(problem_count=problem_count, seed=seed)
        if above < 0:
            raise ValueError("above must not be negative: it would skip problems that were never tried")
        self._above = above
        self._success: dict[int, float] = {}
        self._solved = 0  # problems that are above now

    def observe(self, problem: int, rows: PartRows) -> None:
        before = self._success.get(problem)
        now = self._success[problem] = running(before, rows)
        self._solved += (now > self._above) - (before is not None and before > self._above)
        self._found = None

    def state(self) -> dict[str, Any]:
        return {**super().state(), "success": {str(key): value for key, value in self._success.items()}}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._success = {int(key): value for key, value in state["success"].items()}
        self._solved = sum(value > self._above for value in self._success.values())

    def _search(self) -> tuple[int, int]:
        if self._solved == self._count:
            return self._position, self.at(self._position)
        return super()._search()

    def _is_skipped(self, position: int, problem: int) -> bool:
        return self._success.get(problem, 0.0) > self._above


class Greso(Skipping):
    """GRESO (arXiv 2506.02177): the longer a problem gave no variance, the rarer it is leased.

    P(lease) = max(p^z, floor) after z such groups in a row, with p and floor of their kind (easy: mean reward above
    0.5; hard: not). Once a version, p falls by ``delta`` if the share of such groups reached its target, else it rises.
    """

    KINDS = ("easy", "hard")

    def __init__(
        self,
        *,
        problem_count: int,
        seed: int,
        p: float = 0.5,
        delta: float = 0.01,
        targets: tuple[float, float] = (0.083, 0.167),
        floors: tuple[float, float] = (0.05, 0.30),
    ) -> None:
        super().__init__(problem_count=problem_count, seed=seed)
        self._delta = delta
        self._targets = dict(zip(self.KINDS, targets, strict=True))
        self._floors = dict(zip(self.KINDS, floors, strict=True))
        self._p = dict.fromkeys(self.KINDS, p)
        self._streaks: dict[int, tuple[str, int]] = {}
        self._window = dict.fromkeys((*self.KINDS, "all"), 0)
        self._versions: dict[str, int] = {}

    def observe(self, problem: int, rows: PartRows) -> None:
        self._found = None
        newest = max(rows.versions_min)
        if newest > self._versions.get(rows.policy, newest):
            self._adapt()
        self._versions[rows.policy] = max(newest, self._versions.get(rows.policy, newest))
        self._window["all"] += 1
        if not is_close(rows.low, rows.high):
            self._streaks.pop(problem, None)
            return
        kind = "easy" if mean(rows) > 0.5 else "hard"
        before, length = self._streaks.get(problem, (kind, 0))
        self._streaks[problem] = (kind, length + 1 if before == kind else 1)
        self._window[kind] += 1

    def state(self) -> dict[str, Any]:
        streaks = {str(key): [kind, length] for key, (kind, length) in self._streaks.items()}
        rest = {"p": dict(self._p), "window": dict(self._window), "versions": dict(self._versions)}
        return {**super().state(), "streaks": streaks, **rest}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._streaks = {int(key): (kind, length) for key, (kind, length) in state["streaks"].items()}
        self._p, self._window, self._versions = dict(state["p"]), dict(state["window"]), dict(state["versions"])

    def _adapt(self) -> None:
        for kind in self.KINDS:
            is_reached = self._window[kind] >= self._targets[kind] * self._window["all"]
            moved = self._p[kind] - self._delta if is_reached else self._p[kind] + self._delta
            self._p[kind] = min(0.99, max(0.01, moved))
        self._window = dict.fromkeys(self._window, 0)

    def _is_skipped(self, position: int, problem: int) -> bool:
        kind, length = self._streaks.get(problem, ("hard", 0))
        chance = 1.0
        for _ in range(min(length, 64)):  # p^z by multiplying: exact on every platform
            chance *= self._p[kind]
        return length > 0 and uniform(self._seed, "greso", position) >= max(chance, self._floors[kind])


class Curriculum(Shuffled):
    """Draws mostly from the band of problems that succeed about half of the time; unseen ones count as such.

    There are five bands of running success. A share ``focus`` of the draws comes from the middle one, the rest from
    any problem at all, so that nothing is lost from sight.
    """

    BANDS = 5

    def __init__(self, *, problem_count: int, seed: int, focus: float = 0.8) -> None:
        super().__init__(problem_count=problem_count, seed=seed)
        self._focus = focus
        self._success: dict[int, float] = {}
        self._middle = list(range(problem_count))
        self._places = {problem: place for place, problem in enumerate(self._middle)}

    def select(self) -> int:
        mark = draw(self._seed, "curriculum", self._position)
        if self._middle and uniform(self._seed, "focus", self._position) < self._focus:
            return self._middle[mark % len(self._middle)]
        return mark % self._count

    def observe(self, problem: int, rows: PartRows) -> None:
        self._success[problem] = success = running(self._success.get(problem), rows)
        is_middle = int(min(0.999, max(0.0, success)) * self.BANDS) == self.BANDS // 2
        if is_middle and problem not in self._places:
            self._places[problem] = len(self._middle)
            self._middle.append(problem)
        elif not is_middle and problem in self._places:
            place, last = self._places.pop(problem), self._middle.pop()
            if last != problem:
                self._middle[place], self._places[last] = last, place

    def state(self) -> dict[str, Any]:
        success = {str(key): value for key, value in self._success.items()}
        return {**super().state(), "success": success, "middle": to_ranges(self._middle)}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self._success = {int(key): value for key, value in state["success"].items()}
        self._middle = [problem for start, count in state["middle"] for problem in range(start, start + count)]
        self._places = {problem: place for place, problem in enumerate(self._middle)}


def mean(rows: PartRows) -> float:
    """Mean reward of a part."""
    return sum(rows.rewards) / len(rows.rewards)


def running(before: float | None, rows: PartRows) -> float:
    """The running success after one more part; the first one stands for itself."""
    return mean(rows) if before is None else DECAY * before + (1 - DECAY) * mean(rows)


def to_ranges(numbers: list[int]) -> list[list[int]]:
    """``[5, 6, 7, 2]`` as ``[[5, 3], [2, 1]]``: a long list that is nearly in order takes little room in a snapshot."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][0] + ranges[-1][1]:
            ranges[-1][1] += 1
        else:
            ranges.append([number, 1])
    return ranges
