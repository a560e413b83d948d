"""A house and its goal as a problem of the domain ``alfred``."""

from __future__ import annotations

from astraflow.workloads.household.kinds import CAN_BE, LAMP, OPENABLE
from astraflow.workloads.household.plan import Plan

_ABLE = {"cleanable": "clean", "heatable": "heat", "coolable": "cool"}
_TREATED = {"clean": "isClean", "heat": "isHot", "cool": "isCool"}


def placed(kind: str, place: str, treatment: str, count: int) -> str:
    """The goal that ``count`` (1 or 2) things of a kind, treated, are in one receptacle of the kind ``place``."""
    things = [f"?o{number}" for number in range(count)]
    wanted = [f"(receptacleType ?r {place}Type)"]
    for thing in things:
        wanted += [f"(objectType {thing} {kind}Type)", f"(inReceptacle {thing} ?r)"]
        wanted += [f"({_TREATED[treatment]} {thing})"] if treatment else []
    wanted += ["(not (= ?o0 ?o1))"] if count == 2 else []
    variables = " ".join(f"{thing} - object" for thing in things)
    return f"(exists (?r - receptacle {variables}) (and {' '.join(wanted)}))"


def lit(kind: str) -> str:
    """The goal that somebody holds a thing of a kind where a lamp has been turned on."""
    lamp = f"(objectType ?t {LAMP}Type) (toggleable ?t) (isToggled ?t) (inReceptacle ?t ?r)"
    there = "(receptacleAtLocation ?r ?l) (atLocation ?a ?l)"
    held = f"(objectType ?o {kind}Type) (holds ?a ?o)"
    variables = "?t - object ?o - object ?r - receptacle ?a - agent ?l - location"
    return f"(exists ({variables}) (and {lamp} {there} {held}))"


def written(plan: Plan, goal: str) -> str:
    """The problem: every receptacle at a place of its own, the agent in the middle of the room."""
    at = {name: f"loc_bar_{number + 1}" for number, name in enumerate(plan.receptacles)}
    # The domain names some kinds itself, so they are declared whether the room has them or not.
    receptacle_kinds = sorted({*plan.receptacles.values(), "Fridge", "Microwave", "SinkBasin"})
    kinds = sorted({*(kind for kind, _ in plan.things.values()), *plan.room.things, "ButterKnife", "Knife"})
    objects = [
        "agent1 - agent",
        f"loc_bar_0 {' '.join(at.values())} - location",
        f"{' '.join(plan.receptacles)} - receptacle",
        f"{' '.join(plan.things)} - object",
        f"{' '.join(f'{kind}Type' for kind in receptacle_kinds)} - rtype",
        f"{' '.join(f'{kind}Type' for kind in kinds)} - otype",
    ]
    facts = ["(= (total-cost) 0)", "(atLocation agent1 loc_bar_0)", *_room(plan, at), *_things(plan, at)]
    return "\n".join(
        [
            "(define (problem house)",
            " (:domain alfred)",
            " (:objects",
            *(f"  {line}" for line in objects),
            " )",
            " (:init",
            *(f"  {fact}" for fact in facts),
            " )",
            f" (:goal {goal})",
            " (:metric minimize (total-cost))",
            ")",
        ]
    )


def _room(plan: Plan, at: dict[str, str]) -> list[str]:
    facts = []
    for name, kind in plan.receptacles.items():
        facts += [f"(receptacleType {name} {kind}Type)", f"(receptacleAtLocation {name} {at[name]})"]
        facts += [f"(openable {name})"] if kind in OPENABLE else []
    for kind in sorted(set(plan.receptacles.values())):
        facts += [f"(canContain {kind}Type {held}Type)" for held in plan.room.holds[kind]]
    return facts


def _things(plan: Plan, at: dict[str, str]) -> list[str]:
    facts = []
    for name, (kind, receptacle) in plan.things.items():
        facts += [f"(objectType {name} {kind}Type)", f"(inReceptacle {name} {receptacle})"]
        facts += [f"(objectAtLocation {name} {at[receptacle]})"]
        facts += [f"(toggleable {name})"] if kind == LAMP else [f"(pickupable {name})"]
        facts += [f"({able} {name})" for able, how in _ABLE.items() if kind in CAN_BE[how]]
    return facts
