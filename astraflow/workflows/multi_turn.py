"""``multi_turn``: one conversation that goes on after each failure, always with the same words.

The conversation is one sequence and has one reward: the score of its last answer, times ``discount`` for each turn
before it. The feedback says that the answer is wrong and nothing else, so it leaks nothing.
"""

from __future__ import annotations

import random

from astraflow.problems import Problem
from astraflow.rewards import ScoredProblem
from astraflow.workflows.definition import Demonstration, workflow
from astraflow.workflows.render import assistant, user
from astraflow.workflows.runtime import Roles
from astraflow.workflows.solve import ask, fill, spoil

FEEDBACK = "Your answer is wrong. Look at it again, then give another one."


@workflow(roles=["solver"])
async def multi_turn(
    problem: ScoredProblem,
    roles: Roles,
    *,
    turns: int = 3,
    discount: float = 0.9,
    enough: float = 1.0,
    prompt: str = "{prompt}",
    system_prompt: str = "",
    feedback: str = FEEDBACK,
) -> None:
    """At most ``turns`` answers, until one scores ``enough``."""
    messages = ask(fill(prompt, prompt=problem.prompt), system_prompt)
    for turn in range(turns):
        answer = await roles.solver.chat(messages)
        score = await problem.score(answer.text)
        # A template that changes earlier turns starts new sequences: each gets the reward of what it led to so far.
        answer.reward = score * discount**turn
        answer.reward_parts["score"] = score
        answer.meta["turns"] = str(turn + 1)
        if score >= enough:
            return
        messages = [*answer.messages, user(feedback)]


@multi_turn.demonstration
def demonstrate(
    problem: Problem,
    rng: random.Random,
    *,
    turns: int = 3,
    discount: float = 0.9,
    enough: float = 1.0,
    prompt: str = "{prompt}",
    system_prompt: str = "",
    feedback: str = FEEDBACK,
) -> list[Demonstration]:
    """The right answer, at once and after a wrong one."""
    question = ask(fill(prompt, prompt=problem.prompt), system_prompt)
    again = [*question, assistant(spoil(problem.answer, rng)), user(feedback)]
    first = Demonstration("solver", question, problem.answer)
    return [first, Demonstration("solver", again, problem.answer)] if turns > 1 else [first]
