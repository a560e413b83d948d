"""Replay: parts that were trained on come again, a share ``ratio`` of each batch.

Of a batch of B parts, r = floor(ratio · B) are replayed (fewer if fewer are fit), the rest are fresh. A kept part is
fit for batch n while it was replayed less than ``max_uses`` times and is not too stale at step n; no part comes
twice in a batch. What is kept is the last ``size`` parts, so memory has a bound.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from astraflow.dataflow.draws import draw
from astraflow.dataflow.parts import Part


class _Kept(msgspec.Struct, array_like=True):
    part: Part
    uses: int = 0


class Latest:
    """Replays what was trained on last. The base of the others, which differ in ``_choose``."""

    def __init__(
        self,
        *,
        batch_size: int,
        max_staleness: int,
        seed: int,
        ratio: float = 0.25,
        max_uses: int = 1,
        size: int = 1024,
    ) -> None:
        if not 0 <= ratio < 1 or max_uses < 1 or size < 1:
            raise ValueError("ratio must be in [0, 1), max_uses and size at least 1")
        self._wanted = int(ratio * batch_size)
        self._max_staleness = max_staleness
        self._max_uses = max_uses
        self._size = size
        self._seed = seed
        self._kept: dict[int, _Kept] = {}  # by group, oldest first

    def supply(self, n: int) -> int:
        return min(self._wanted, len(self._fit(n)))

    def mix(self, n: int) -> list[Part]:
        fit = self._fit(n)
        return self._choose(fit, min(self._wanted, len(fit)), n)

    def consumed(self, parts: Sequence[Part]) -> None:
        self._kept |= {part.group: _Kept(part) for part in parts}
        for group in list(self._kept)[: max(0, len(self._kept) - self._size)]:
            del self._kept[group]

    def used(self, n: int, groups: Sequence[int]) -> None:
        for group in groups:
            kept = self._kept.get(group)
            if kept is not None:
                kept.uses += 1
        stale = [g for g, kept in self._kept.items() if kept.uses >= self._max_uses or self._is_stale(kept.part, n)]
        self.forget(stale)

    def forget(self, groups: Collection[int]) -> None:
        for group in groups:
            self._kept.pop(group, None)

    def state(self) -> dict[str, Any]:
        kept: list[Any] = msgspec.to_builtins(list(self._kept.values()))
        return {"kept": kept}

    def restore(self, state: dict[str, Any]) -> None:
        found = msgspec.convert(state.get("kept", []), list[_Kept])
        self._kept = {kept.part.group: kept for kept in found}

    def _is_stale(self, part: Part, n: int) -> bool:
        return n - part.step > self._max_staleness

    def _fit(self, n: int) -> list[Part]:
        return [kept.part for kept in self._kept.values() if not self._is_stale(kept.part, n)]

    def _choose(self, fit: list[Part], count: int, n: int) -> list[Part]:
        return fit[len(fit) - count :]


class Uniform(Latest):
    """Replays any fit part, all alike, drawn from (seed, batch)."""

    def _choose(self, fit: list[Part], count: int, n: int) -> list[Part]:
        return sorted(fit, key=lambda part: draw(self._seed, "replay", n, part.group))[:count]


class Prioritized(Latest):
    """Replays parts in proportion to the spread of their rewards, without putting any back."""

    def _choose(self, fit: list[Part], count: int, n: int) -> list[Part]:
        left, chosen = list(fit), []
        for turn in range(count):
            weights = [1 + int(1000 * min(part.spread, 1000.0)) for part in left]  # whole numbers: exact anywhere
            mark = draw(self._seed, "replay", n, turn) % sum(weights)
            index = 0
            while mark >= weights[index]:
                mark -= weights[index]
                index += 1
            chosen.append(left.pop(index))
        return chosen
