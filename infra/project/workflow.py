"""How an episode of a problem is played: who speaks, what they see, and how reward is shared."""

from __future__ import annotations

import random

from astraflow.problems import Problem
from astraflow.rewards import ScoredProblem
from astraflow.workflows import Demonstration, Roles, user, workflow


@workflow(roles=["solver"])
async def solve(problem: ScoredProblem, roles: Roles) -> None:
    """One answer to the prompt, scored by the recipe's reward."""
    answer = await roles.solver.chat([user(problem.prompt)])
    answer.reward = await problem.score(answer.text)


@solve.demonstration
def demonstrate(problem: Problem, rng: random.Random) -> list[Demonstration]:
    """What a model that knows nothing yet is shown before RL (``warmup`` in the recipe)."""
    return [Demonstration("solver", [user(problem.prompt)], problem.answer)]
