"""Regions as configuration: which of them a folder's recipes name, and what starts their pools and mirrors.

A region has deployments of its own: ``raas_pool/REGION`` and, if it has a store, ``region_mirror/REGION``. They are
served by the local stack's runner, or stand on the Prefect work pool that ``regions.REGION.work_pool`` names, in the
queue of the region's name, for a worker on the region's machines. Where a deployment is not known, the flows of the
region run from ``local``: a run never waits for the registration of a region.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from astraflow.config import RunConfig
from flows.children import LOCAL, ChildSpec, children_of, mirrored_regions
from infra.places import find_recipes, find_server, named_store, read_recipe
from storage.errors import AstraFlowError, ServiceError

WORK_POOL_TYPE = "process"
"""Of a work pool that is made because it is not there; one that is there is taken as it is."""


@dataclass(frozen=True, slots=True)
class Place:
    """One region, as all recipes of a folder together name it."""

    region: str
    work_pool: str | None  # None: the local stack's runner
    is_mirrored: bool

    @property
    def flows(self) -> tuple[str, ...]:
        """The flows that have a deployment there."""
        return ("raas_pool", "region_mirror") if self.is_mirrored else ("raas_pool",)

    @property
    def described(self) -> str:
        """Who starts its flows, and what is to be done for that."""
        if self.work_pool is None:
            return f"region {self.region}: its flows run here"
        worker = f"prefect worker start --pool {self.work_pool} --work-queue {self.region}"
        return f"region {self.region}: on its machines, with PREFECT_API_URL set to this server: {worker}"


@dataclass(frozen=True, slots=True)
class Planned:
    """A child and the deployment that it would be started from; ``note`` says when that is another one."""

    child: ChildSpec
    deployment: str
    note: str = ""


def recipes(folder: Path) -> tuple[list[tuple[Path, RunConfig]], list[str]]:
    """The recipes of a folder that can be read, the built-in ones among them, and what is wrong with the others."""
    found, faults = [], []
    for file in find_recipes(folder):
        try:
            found.append((file, read_recipe(file, default_store=named_store(None))))
        except AstraFlowError as error:
            faults.append(f"no deployment for {file}: {error}")
    return found, faults


def places(configs: Iterable[RunConfig]) -> tuple[list[Place], list[str]]:
    """The regions of all these configs, by name, and what does not fit together: such a region is left out."""
    pools: dict[str, set[str | None]] = {}
    mirrored: set[str] = set()
    for config in configs:
        mirrored |= mirrored_regions(config)
        for region in {pool.region for pool in config.pools.values()}:
            section = config.regions.get(region)
            pools.setdefault(region, set()).add(section.work_pool if section else None)
    found, faults = [], []
    for region, wanted in sorted(pools.items()):
        if region == LOCAL:
            if wanted != {None}:
                faults.append(
                    f"the region {LOCAL} is this machine's runner: a work pool needs a region of another name"
                )
        elif len(wanted) > 1:
            named = ", ".join(sorted(str(pool or "none") for pool in wanted))
            faults.append(f"no deployment for the region {region}: recipes name different work pools for it ({named})")
        else:
            found.append(Place(region, wanted.pop(), region in mirrored))
    return found, faults


def plan(config: RunConfig) -> list[Planned]:
    """What would be started from which deployment; a server that answers is asked which of them it knows."""
    children = children_of(config)
    own = [f"{child.flow}/{name}" for child in children for name in child.deployments[:-1]]
    known = _known(own) if own else set()
    return [_planned(child, known) for child in children]


def _planned(child: ChildSpec, known: set[str] | None) -> Planned:
    wanted, *others = (f"{child.flow}/{name}" for name in child.deployments)
    if not others or (known is not None and wanted in known):
        return Planned(child, wanted)
    if known is None:
        missing = f"or {others[-1]} where that is not registered"
        return Planned(child, wanted, f"{missing}: no Prefect server answers")
    found = next((name for name in others[:-1] if name in known), others[-1])
    return Planned(child, found, f"because Prefect does not know {wanted}; `astraflow up` or `deploy` registers it")


def _known(deployments: list[str]) -> set[str] | None:
    """Which of the deployments there are; None if no server tells."""
    try:
        find_server(runner=False).use()
        from flows.launcher import known_deployments  # noqa: PLC0415  # prefect reads its settings when it is imported

        return known_deployments(deployments)
    except ServiceError:
        return None
