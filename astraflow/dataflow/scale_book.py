"""How many pools each region shall have and whether they play, as the decisions say: plain data of every snapshot."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from astraflow import records as r
from astraflow.config import RunConfig


class ScaleBook(msgspec.Struct):
    """The fold of what is said of regions. One that no ``Scaled`` named has the pools of the config."""

    wanted: dict[str, int] = {}
    most: dict[str, int] = {}  # that were ever wanted: whoever looks for what is left over looks so far
    held: list[str] = []  # regions whose number is a person's word
    changes: int = 0
    changed_at: dict[str, int] = {}  # policy -> its step at the last change
    advised: dict[str, int] = {}  # policy -> pools that its last report since then asks for
    paused: dict[str, str] = {}  # region -> why its pools get no leases; ``EVERYWHERE``: why no pool does

    def take(self, scaled: r.Scaled, steps: Mapping[str, int]) -> None:
        """Fold one decision, made when each policy had done so many ``steps``."""
        self.wanted |= scaled.pools
        for region, pools in scaled.pools.items():
            self.most[region] = max(pools, self.most.get(region, 0))
        self.held = list(scaled.held)
        self.changes += 1
        self._change(steps)

    def pause(self, said: r.Paused | r.Resumed, steps: Mapping[str, int]) -> None:
        """Fold a pause or its end of a region: other pools play from now on, so older reports count no more."""
        was_paused = said.region in self.paused
        if isinstance(said, r.Paused):
            self.paused[said.region] = said.reason
        else:
            self.paused.pop(said.region, None)
        if was_paused != (said.region in self.paused):
            self._change(steps)

    def _change(self, steps: Mapping[str, int]) -> None:
        self.changed_at = dict(steps)
        self.advised = {}

    def hear(self, report: r.LoadReported) -> None:
        """Fold a load report: what it asks for, if the config wants to know."""
        if "pools_advised" in report.figures:
            self.advised[report.policy] = int(report.figures["pools_advised"])

    def counts(self, config: RunConfig) -> dict[str, int]:
        """Pools that each region of the run shall have, in the config's order of regions."""
        return {region: self.wanted.get(region, len(sections)) for region, sections in config.pools_of_regions.items()}

    def playing(self, config: RunConfig) -> dict[str, int]:
        """Those of ``counts`` that may be given leases."""
        return {region: pools for region, pools in self.counts(config).items() if region not in self.paused}

    @property
    def regions_paused(self) -> dict[str, str]:
        """Why each region is paused that somebody paused."""
        return {region: reason for region, reason in self.paused.items() if region != r.EVERYWHERE}

    def ever(self, config: RunConfig) -> dict[str, int]:
        """The largest number that each region was ever to have."""
        return {
            region: max(len(sections), self.most.get(region, 0)) for region, sections in config.pools_of_regions.items()
        }
