"""``solve_and_select``: a solver answers twice, a selector chooses.

Each answer earns its own score. The selector earns 1 for the right one of two that differ in rightness, 0 for the wrong
one, ½ if there was nothing to choose (both right or both wrong), and 0 if its choice cannot be read.
"""

from __future__ import annotations

import asyncio
import random
import re

from astraflow.problems import Problem
from astraflow.rewards import ScoredProblem
from astraflow.workflows.definition import Demonstration, workflow
from astraflow.workflows.runtime import Roles
from astraflow.workflows.solve import ask, fill, spoil

SOLVE = "{prompt}"
SELECT = "{prompt}\n\nAnswer {one}:\n{first}\n\nAnswer {two}:\n{second}\n\nWhich is right? End with {one} or {two}."
_RIGHT = 0.5


@workflow(roles=["solver", "selector"])
async def solve_and_select(
    problem: ScoredProblem,
    roles: Roles,
    *,
    one: str = "1",
    two: str = "2",
    solve_prompt: str = SOLVE,
    select_prompt: str = SELECT,
) -> None:
    """Templates know ``{prompt} {first} {second} {one} {two}``."""
    question = ask(fill(solve_prompt, prompt=problem.prompt))
    answers = await asyncio.gather(roles.solver.chat(question), roles.solver.chat(question))
    right = []
    for place, answer in enumerate(answers):
        answer.reward = score = await problem.score(answer.text)
        answer.meta["place"] = str(place)
        right.append(score >= _RIGHT)
    texts = {"first": answers[0].text, "second": answers[1].text, "one": one, "two": two}
    choice = await roles.selector.chat(ask(fill(select_prompt, prompt=problem.prompt, **texts)))
    chosen = read_choice(choice.text, one, two)
    choice.reward = selector_reward(chosen, right[0], right[1])
    choice.meta["chosen"] = "unreadable" if chosen is None else str(chosen)
    # What the two together answered: nothing, if the choice cannot be read.
    choice.reward_parts["final"] = 0.0 if chosen is None else float(right[chosen])
    choice.reward_parts["differ"] = float(right[0] != right[1])  # whether there was anything to choose


def selector_reward(chosen: int | None, first: bool, second: bool) -> float:
    """What choosing ``chosen`` (0, 1 or unreadable) between two answers earns."""
    if chosen is None:
        return 0.0
    if first == second:
        return 0.5
    return float((first, second)[chosen])


def read_choice(text: str, one: str, two: str) -> int | None:
    """The last of the two words that stands alone: 0 or 1; None if there is none."""
    found = re.findall(rf"(?<!\w)(?:{re.escape(one)}|{re.escape(two)})(?!\w)", text, re.IGNORECASE)
    return None if not found else int(found[-1].lower() == two.lower())


@solve_and_select.demonstration
def demonstrate(
    problem: Problem,
    rng: random.Random,
    *,
    one: str = "1",
    two: str = "2",
    solve_prompt: str = SOLVE,
    select_prompt: str = SELECT,
) -> list[Demonstration]:
    """The right answer, and the right choice with the right answer at either place."""
    wrong = spoil(problem.answer, rng)
    words = {"prompt": problem.prompt, "one": one, "two": two}
    shown = [Demonstration("solver", ask(fill(solve_prompt, **words)), problem.answer)]
    for first, second, choice in ((problem.answer, wrong, one), (wrong, problem.answer, two)):
        asked = ask(fill(select_prompt, first=first, second=second, **words))
        shown.append(Demonstration("selector", asked, choice))
    return shown
