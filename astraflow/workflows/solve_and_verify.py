"""``solve_and_verify``: a solver answers, a verifier accepts or rejects, and the solver tries again.

The solver's reward is the score of each of its answers; the verifier's is 1 if its verdict was right, else 0. A
verdict that cannot be read earns 0 and counts as accept, so that a babbling verifier ends the episode instead of
prolonging it. A retry sees the problem and the latest attempt only: each attempt is a conversation of its own.
"""

from __future__ import annotations

import random
import re

from astraflow.problems import Problem
from astraflow.rewards import ScoredProblem
from astraflow.workflows.definition import Demonstration, workflow
from astraflow.workflows.runtime import Roles
from astraflow.workflows.solve import ask, fill, spoil

SOLVE = "{prompt}"
RETRY = "{prompt}\n\nA reviewer rejected this answer:\n{answer}\n\nThe review:\n{feedback}\n\nAnswer again."
VERIFY = "{prompt}\n\nProposed answer:\n{answer}\n\nIs it right? End with one word: {accept} or {reject}."
_RIGHT = 0.5


@workflow(roles=["solver", "verifier"])
async def solve_and_verify(
    problem: ScoredProblem,
    roles: Roles,
    *,
    rounds: int = 5,
    accept: str = "accept",
    reject: str = "reject",
    solve_prompt: str = SOLVE,
    retry_prompt: str = RETRY,
    verify_prompt: str = VERIFY,
) -> None:
    """At most ``rounds`` attempts. Templates know ``{prompt} {answer} {feedback} {accept} {reject}``."""
    words = {"prompt": problem.prompt, "accept": accept, "reject": reject}
    question = fill(solve_prompt, **words)
    for attempt in range(rounds):
        answer = await roles.solver.chat(ask(question))
        answer.reward = score = await problem.score(answer.text)
        answer.meta["attempt"] = str(attempt)
        verdict = await roles.verifier.chat(ask(fill(verify_prompt, answer=answer.text, **words)))
        accepted = read_verdict(verdict.text, accept, reject)
        right = score >= _RIGHT
        verdict.reward = float(accepted == right) if accepted is not None else 0.0
        verdict.meta["verdict"] = {True: "accept", False: "reject", None: "unreadable"}[accepted]
        if accepted is not False:
            return
        question = fill(retry_prompt, answer=answer.text, feedback=verdict.text, **words)


def read_verdict(text: str, accept: str, reject: str) -> bool | None:
    """The last of the two words that stands alone in ``text``; None if there is none."""
    found = re.findall(rf"(?<!\w)(?:{re.escape(accept)}|{re.escape(reject)})(?!\w)", text, re.IGNORECASE)
    return found[-1].lower() == accept.lower() if found else None


@solve_and_verify.demonstration
def demonstrate(
    problem: Problem,
    rng: random.Random,
    *,
    rounds: int = 5,
    accept: str = "accept",
    reject: str = "reject",
    solve_prompt: str = SOLVE,
    retry_prompt: str = RETRY,
    verify_prompt: str = VERIFY,
) -> list[Demonstration]:
    """A first attempt, a retry after a wrong one, and as many right verdicts that accept as that reject."""
    words = {"prompt": problem.prompt, "accept": accept, "reject": reject}
    wrong = spoil(problem.answer, rng)
    retry = fill(retry_prompt, answer=wrong, feedback=reject, **words)
    return [
        Demonstration("solver", ask(fill(solve_prompt, **words)), problem.answer),
        *([Demonstration("solver", ask(retry), problem.answer)] if rounds > 1 else []),
        Demonstration("verifier", ask(fill(verify_prompt, answer=problem.answer, **words)), accept),
        Demonstration("verifier", ask(fill(verify_prompt, answer=wrong, **words)), reject),
    ]
