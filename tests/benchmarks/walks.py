"""Walks on the digits: a small task whose answers are quicker to check than to find.

«3725*3=» asks for a way from 0 to 3 around the ring of the ten digits: first 3 up or down, then 7, then 2, then 5. The
answer is where one stands after each: «3083», by 0 + 3, 3 + 7, 0 − 2, 8 − 5. A way is found by looking ahead over all
steps; whether it is one can be seen step by step, each from three digits.
"""

from __future__ import annotations

import random
from itertools import product

from astraflow.problems import Problem

RING = 10
STEPS = 4


def arrivals(steps: list[int], goal: int) -> list[str]:
    """All ways that end at ``goal``."""
    found = {walk(steps, signs) for signs in product((1, -1), repeat=len(steps))}
    return sorted(way for way in found if way[-1] == str(goal))


def walk(steps: list[int], signs: tuple[int, ...]) -> str:
    """Where one stands after each step."""
    place, way = 0, ""
    for step, sign in zip(steps, signs, strict=True):
        place = (place + sign * step) % RING
        way += str(place)
    return way


def walks(seed: int, count: int) -> list[Problem]:
    """``count`` different walks that can be done; the answer is one way of them."""
    rng = random.Random(f"{seed}/walks")
    problems: dict[str, Problem] = {}
    while len(problems) < count:
        steps = [rng.randrange(1, RING) for _ in range(STEPS)]
        way = walk(steps, tuple(rng.choice((1, -1)) for _ in steps))
        prompt = f"{''.join(map(str, steps))}*{way[-1]}="
        answer = rng.choice(arrivals(steps, int(way[-1])))
        problems.setdefault(prompt, Problem(len(problems), prompt[:-1], prompt, answer))
    return list(problems.values())


def arrives(problem: Problem, text: str) -> float:
    """1 for any way that arrives."""
    steps, _, goal = problem.prompt.rstrip("=").partition("*")
    return float(text in arrivals([int(digit) for digit in steps], int(goal)))
