"""What rank 0 tells the other ranks of its trainer to do. Each order is carried out by all, rank 0 included."""

from __future__ import annotations

import msgspec

from astraflow.trainer.checkpoints import Mark
from astraflow.trainer.team import Team
from astraflow.weights.shards import ShardPlan


class Order(msgspec.Struct, frozen=True, tag_field="order"):
    """One thing to do."""


class Build(Order, frozen=True, tag="build"):
    """Make the model and its optimizer; load ``mark``'s checkpoint if there is one."""

    mark: Mark | None


class Train(Order, frozen=True, tag="train"):
    """Train on the batch, whose bytes follow."""


class Encode(Order, frozen=True, tag="encode"):
    """Write this rank's part of a version."""

    plan: ShardPlan


class Keep(Order, frozen=True, tag="keep"):
    """The version that was encoded stands."""

    digest: str


class Save(Order, frozen=True, tag="save"):
    """Begin a checkpoint."""

    mark: Mark


class End(Order, frozen=True, tag="end"):
    """Finish what is being written, and leave."""


AnyOrder = Build | Train | Encode | Keep | Save | End


def give(team: Team, order: AnyOrder) -> None:
    """Rank 0: tell the others. Nothing for a team of one."""
    if team.size > 1:
        team.share(msgspec.json.encode(order))


def hear(team: Team) -> AnyOrder:
    """Another rank: wait for the next order."""
    return msgspec.json.decode(team.share(), type=AnyOrder)
