"""What a run consists of: manager, trainers, pools, mirrors, as what is to be started for each. Knows no Prefect."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
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
    parameters: Mapping[str, str | int]
    tags: tuple[str, ...]
    need: Need = Need.THROUGHOUT
    copy: int = 1  # of a pool: the how-manieth of its section
    region: str = ""  # of a pool or mirror

    @property
    def label(self) -> str:
        """How its flow runs are named: ``trainer/solver``; a pool by region, with its name where that is another."""
        parts = dict.fromkeys(part for part in (self.role, self.region or self.name, self.name) if part)
        return "/".join([*parts, *([str(self.copy)] if self.copy > 1 else [])])

    @property
    def key(self) -> str:
        """``trainer-solver``, ``pool-west/2``: unique in a run."""
        again = f"/{self.copy}" if self.copy > 1 else ""
        return "-".join(part for part in (self.role, self.name) if part) + again

    @property
    def may_complete(self) -> bool:
        """Whether it may end well before the run does."""
        return self.need is not Need.THROUGHOUT

    @property
    def is_spare(self) -> bool:
        """Whether the run goes on without it."""
        return self.need is Need.SPARE


def children_of(config: RunConfig, counts: Mapping[str, int] | None = None) -> list[ChildSpec]:
    """What a run consists of: the manager, a trainer for each trained policy, the pools, and their regions' mirrors.

    A region has a pool of each of its sections, or as many as ``counts`` says: its sections in turn, and over again.
    """
    common: dict[str, str | int] = {"run": config.name, "store": config.store}
    specs = [ChildSpec("manager", "", "dataflow_manager", (LOCAL,), common, ())]
    for name, policy in sorted(config.policies.items()):
        if policy.model == REMOTE:
            continue  # it has no weights
        # The trainer of a frozen policy publishes its version 0, and that is all.
        need = Need.ONCE if policy.frozen else Need.THROUGHOUT
        parameters: dict[str, str | int] = {**common, "policy": name, "ranks": config.trainer_of(name).ranks}
        hardware = None if policy.frozen else config.trainer_of(name).hardware
        where = (hardware, LOCAL) if hardware else (LOCAL,)
        specs.append(ChildSpec("trainer", name, "trainer", where, parameters, (f"policy:{name}",), need))
    for region, sections in config.pools_of_regions.items():
        count = len(sections) if counts is None else counts.get(region, len(sections))
        specs += [_pool(config, sections[i % len(sections)], i // len(sections) + 1) for i in range(count)]
    for region in sorted(mirrored_regions(config)):
        tags, parameters = (f"region:{region}",), {**common, "region": region}
        there = _deployments(region)
        specs.append(ChildSpec("mirror", region, "region_mirror", there, parameters, tags, Need.SPARE, region=region))
    return specs


def _pool(config: RunConfig, name: str, copy: int) -> ChildSpec:
    region = config.pools[name].region
    tags = (f"region:{region}", *(f"policy:{policy}" for policy in config.policies_of(name)))
    parameters: dict[str, str | int] = {"run": config.name, "store": config.store, "pool": name}
    where = _deployments(region, config.pools[name].hardware)
    return ChildSpec("pool", name, "raas_pool", where, parameters, tags, Need.SPARE, copy=copy, region=region)


def mirrored_regions(config: RunConfig) -> set[str]:
    """Regions of the run's pools that have a store of their own."""
    regions = {pool.region for pool in config.pools.values()}
    return {name for name, region in config.regions.items() if name in regions and region.store}


def store_tag(store: str) -> str:
    """The tag by which flow runs of one store are told from those of a run of the same name in another."""
    return f"store:{hashlib.sha256(store.encode()).hexdigest()[:8]}"


def _deployments(region: str, hardware: str | None = None) -> tuple[str, ...]:
    """Of a region's flows: on that kind of hardware, anywhere in the region, at home."""
    own = (f"{region}-{hardware}",) if hardware else ()
    return tuple(dict.fromkeys((*own, region, LOCAL)))
