# ruff: noqa: E501 - tables
"""What houses are made of: rooms, the receptacles in them, what lies about, and what can be done with it.

A part of ALFRED's vocabulary, enough for its six kinds of chore (Shridhar et al., 2020 and 2021). A kind of object
may lie in a receptacle if the receptacle's kind holds it; what a chore asks for always may.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CHORES = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)

OPENABLE = frozenset({"Cabinet", "Drawer", "Fridge", "Microwave"})
TREATED_AT = {"clean": "SinkBasin", "heat": "Microwave", "cool": "Fridge"}
LAMP = "DeskLamp"

_FOOD = ("Apple", "Bread", "Egg", "Lettuce", "Potato", "Tomato")
_DISHES = ("Bowl", "Cup", "Mug", "Plate")
_POTS = ("Kettle", "Pan", "Pot")
_CUTLERY = ("ButterKnife", "DishSponge", "Fork", "Knife", "Ladle", "Spatula", "Spoon")
_TOILETRIES = ("Candle", "Cloth", "SoapBar", "SoapBottle", "SprayBottle", "ToiletPaper")
_SMALL = ("CD", "CellPhone", "CreditCard", "KeyChain", "Pen", "Pencil", "RemoteControl", "Watch")
_LARGE = ("AlarmClock", "Book", "Box", "Laptop", "Newspaper", "Pillow", "Statue", "Vase")

CAN_BE: Mapping[str, frozenset[str]] = {
    "clean": frozenset({*_FOOD, *_DISHES, *_POTS, *_CUTLERY, "Cloth", "SoapBar"} - {"Bread"}),
    "heat": frozenset({"Apple", "Bread", "Cup", "Egg", "Mug", "Plate", "Potato", "Tomato"}),
    "cool": frozenset({*_FOOD, *_DISHES, "Pan", "Pot"}),
}


@dataclass(frozen=True, slots=True)
class Room:
    """Receptacle kinds with the least and the most of them, what lies about, and which chores make sense."""

    receptacles: Mapping[str, tuple[int, int]]
    things: tuple[str, ...]
    holds: Mapping[str, tuple[str, ...]]
    chores: tuple[str, ...]


def _room(
    receptacles: Mapping[str, tuple[int, int]],
    things: tuple[str, ...],
    holds: Mapping[str, tuple[str, ...]],
    *chores: str,
) -> Room:
    """A room in which a receptacle of unnamed contents holds everything that lies about."""
    return Room(receptacles, things, {kind: holds.get(kind, things) for kind in receptacles}, chores)


ROOMS: Mapping[str, Room] = {
    "kitchen": _room(
        {"Cabinet": (3, 6), "CoffeeMachine": (1, 1), "CounterTop": (1, 3), "DiningTable": (1, 1), "Drawer": (2, 4), "Fridge": (1, 1),
         "GarbageCan": (1, 1), "Microwave": (1, 1), "SinkBasin": (1, 1), "StoveBurner": (2, 4)},
        (*_FOOD, *_DISHES, *_POTS, *_CUTLERY),
        {"Cabinet": (*_DISHES, *_POTS), "CoffeeMachine": ("Mug",), "Drawer": _CUTLERY, "Fridge": (*_FOOD, *_DISHES, "Pan", "Pot"),
         "GarbageCan": _FOOD, "Microwave": ("Apple", "Bread", "Cup", "Egg", "Mug", "Plate", "Potato", "Tomato"),
         "SinkBasin": (*_FOOD, *_DISHES, *_CUTLERY), "StoveBurner": _POTS},
        *(chore for chore in CHORES if chore != "look_at_obj_in_light"),
    ),
    "bathroom": _room(
        {"Cabinet": (2, 4), "CounterTop": (1, 1), "GarbageCan": (1, 1), "Shelf": (1, 2), "SinkBasin": (1, 2), "Toilet": (1, 1)},
        _TOILETRIES,
        {"GarbageCan": ("ToiletPaper",), "SinkBasin": ("Cloth", "SoapBar")},
        "pick_and_place_simple", "pick_clean_then_place_in_recep", "pick_two_obj_and_place",
    ),
    "bedroom": _room(
        {"Bed": (1, 1), "Desk": (1, 2), "Drawer": (2, 5), "Dresser": (1, 1), "GarbageCan": (1, 1), "Shelf": (2, 4), "SideTable": (1, 2)},
        (*_SMALL, *_LARGE),
        {"Bed": ("Book", "CellPhone", "Laptop", "Newspaper", "Pillow"), "Drawer": (*_SMALL, "Book", "Newspaper"),
         "GarbageCan": ("CD", "CreditCard", "Newspaper", "Pen", "Pencil")},
        "pick_and_place_simple", "look_at_obj_in_light", "pick_two_obj_and_place",
    ),
    "living room": _room(
        {"ArmChair": (1, 2), "CoffeeTable": (1, 1), "Drawer": (2, 4), "GarbageCan": (1, 1), "Shelf": (1, 3), "SideTable": (1, 3),
         "Sofa": (1, 1), "TVStand": (1, 1)},
        (*_SMALL, *_LARGE),
        {"ArmChair": ("Book", "CellPhone", "Newspaper", "Pillow", "RemoteControl"), "Drawer": (*_SMALL, "Book", "Newspaper"),
         "GarbageCan": ("CD", "CreditCard", "Newspaper", "Pen", "Pencil"), "Sofa": ("Book", "CellPhone", "Laptop", "Newspaper", "Pillow", "RemoteControl")},
        "pick_and_place_simple", "look_at_obj_in_light", "pick_two_obj_and_place",
    ),
}  # fmt: skip
