"""The data algorithms as protocols, and the registry that finds them by name or import path.

Curator (which problem next), Filter (which parts are kept), Order (which ready part first) and Replay
(which consumed parts come again) see columnar metadata only. Nothing else in the system knows them.
Questions (``select``, ``keep``, ``rank``, ``supply``, ``mix``) change nothing; state changes only in the
fold (``leased``, ``observe``, ``consumed``, ``used``), so that recovery gives the same state without asking.

Own code must not raise: the same record would meet the next manager, too. A filter that does drops the part as
``filter_error``; a curator that cannot select, or names a problem that is not there, is passed over for problems in
file order, and what it cannot observe is lost on it. Orders and replays have no such net.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from astraflow.component import check_options, find
from astraflow.config import Component, RunConfig
from astraflow.dataflow import builtin, curators, replays
from astraflow.dataflow.parts import Part, PartRows
from storage.errors import ConfigError


class Curator(Protocol):
    """Says which problem is leased next."""

    def select(self) -> int:
        """The row number of the next problem; changes nothing."""
        ...

    def leased(self, problem: int) -> None:
        """A new group of ``problem``, as selected, was leased."""
        ...

    def observe(self, problem: int, rows: PartRows) -> None:
        """A part of ``problem`` was admitted."""
        ...

    def state(self) -> dict[str, Any]:
        """What a snapshot must hold, as plain JSON values."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Inverse of ``state``."""
        ...


class Filter(Protocol):
    """Says whether an admitted part is worth training on."""

    def keep(self, rows: PartRows) -> bool:
        """A pure function of the part's columns."""
        ...


class Order(Protocol):
    """Says which ready part is batched first."""

    def rank(self, part: Part) -> tuple[int, ...]:
        """Smaller ranks are batched first; ranks of different parts must differ."""
        ...


class Replay(Protocol):
    """Keeps consumed parts of one policy and says which come again."""

    def supply(self, n: int) -> int:
        """How many parts ``mix`` would give for batch ``n``."""
        ...

    def mix(self, n: int) -> list[Part]:
        """The parts that join batch ``n``; none twice, none too stale at step ``n``."""
        ...

    def consumed(self, parts: Sequence[Part]) -> None:
        """These fresh parts were trained on."""
        ...

    def used(self, n: int, groups: Sequence[int]) -> None:
        """These kept groups went into batch ``n``."""
        ...

    def forget(self, groups: Collection[int]) -> None:
        """These kept groups could not be read: they never come again."""
        ...

    def state(self) -> dict[str, Any]:
        """What a snapshot must hold, as plain JSON values."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Inverse of ``state``."""
        ...


CURATORS: dict[str, Callable[..., Curator]] = {
    "shuffled": builtin.Shuffled,
    "sequential": builtin.Sequential,
    "filter_solved": curators.FilterSolved,
    "greso": curators.Greso,
    "curriculum": curators.Curriculum,
}
FILTERS: dict[str, Callable[..., Filter]] = {
    "zero_advantage": builtin.ZeroAdvantage,
    "overlong": builtin.Overlong,
    "failed": builtin.FailedRows,
}
ORDERS: dict[str, Callable[..., Order]] = {"edf": builtin.Edf, "fifo": builtin.Fifo, "lifo": builtin.Lifo}
REPLAYS: dict[str, Callable[..., Replay]] = {
    "none": builtin.NoReplay,
    "latest": replays.Latest,
    "uniform": replays.Uniform,
    "prioritized": replays.Prioritized,
}


FILTER_ERROR = "filter_error"
"""Why a part is dropped whose filter raised."""
OWN_REASONS = frozenset(("absent", "ended", "failed", FILTER_ERROR, "frozen", "skipped", "stale", "surplus"))
"""Why the manager itself drops a part."""


@dataclass(frozen=True, slots=True)
class Algorithms:
    """The algorithms of one run: filters by the reason that their drops are given."""

    curator: Curator
    filters: dict[str, Filter]
    order: Order
    replays: dict[str, Replay]  # one a trained policy


def load_algorithms(config: RunConfig) -> Algorithms:
    """Build what ``config.dataflow`` names. Raises ``ConfigError`` naming the field."""
    flow = config.dataflow
    curator: Curator = _build(
        CURATORS, flow.curator, "dataflow.curator", problem_count=config.problem_count, seed=config.seed
    )
    filters: dict[str, Filter] = {}
    for index, component in enumerate(flow.filters):
        reason = _reason_of(component)
        if reason in filters:
            raise ConfigError(f"two filters are called {reason!r}", where="dataflow.filters", remedy="Keep one of them")
        filters[reason] = _build(FILTERS, component, f"dataflow.filters[{index}]")
    order: Order = _build(ORDERS, flow.order, "dataflow.order")
    by_policy: dict[str, Replay] = {
        policy: _build(
            REPLAYS,
            flow.replay,
            "dataflow.replay",
            batch_size=config.trainer_of(policy).batch_size,
            max_staleness=flow.max_staleness,
            seed=config.seed,
        )
        for policy in config.trained
    }
    return Algorithms(curator, filters, order, by_policy)


def filter_reasons(config: RunConfig) -> list[str]:
    """What the drops of each filter are called, in the order of the filters."""
    return [_reason_of(component) for component in config.dataflow.filters]


def _reason_of(component: Component) -> str:
    """What a filter's drops are called: its name, told apart from the manager's own reasons."""
    name = component.name.rpartition(":")[2]
    return f"filter_{name}" if name in OWN_REASONS else name


def _build(known: dict[str, Callable[..., Any]], component: Component, field: str, **context: Any) -> Any:
    make: Callable[..., Any] = find(component.name, known, where=f"{field}.name")
    given = sorted(context.keys() & component.options.keys())
    if given:
        raise ConfigError(
            f"{', '.join(given)} cannot be set here",
            where=f"{field}.options",
            remedy="The run gives it: leave it out",
            kind="options",
        )
    check_options(functools.partial(make, **context), component.options, given=0, where=f"{field}.options")
    try:
        return make(**context, **component.options)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"{component.name!r} cannot be made with these options: {error}",
            where=f"{field}.options",
            remedy="Correct its options",
            kind="options",
        ) from error
