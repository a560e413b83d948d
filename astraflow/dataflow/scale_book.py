"""How many pools each region shall have, as the decisions say: plain data, part of every snapshot."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from astraflow import records as r
from astraflow.config import RunConfig


class ScaleBook(msgspec.Struct):
    """The fold of all ``Scaled``. A region that none of them named has the pools of the config."""

    wanted: dict[str, int] = {}
    most: dict[str, int] = {}  # that were ever wanted: whoever looks for what is left over looks so far
    held: list[str] = []  # regions whose number is a person's word
    changes: int = 0
    changed_at: dict[str, int] = {}  # policy -> its step at the last change
    advised: dict[str, int] = {}  # policy -> pools that its last report since then asks for

    def take(self, scaled: r.Scaled, steps: Mapping[str, int]) -> None:
        """Fold one decision, made when each policy had done so many ``steps``."""
        self.wanted |= scaled.pools
        for region, pools in scaled.pools.items():
            self.most[region] = max(pools, self.most.get(region, 0))
        self.held = list(scaled.held)
        self.changes += 1
        self.changed_at = dict(steps)
        self.advised = {}

    def hear(self, report: r.LoadReported) -> None:
        """Fold a load report: what it asks for, if the config wants to know."""
        if "pools_advised" in report.figures:
            self.advised[report.policy] = int(report.figures["pools_advised"])

    def counts(self, config: RunConfig) -> dict[str, int]:
        """Pools that each region of the run shall have, in the config's order of regions."""
        return {region: self.wanted.get(region, len(sections)) for region, sections in config.pools_of_regions.items()}

    def ever(self, config: RunConfig) -> dict[str, int]:
        """The largest number that each region was ever to have."""
        return {
            region: max(len(sections), self.most.get(region, 0)) for region, sections in config.pools_of_regions.items()
        }
