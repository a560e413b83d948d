"""How many pools a run should have: pure rules on a load report's figures, the same for a live run and a simulated one.

``three_zone`` is the AstraFlow paper's rule (arXiv 2605.15565, eq. 1): grow when the trainer waits, shrink when it
hardly does, hold in between. ``matched`` is ours: it looks at how full the pools are as well, so it need not wait for
the trainer to starve before it grows, nor guess at how much is spare before it shrinks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MOST_WAIT = 0.95
FULL = 0.97
"""From this share of leased capacity on, pools could not play more: what they make says nothing of what is needed."""
RESERVE_STEPS = 1.5
"""What must be ready at the next report, in steps of the trainer."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How few and how many pools there may be."""

    least: int = 1
    most: int = 64

    def clamp(self, pools: int) -> int:
        """The nearest number that is allowed."""
        return max(self.least, min(self.most, pools))


@dataclass(frozen=True, slots=True)
class Zones:
    """The thresholds of ``three_zone``: below ``low`` it may shrink, above ``high`` it grows; ``headroom`` is kept."""

    low: float = 0.05
    high: float = 0.10
    headroom: float = 1.10


def wait_share(figures: Mapping[str, float]) -> float:
    """Share of the trainer's time in which it had no batch, from a report's mean ``wait_s, step_s, publish_s``."""
    wait_s = figures.get("wait_s", 0.0)
    whole_s = wait_s + figures.get("step_s", 0.0) + figures.get("publish_s", 0.0)
    return wait_s / whole_s if whole_s > 0 else 0.0


def three_zone(pools: int, figures: Mapping[str, float], bounds: Bounds, zones: Zones = Zones()) -> int:
    """⌈G/(1−w)⌉ above ``high``; min(G, ⌈headroom·G·consumed/produced⌉) below ``low``; G in between."""
    wait = min(wait_share(figures), MOST_WAIT)
    if wait > zones.high:
        return bounds.clamp(math.ceil(pools / (1 - wait)))
    produced = figures.get("produced", 0.0)
    if wait < zones.low and produced > 0:
        return bounds.clamp(min(pools, math.ceil(zones.headroom * pools * figures.get("consumed", 0.0) / produced)))
    return bounds.clamp(pools)


def matched(pools: int, figures: Mapping[str, float], bounds: Bounds, *, margin: float = 0.04) -> int:
    """As many pools as keep the trainer fed with ``margin`` to spare.

    While the gate holds leases back, pools play fewer groups than they could: the share of their capacity that is
    leased (on average since the last report, if it says so) is the share of them that is needed. Once all of it is
    leased, what is used up faster than it is made, and what the trainer waits, say what is missing; as long as the
    stock of ready parts will outlast the next report all the same, nothing is.
    """
    capacity = figures.get("capacity", 0.0)
    leased = figures.get("leased_mean", figures.get("leased", 0.0))
    fill = min(1.0, leased / capacity) if capacity > 0 else 1.0
    wait = min(wait_share(figures), MOST_WAIT)
    produced, consumed = figures.get("produced", 0.0), figures.get("consumed", 0.0)
    need = pools * fill / (1 - wait)
    if fill >= FULL:
        a_step = consumed / max(1.0, figures.get("steps", 1.0))
        left = figures.get("ready", 0.0) - max(0.0, consumed - produced)
        if a_step > 0 and left >= RESERVE_STEPS * a_step:
            return bounds.clamp(pools)
        need *= max(1.0, consumed / produced) if produced > 0 else 1.0
    return bounds.clamp(math.ceil(need * (1 + margin) - 1e-9))


@dataclass(frozen=True, slots=True)
class Place:
    """A region as a place for pools: what one costs there, how few and how many there may be."""

    name: str
    cost: float = 1.0
    least: int = 0
    most: int = 64


def spread(counts: Mapping[str, int], total: int, places: Sequence[Place]) -> dict[str, int]:
    """The counts of regions, moved towards ``total`` pools: the cheapest grow first, the dearest shrink first.

    What no region may take or give stays undone. Of equal costs the earlier place grows first and shrinks last.
    """
    after = dict(counts)
    by_cost = sorted(places, key=lambda place: place.cost)  # keeps the order of equal ones
    for place in by_cost:
        missing = total - sum(after.values())
        after[place.name] += max(0, min(missing, place.most - after[place.name]))
    for place in reversed(by_cost):
        surplus = sum(after.values()) - total
        after[place.name] -= max(0, min(surplus, after[place.name] - place.least))
    return after
