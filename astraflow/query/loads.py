"""Load reports one by one, as others are told of them: what a policy and its pools came to since the last one.

The tables ``loads`` and ``load_pools`` hold the same figures for queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from astraflow import records as r
from astraflow.elastic import Zones
from astraflow.query.run import Run


@dataclass(frozen=True, slots=True)
class LoadReport:
    """One report; ``decision`` is the number of the record that holds it, ``id`` is told to nobody else in any run."""

    id: str
    decision: int
    policy: str
    step: int
    figures: dict[str, float]
    pools: dict[str, dict[str, float]]
    zones: Zones

    @property
    def lags(self) -> dict[int, int]:
        """How many parts were batched since the last report at each lag in steps."""
        counts = ((name[4:], count) for name, count in self.figures.items() if name.startswith("lag_"))
        return dict(sorted((int(lag), int(count)) for lag, count in counts if lag.isdecimal()))

    @property
    def room(self) -> int:
        """Groups that pools could take now."""
        return int(sum(pool.get("room", 0.0) for pool in self.pools.values()))

    @property
    def load(self) -> str:
        """``starved``: the trainer waits; ``ample``: it hardly does; ``steady`` between; ``unknown`` without times."""
        wait = self.figures.get("wait_ratio")
        if wait is None:
            return "unknown"
        return "starved" if wait > self.zones.high else "ample" if wait < self.zones.low else "steady"

    def payload(self) -> dict[str, Any]:
        """The report as plain values, for whoever is told of it elsewhere."""
        counts = ("steps", "produced", "consumed", "capacity", "leased", "ready", "batched")
        dropped = {name[8:]: int(count) for name, count in self.figures.items() if name.startswith("dropped_")}
        return {
            "policy": self.policy,
            "step": self.step,
            "decision": self.decision,
            "load": self.load,
            "wait_ratio": self.figures.get("wait_ratio"),
            **{name: int(self.figures.get(name, 0)) for name in counts},
            "room": self.room,
            "pools_advised": self.figures.get("pools_advised"),
            "lag_mean": self.figures.get("lag_mean"),
            "lag_max": self.figures.get("lag_max"),
            "lags": {str(lag): count for lag, count in self.lags.items()},
            "dropped": dropped,
            "pools": self.pools,
        }


def load_reports(run: Run, *, since: int = -1) -> Iterator[LoadReport]:
    """The reports behind decision ``since``, in the order of the decisions."""
    for seq, record in islice(run.fold.decisions, since + 1, None):  # decisions are numbered from 0, without gaps
        yield from _of(run, seq, record)


def newest_reports(run: Run, count: int) -> list[LoadReport]:
    """The last ``count`` reports, the newest first: no more of the decisions is looked at than holds them."""
    found = (report for seq, record in reversed(run.fold.decisions) for report in reversed(list(_of(run, seq, record))))
    return list(islice(found, count))


def _of(run: Run, seq: int, record: r.DecisionRecord) -> Iterator[LoadReport]:
    zones = Zones(low=run.config.scale.low, high=run.config.scale.high)
    for said in record.decisions:
        if isinstance(said, r.LoadReported):
            name = f"{seq}/{record.id}/{said.policy}"
            yield LoadReport(name, seq, said.policy, said.step, said.figures, said.pools, zones)
