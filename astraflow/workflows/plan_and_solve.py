"""``plan_and_solve``: a planner says how, a solver does it, and both earn the score of the answer.

The plan's worth is only known by what the solver makes of it, so ``plans`` of them are each carried out and each
earns its own answer's score: within a group, plans are compared with plans.
"""

from __future__ import annotations

import asyncio
import random

from astraflow.problems import Problem
from astraflow.rewards import ScoredProblem
from astraflow.workflows.definition import Demonstration, workflow
from astraflow.workflows.runtime import Roles
from astraflow.workflows.solve import ask, fill

PLAN = "{prompt}\n\nDo not solve this. Write a short plan of how to solve it."
SOLVE = "{prompt}\n\nPlan:\n{plan}\n\nFollow the plan and answer."


@workflow(roles=["planner", "solver"])
async def plan_and_solve(
    problem: ScoredProblem, roles: Roles, *, plans: int = 1, plan_prompt: str = PLAN, solve_prompt: str = SOLVE
) -> None:
    """``plans`` plans, one answer each. Templates know ``{prompt} {plan}``."""

    async def one() -> None:
        plan = await roles.planner.chat(ask(fill(plan_prompt, prompt=problem.prompt)))
        answer = await roles.solver.chat(ask(fill(solve_prompt, prompt=problem.prompt, plan=plan.text)))
        answer.reward = plan.reward = await problem.score(answer.text)

    await asyncio.gather(*(one() for _ in range(plans)))


@plan_and_solve.demonstration
def demonstrate(
    problem: Problem, rng: random.Random, *, plans: int = 1, plan_prompt: str = PLAN, solve_prompt: str = SOLVE
) -> list[Demonstration]:
    """The answer under a plan that says nothing; what a good plan is, a problem does not tell."""
    question = fill(solve_prompt, prompt=problem.prompt, plan="")
    return [Demonstration("solver", ask(question), problem.answer)]
