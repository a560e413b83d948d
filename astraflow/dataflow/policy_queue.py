"""One policy's queue: its versions, its ready parts, its batches, and the counts of what became of every part.

Only what may still be used is kept: parts that are ready or batched and not consumed, and versions whose tokens
could still be trained on. Everything else is a count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

import msgspec

from astraflow.dataflow.parts import Part, PartRows

FORGOTTEN_STEP = -1
"""The step of a version that is too old to be remembered."""


class Version(msgspec.Struct, array_like=True):
    """What a manifest said of a version."""

    step: int
    digest: str


class Window(msgspec.Struct):
    """What happened since the last load report."""

    step: int = 0
    produced: int = 0
    consumed: int = 0
    lag_sum: int = 0
    lag_max: int = 0
    lag_parts: int = 0
    lags: dict[int, int] = {}  # parts by lag
    metrics: dict[str, float] = {}
    steps: int = 0
    from_s: float = 0.0  # the lease book's ``time_s`` and ``played_s`` at its beginning
    played_from_s: float = 0.0


class PolicyQueue(msgspec.Struct):
    """The fold of one policy."""

    frozen: bool = False
    joined: bool = False
    ended: bool = False
    paused: bool = False
    pause_reason: str = ""
    incarnation: int = -1
    versions: dict[int, Version] = {}
    floor: int = 0  # versions below are forgotten
    newest: int = -1
    newest_step: int = 0
    ready: dict[int, Part] = {}  # by group, in the order of arrival
    batches: dict[int, list[Part]] = {}  # fresh parts of batches that are not consumed
    formed: int = 0  # batches; also the step at which the next one is trained
    consumed: int = 0  # batches; also the trainer's step
    skipped: dict[int, Part] = {}  # by group: batched, but the trainer could not use them; to be dropped in this step
    admitted: int = 0  # parts that ever became ready
    trained: int = 0  # parts
    batched: int = 0  # parts in ``batches``
    dropped: dict[str, int] = {}  # parts by reason
    dropped_tokens: dict[str, int] = {}
    drawn: int = 0  # parts admitted since the last batch
    filtered: int = 0  # of those, dropped by filters
    window: Window = msgspec.field(default_factory=Window)

    @property
    def is_live(self) -> bool:
        """It has a trainer that joined and has not ended."""
        return self.joined and not self.ended and not self.frozen

    @property
    def unconsumed(self) -> int:
        """Batches that are formed and not consumed."""
        return self.formed - self.consumed

    def learn(self, version: int, step: int, digest: str) -> None:
        """A manifest is known. Repeats and forgotten versions change nothing."""
        if version < self.floor or version in self.versions:
            return
        self.versions[version] = Version(step, digest)
        if version > self.newest:
            self.newest, self.newest_step = version, step

    def step_of(self, version: int) -> int:
        """The step of a known version, ``FORGOTTEN_STEP`` if it is too old, else ``KeyError``."""
        return FORGOTTEN_STEP if version < self.floor else self.versions[version].step

    def forget_versions(self, max_staleness: int) -> None:
        """Drop versions whose tokens no coming batch may use; the newest always stays."""
        oldest_step = self.consumed - max_staleness
        for version in sorted(self.versions):
            if self.versions[version].step >= oldest_step or version == self.newest:
                break
            del self.versions[version]
            self.floor = version + 1

    def admit(self, parts: Sequence[tuple[int, int, PartRows]]) -> None:
        """Parts become ready; each with its group and problem."""
        ready, floor, versions = self.ready, self.floor, self.versions
        for arrival, (group, problem, rows) in enumerate(parts, self.admitted):
            thing, version, start = rows.object, rows.version, rows.start
            ready[group] = Part(
                group,
                problem,
                thing.path,
                thing.store,
                thing.hash,
                start,
                rows.stop - start,
                version,
                FORGOTTEN_STEP if version < floor else versions[version].step,
                rows.tokens,
                arrival,
                rows.high - rows.low + 0.0,  # no negative zero, on any platform
            )
        self.admitted += len(parts)
        self.drawn += len(parts)
        self.window.produced += len(parts)

    def form(self, n: int, groups: list[int]) -> list[int]:
        """Batch ``n`` takes these groups out of ``ready``; returns those that are not there: replayed ones."""
        fresh = [self.ready.pop(group) for group in groups if group in self.ready]
        self.batches[n] = fresh
        self.batched += len(fresh)
        self.formed = n + 1
        self.drawn = self.filtered = 0
        for step, count in Counter([part.step for part in fresh]).items():
            lag = n - step
            self.window.lag_sum += lag * count
            self.window.lag_max = max(self.window.lag_max, lag)
            self.window.lags[lag] = self.window.lags.get(lag, 0) + count
        self.window.lag_parts += len(fresh)
        if len(fresh) == len(groups):
            return []
        taken = {part.group for part in fresh}
        return [group for group in groups if group not in taken]

    def consume(self, batch: int, skipped: Collection[int], keep: Callable[[list[Part]], None]) -> None:
        """All batches up to ``batch`` are trained; ``keep`` gets their parts but the last one's ``skipped`` groups."""
        for n in range(self.consumed, batch + 1):
            parts = self.batches.pop(n)
            bad = {part.group: part for part in parts if part.group in skipped} if n == batch and skipped else {}
            used = [part for part in parts if part.group not in bad] if bad else parts
            self.skipped |= bad
            self.batched -= len(parts)
            self.trained += len(used)
            self.window.consumed += len(used)
            keep(used)
        self.consumed = max(self.consumed, batch + 1)

    def measure(self, metrics: Mapping[str, float], *, is_first: bool) -> None:
        """A step's figures, for the next load report. The wait for the run's first batch is no stall: more pools would
        not have shortened it.
        """
        self.window.steps += 1
        for name, value in metrics.items():
            counted = 0.0 if is_first and name == "wait_s" else value
            self.window.metrics[name] = self.window.metrics.get(name, 0.0) + counted

    def take(self, group: int) -> Part | None:
        """Remove a part that is being dropped from wherever it is; None if it never was one (open or absent)."""
        part = self.ready.pop(group, None) or self.skipped.pop(group, None)
        if part is not None:
            return part
        for parts in self.batches.values():
            for part in parts:
                if part.group == group:
                    parts.remove(part)
                    self.batched -= 1
                    return part
        return None

    def count_drop(self, reason: str, tokens: int) -> None:
        """One part is terminal."""
        self.dropped[reason] = self.dropped.get(reason, 0) + 1
        self.dropped_tokens[reason] = self.dropped_tokens.get(reason, 0) + tokens
