"""``solve``: one role, one answer, its score as the reward.

Also what the built-in workflows share: filling prompts, and spoiling an answer plausibly.
"""

from __future__ import annotations

import random
import re

from astraflow.problems import Problem
from astraflow.rewards import ScoredProblem
from astraflow.workflows.definition import Demonstration, workflow
from astraflow.workflows.render import Message, system, user
from astraflow.workflows.runtime import Roles

_FIELD = re.compile(r"\{(\w+)\}")


def fill(template: str, **values: str) -> str:
    """Put ``values`` at their ``{names}``; other braces stay, and values are not looked into."""
    return _FIELD.sub(lambda match: values.get(match[1], match[0]), template)


def ask(text: str, system_prompt: str = "") -> list[Message]:
    """A conversation of one question."""
    return [system(system_prompt), user(text)] if system_prompt else [user(text)]


def spoil(answer: str, rng: random.Random) -> str:
    """A wrong answer of the same look: one digit (or, without digits, one character) differs."""
    places = [i for i, character in enumerate(answer) if character.isdigit()]
    if places:
        place = rng.choice(places)
        wrong = str((int(answer[place]) + rng.choice([1, 9, rng.randrange(2, 9)])) % 10)
    elif answer:
        place = rng.randrange(len(answer))
        wrong = rng.choice([c for c in "abcdefghijklmnopqrstuvwxyz" if c != answer[place]])
    else:
        return "0"
    return answer[:place] + wrong + answer[place + 1 :]


@workflow(roles=["solver"])
async def solve(problem: ScoredProblem, roles: Roles, *, prompt: str = "{prompt}", system_prompt: str = "") -> None:
    """Ask once. ``prompt`` is a template with ``{prompt}``."""
    answer = await roles.solver.chat(ask(fill(prompt, prompt=problem.prompt), system_prompt))
    answer.reward = await problem.score(answer.text)


@solve.demonstration
def demonstrate(
    problem: Problem, rng: random.Random, *, prompt: str = "{prompt}", system_prompt: str = ""
) -> list[Demonstration]:
    """The right answer."""
    return [Demonstration("solver", ask(fill(prompt, prompt=problem.prompt), system_prompt), problem.answer)]
