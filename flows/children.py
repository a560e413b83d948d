"""What a run consists of: manager, trainers, pools, mirrors, as what is to be started for each. Knows no Prefect."""

from __future__ import annotations

from dataclasses import dataclass

from astraflow.config import RunConfig


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """One long-lived part of a run: what to start for it."""

    role: str  # manager, trainer, pool or mirror
    name: str  # policy, pool or region; empty for the manager
    flow: str
    deployments: tuple[str, ...]  # preferred first
    parameters: dict[str, str]
    tags: tuple[str, ...]
    may_complete: bool = False  # it may end well before the run does

    @property
    def label(self) -> str:
        """How its flow runs are named: ``trainer/solver``; a pool by region, with its name where that is another."""
        region = next((tag.partition(":")[2] for tag in self.tags if tag.startswith("region:")), self.name)
        return "/".join(dict.fromkeys(part for part in (self.role, region, self.name) if part))

    @property
    def key(self) -> str:
        """``trainer-solver``: unique in a run."""
        return "-".join(part for part in (self.role, self.name) if part)


def children_of(config: RunConfig) -> list[ChildSpec]:
    """What a run consists of: the manager, a trainer for each trained policy, the pools, and their regions' mirrors."""
    common = {"run": config.name, "store": config.store}
    specs = [ChildSpec("manager", "", "dataflow_manager", ("local",), common, ())]
    for name, policy in sorted(config.policies.items()):
        parameters = {**common, "policy": name}
        # The trainer of a frozen policy publishes its version 0, and that is all.
        specs.append(ChildSpec("trainer", name, "trainer", ("local",), parameters, (f"policy:{name}",), policy.frozen))
    for name, pool in config.pools.items():
        deployments = tuple(dict.fromkeys((pool.region, "local")))
        tags = (f"region:{pool.region}", *(f"policy:{policy}" for policy in config.policies_of(name)))
        parameters = {**common, "pool": name}
        specs.append(ChildSpec("pool", name, "raas_pool", deployments, parameters, tags, may_complete=True))
    for region in sorted(config.regions.keys() & {pool.region for pool in config.pools.values()}):
        deployments = tuple(dict.fromkeys((region, "local")))
        parameters = {**common, "region": region}
        tags = (f"region:{region}",)
        specs.append(ChildSpec("mirror", region, "region_mirror", deployments, parameters, tags, may_complete=True))
    return specs
