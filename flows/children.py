"""What a run consists of: manager, trainers, pools, mirrors, as what is to be started for each. Knows no Prefect."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import Enum

from astraflow.config import REMOTE, RunConfig

LOCAL = "local"
"""The deployment that every flow has: where no other is known, this one is used."""


class Need(Enum):
    """How long a run needs a child, and whether it goes on without it: what its end means to the supervisor."""

    THROUGHOUT = "throughout"  # its end before the run's is a fault, and without it the run can't go on
    ONCE = "once"  # it may complete before the run does, but without that the run can't go on
    SPARE = "spare"  # it may complete, and without it the run goes on: others play, weights come from the run's store


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """One long-lived part of a run: what to start for it."""

    role: str  # manager, trainer, pool or mirror
    name: str  # policy, pool or region; empty for the manager
    flow: str
    deployments: tuple[str, ...]  # preferred first
    parameters: dict[str, str]
    tags: tuple[str, ...]
    need: Need = Need.THROUGHOUT

    @property
    def label(self) -> str:
        """How its flow runs are named: ``trainer/solver``; a pool by region, with its name where that is another."""
        region = next((tag.partition(":")[2] for tag in self.tags if tag.startswith("region:")), self.name)
        return "/".join(dict.fromkeys(part for part in (self.role, region, self.name) if part))

    @property
    def key(self) -> str:
        """``trainer-solver``: unique in a run."""
        return "-".join(part for part in (self.role, self.name) if part)

    @property
    def may_complete(self) -> bool:
        """Whether it may end well before the run does."""
        return self.need is not Need.THROUGHOUT

    @property
    def is_spare(self) -> bool:
        """Whether the run goes on without it."""
        return self.need is Need.SPARE


def children_of(config: RunConfig) -> list[ChildSpec]:
    """What a run consists of: the manager, a trainer for each trained policy, the pools, and their regions' mirrors."""
    common = {"run": config.name, "store": config.store}
    specs = [ChildSpec("manager", "", "dataflow_manager", (LOCAL,), common, ())]
    for name, policy in sorted(config.policies.items()):
        if policy.model == REMOTE:
            continue  # it has no weights
        # The trainer of a frozen policy publishes its version 0, and that is all.
        need = Need.ONCE if policy.frozen else Need.THROUGHOUT
        parameters = {**common, "policy": name}
        specs.append(ChildSpec("trainer", name, "trainer", (LOCAL,), parameters, (f"policy:{name}",), need))
    for name, pool in config.pools.items():
        tags = (f"region:{pool.region}", *(f"policy:{policy}" for policy in config.policies_of(name)))
        parameters = {**common, "pool": name}
        specs.append(ChildSpec("pool", name, "raas_pool", _deployments(pool.region), parameters, tags, Need.SPARE))
    for region in sorted(mirrored_regions(config)):
        tags, parameters = (f"region:{region}",), {**common, "region": region}
        specs.append(ChildSpec("mirror", region, "region_mirror", _deployments(region), parameters, tags, Need.SPARE))
    return specs


def mirrored_regions(config: RunConfig) -> set[str]:
    """Regions of the run's pools that have a store of their own."""
    regions = {pool.region for pool in config.pools.values()}
    return {name for name, region in config.regions.items() if name in regions and region.store}


def store_tag(store: str) -> str:
    """The tag by which flow runs of one store are told from those of a run of the same name in another."""
    return f"store:{hashlib.sha256(store.encode()).hexdigest()[:8]}"


def _deployments(region: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys((region, LOCAL)))
