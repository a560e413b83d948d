"""What ``astraflow deploy`` reads: which machines there are, by work pool, and what runs on which.

One file describes an installation: the work pools of its Prefect server, the region that each serves, the hours in
which a region plays, the nightly maintenance, and who is told when something fails. Secrets never stand in it.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from astraflow.config import Name, Positive, Section
from astraflow.windows import Window, time_zone
from flows.children import LOCAL
from storage.errors import ConfigError

DEFAULT = Path("deploy.toml")


class WorkPool(Section):
    """A Prefect work pool: machines of one kind, with a worker that starts flow runs there."""

    kind: Literal["process", "kubernetes", "ecs"] = Field(default="process", description="How a flow run is started.")
    variables: dict[str, Any] = Field(
        default={}, description="Job variables of all its flow runs: image, gpus, cpu, memory, namespace, …"
    )
    limit: Positive | None = Field(default=None, description="Most flow runs at once; none: as many as are asked for.")


class Trainers(Section):
    """Where trainers run."""

    work_pool: Name = Field(description="Of trainers whose policy names no hardware.")
    hardware: dict[Name, Name] = Field(default={}, description="Kind of hardware (trainer.hardware) -> work pool.")


class DeployRegion(Section):
    """A region: the work pools on its machines, and the hours in which its pools play."""

    work_pool: Name = Field(description="Of its pools that name no hardware, and of its mirror.")
    hardware: dict[Name, Name] = Field(default={}, description="Kind of hardware (pools.NAME.hardware) -> work pool.")
    mirror: bool = Field(default=False, description="Recipes give it a store of its own: a mirror fills that.")
    windows: list[str] = Field(
        default=[], description="When its pools play: '18:00-08:00', 'sat,sun 00:00-24:00'; empty: always."
    )
    timezone: str = Field(default="UTC", description="The clock of the windows, such as 'Europe/Berlin'.")

    @model_validator(mode="after")
    def _windows_are_times(self) -> Self:
        try:
            time_zone(self.timezone)
            for window in self.windows:
                Window.parse(window)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return self


class Nightly(Section):
    """Maintenance of all runs of the store."""

    cron: str = Field(default="30 3 * * *", description="When; empty: never by itself.")
    timezone: str = Field(default="UTC", description="The clock of that.")

    @model_validator(mode="after")
    def _clock_is_one(self) -> Self:
        try:
            time_zone(self.timezone)
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return self


class Reaction(Section):
    """Who is told of something: a notification block of the server, or a deployment of one's own that is run."""

    block: str = Field(default="", description="'slack-webhook/NAME', or another notification block's type and name.")
    deployment: str = Field(default="", description="'flow/name': is run with what happened as its parameters.")

    @model_validator(mode="after")
    def _is_named_in_full(self) -> Self:
        for name in (self.block, self.deployment):
            if name and not all(name.partition("/")):
                raise ValueError(f"{name!r} needs two names with a slash between them")
        return self


class LoadReaction(Reaction):
    """What follows a load report."""

    loads: list[Literal["starved", "steady", "ample"]] = Field(
        default=["starved", "ample"], description="Only reports that say so: whether the trainer waits for data."
    )


class DeployFile(Section):
    """An installation."""

    name: Name = Field(default="astraflow", description="What of the server is this file's: it is tagged with it.")
    store: str = Field(description="The store of the runs: s3://bucket/prefix, …")
    env: dict[str, str] = Field(default={}, description="Environment variables of all flow runs; no secrets.")
    work_pools: dict[Name, WorkPool] = Field(min_length=1, description="The work pools, by name.")
    home: Name = Field(
        description="The work pool of experiments, managers, maintenance and of all that names no other."
    )
    trainers: Trainers | None = Field(default=None, description="Where trainers run; none: at home.")
    regions: dict[Name, DeployRegion] = Field(default={}, description="The regions, by name.")
    recipes: list[str] = Field(default=[], description="Recipe files, each a launch form that is filled in.")
    maintenance: Nightly = Field(default=Nightly(), description="When runs are tidied up.")
    failures: Reaction = Field(default=Reaction(), description="Who is told of a flow run that failed or crashed.")
    load_reports: LoadReaction = Field(default=LoadReaction(), description="Who is told of load reports.")

    @model_validator(mode="after")
    def _work_pools_exist(self) -> Self:
        named = [("home", self.home)]
        if self.trainers is not None:
            named.append(("trainers.work_pool", self.trainers.work_pool))
            named += [(f"trainers.hardware.{kind}", pool) for kind, pool in self.trainers.hardware.items()]
        for region, section in self.regions.items():
            named.append((f"regions.{region}.work_pool", section.work_pool))
            named += [(f"regions.{region}.hardware.{kind}", pool) for kind, pool in section.hardware.items()]
        for where, pool in named:
            if pool not in self.work_pools:
                raise ValueError(
                    f"{where} names the work pool {pool!r}; there are: {', '.join(sorted(self.work_pools))}"
                )
        if LOCAL in self.regions:
            raise ValueError(f"regions.{LOCAL}: that is home, which needs no section")
        return self


def read_deploy_file(file: Path) -> DeployFile:
    """Raises ``ConfigError`` with every fault and where it stands."""
    try:
        return DeployFile.model_validate(tomllib.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(
            f"it cannot be read ({error.strerror})",
            where=str(file),
            remedy="Name another with --file; docs/deploying.md has one to begin with",
            kind="deploy_file",
        ) from error
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise ConfigError(faults, where=str(file), kind="deploy_file") from None
    except ValueError as error:
        raise ConfigError(f"not TOML: {error}", where=str(file), kind="deploy_file") from error
