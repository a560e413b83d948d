"""A house in the making: what stands and lies where; and the way through it of somebody who knows."""

from __future__ import annotations

from dataclasses import dataclass, field

from astraflow.workloads.household.kinds import OPENABLE, Room
from astraflow.workloads.household.worker import names


@dataclass(slots=True)
class Plan:
    """A house being made: ids of receptacles, and where each thing lies."""

    room: Room
    receptacles: dict[str, str] = field(default_factory=dict)  # id -> kind
    things: dict[str, tuple[str, str]] = field(default_factory=dict)  # id -> kind, id of its receptacle

    def receptacles_of(self, kind: str) -> list[str]:
        return [name for name, found in self.receptacles.items() if found == kind]

    def add(self, kind: str, receptacle: str) -> str:
        number = 1 + sum(found == kind for found, _ in self.things.values())
        name = f"{kind}_bar_{number}"
        self.things[name] = (kind, receptacle)
        return name

    def may_hold(self, kind: str, *, but: str = "") -> list[str]:
        """Receptacles that can hold a kind of thing, leaving out those of the kind ``but``."""
        return [
            name for name, found in self.receptacles.items() if found != but and kind in self.room.holds.get(found, ())
        ]


class Way:
    """What somebody does who knows where everything is."""

    def __init__(self, plan: Plan) -> None:
        ids = (*plan.receptacles, *plan.things)
        called = names([name.lower() for name in ids])
        self.called = {name: called[name.lower()] for name in ids}
        self.commands: list[str] = []
        self._plan = plan
        self._at = ""
        self._opened: set[str] = set()

    def do(self, command: str) -> None:
        self.commands.append(command)

    def go(self, receptacle: str, *, opening: bool = False) -> None:
        """Stand before a receptacle, and see to it that it is open if need be."""
        if receptacle != self._at:
            self._at = receptacle
            self.do(f"go to {self.called[receptacle]}")
        if opening and self._plan.receptacles[receptacle] in OPENABLE and receptacle not in self._opened:
            self._opened.add(receptacle)
            self.do(f"open {self.called[receptacle]}")

    def take(self, thing: str) -> None:
        receptacle = self._plan.things[thing][1]
        self.go(receptacle, opening=True)
        self.do(f"take {self.called[thing]} from {self.called[receptacle]}")
