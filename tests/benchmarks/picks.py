"""Picks: a small task whose answers are quicker to check than to find.

«582947*13=» asks for two of the six digits that come to 13: «58», or «94», in any order. To find them is a search among
fifteen pairs; whether two digits come to a sum can be seen at a glance.
"""

from __future__ import annotations

import random
from collections import Counter

from astraflow.problems import Problem

SHOWN = 6
TAKEN = 2


def picks(seed: int, count: int) -> list[Problem]:
    """``count`` different problems; the answer is one of theirs, in the order of the digits shown."""
    rng = random.Random(f"{seed}/picks")
    problems: dict[str, Problem] = {}
    while len(problems) < count:
        digits = [rng.randrange(10) for _ in range(SHOWN)]
        taken = [digits[place] for place in sorted(rng.sample(range(SHOWN), TAKEN))]
        prompt = f"{''.join(map(str, digits))}*{sum(taken):02d}="
        problems.setdefault(prompt, Problem(len(problems), prompt[:-1], prompt, "".join(map(str, taken))))
    return list(problems.values())


def comes_to(problem: Problem, text: str) -> float:
    """1 for any two of the digits with the sum."""
    digits, _, goal = problem.prompt.rstrip("=").partition("*")
    fits = len(text) == TAKEN and set(text) <= set("0123456789") and not Counter(text) - Counter(digits)
    return float(fits and sum(map(int, text)) == int(goal))
