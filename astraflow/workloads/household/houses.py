"""Houses with a chore to do, made from a seed: what stands where, in PDDL, and one way to do it.

The chore can be done by construction: what it asks for lies about, where it must go can take it, and it is not done
at the beginning. ``commands`` is the way without detours for somebody who knows where everything is.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from astraflow.workloads.household.kinds import CAN_BE, LAMP, ROOMS, TREATED_AT
from astraflow.workloads.household.pddl import lit, placed, written
from astraflow.workloads.household.plan import Plan, Way

_THINGS = (8, 16)
_SENTENCES = {
    "pick_and_place_simple": "put some {thing} on {place}.",
    "look_at_obj_in_light": "examine the {thing} with the {lamp}.",
    "pick_clean_then_place_in_recep": "put a clean {thing} in {place}.",
    "pick_heat_then_place_in_recep": "put a hot {thing} in {place}.",
    "pick_cool_then_place_in_recep": "put a cool {thing} in {place}.",
    "pick_two_obj_and_place": "put two {thing} in {place}.",
}
_TREATMENTS = {
    "pick_clean_then_place_in_recep": "clean",
    "pick_heat_then_place_in_recep": "heat",
    "pick_cool_then_place_in_recep": "cool",
}


@dataclass(frozen=True, slots=True)
class House:
    """``pddl`` is a problem of ALFRED's domain, ``task`` the sentence, ``commands`` do it."""

    chore: str
    task: str
    pddl: str
    commands: tuple[str, ...]


def house(seed: int, index: int, chores: Sequence[str]) -> House:
    """The house ``index`` of ``seed``; its chore is one of ``chores``, in turn."""
    chore = chores[index % len(chores)]
    rng = random.Random(f"house/{seed}/{index}")
    plan = Plan(ROOMS[rng.choice([name for name, room in ROOMS.items() if chore in room.chores])])
    for kind, (least, most) in plan.room.receptacles.items():
        for number in range(rng.randint(least, most)):
            plan.receptacles[f"{kind}_bar_{number + 1}"] = kind
    if chore == "look_at_obj_in_light":
        return _lit(rng, plan, chore)
    return _placed(rng, plan, chore)


def _placed(rng: random.Random, plan: Plan, chore: str) -> House:
    """Something, perhaps treated, perhaps twice, to be put somewhere."""
    treatment = _TREATMENTS.get(chore, "")
    pairs = [
        (kind, place)
        for kind in plan.room.things
        if not treatment or kind in CAN_BE[treatment]
        for place in plan.room.receptacles
        if kind in plan.room.holds[place] and place != TREATED_AT.get(treatment) and plan.may_hold(kind, but=place)
    ]
    kind, place = rng.choice(pairs)
    count = 2 if chore == "pick_two_obj_and_place" else 1
    wanted = [plan.add(kind, rng.choice(plan.may_hold(kind, but=place))) for _ in range(count)]
    _fill(rng, plan, without=(kind, place))
    target = rng.choice(plan.receptacles_of(place))
    way = Way(plan)
    for thing in wanted:
        way.take(thing)
        if treatment:
            at = plan.receptacles_of(TREATED_AT[treatment])[0]
            way.go(at)
            way.do(f"{treatment} {way.called[thing]} with {way.called[at]}")
        way.go(target, opening=True)
        way.do(f"move {way.called[thing]} to {way.called[target]}")
    goal = placed(kind, place, treatment, count)
    task = _SENTENCES[chore].format(thing=kind.lower(), place=place.lower())
    return House(chore, task, written(plan, goal), tuple(way.commands))


def _lit(rng: random.Random, plan: Plan, chore: str) -> House:
    """Something to be looked at under a lamp that stands on a table."""
    kind = rng.choice(plan.room.things)
    table = rng.choice([*plan.receptacles_of("Desk"), *plan.receptacles_of("SideTable")])
    lamp = plan.add(LAMP, table)
    thing = plan.add(kind, rng.choice(plan.may_hold(kind)))
    _fill(rng, plan)
    way = Way(plan)
    way.take(thing)
    way.go(table)
    way.do(f"use {way.called[lamp]}")
    task = _SENTENCES[chore].format(thing=kind.lower(), lamp=LAMP.lower())
    return House(chore, task, written(plan, lit(kind)), tuple(way.commands))


def _fill(rng: random.Random, plan: Plan, without: tuple[str, str] = ("", "")) -> None:
    """Let other things lie about, none of the kind ``without[0]`` in receptacles of the kind ``without[1]``."""
    for kind in rng.choices(plan.room.things, k=rng.randint(*_THINGS)):
        plan.add(kind, rng.choice(plan.may_hold(kind, but=without[1] if kind == without[0] else "")))
