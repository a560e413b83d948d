"""``solve_and_test``: a solver writes a program, a tester writes cases for it, and what fails is shown to the solver.

The solver earns its score. The tester earns ½ if its cases are valid (the problem's reference passes them) and ½ more
if they are valid and judge the solver's program as the truth does. The solver tries again with the cases it failed, if
the cases could be read, it fails one, and it is wrong in truth: a false alarm does not send it back.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Protocol

from astraflow.component import find
from astraflow.problems import Problem
from astraflow.rewards import ScoredProblem
from astraflow.workflows.definition import workflow
from astraflow.workflows.runtime import Roles
from astraflow.workflows.solve import ask, fill

SOLVE = "{prompt}"
TEST = "{prompt}\n\nA proposed solution:\n{answer}\n\nWrite test cases that show whether it is right.\n{form}"
RETRY = "{prompt}\n\nThis solution is wrong:\n{answer}\n\nIt failed these cases:\n{feedback}\n\nWrite a right one."
BUILT_IN = {"code": "astraflow.workloads.code.bench:CodeBench"}
_RIGHT = 0.5


class Bench(Protocol):
    """Where a tester's cases are tried."""

    form: str
    """How cases have to be written, for the prompt."""

    def cases(self, problem: Problem, text: str) -> Any | None:
        """The cases in a tester's text; None if there are none that can be read."""
        ...

    async def failures(self, problem: Problem, text: str, cases: Any) -> list[str]:
        """What the program in ``text`` does wrong on ``cases``, a line each; empty if it passes."""
        ...

    def reference(self, problem: Problem) -> str:
        """A program that is known to be right."""
        ...


@workflow(roles=["solver", "tester"])
async def solve_and_test(
    problem: ScoredProblem,
    roles: Roles,
    *,
    rounds: int = 2,
    bench: str = "code",
    solve_prompt: str = SOLVE,
    test_prompt: str = TEST,
    retry_prompt: str = RETRY,
) -> None:
    """At most ``rounds`` programs. Templates know ``{prompt} {answer} {feedback} {form}``."""
    trying = load_bench(bench)
    words = {"prompt": problem.prompt, "form": trying.form}
    question = fill(solve_prompt, **words)
    for attempt in range(rounds):
        answer = await roles.solver.chat(ask(question))
        answer.reward = score = await problem.score(answer.text)
        answer.meta["attempt"] = str(attempt)
        test = await roles.tester.chat(ask(fill(test_prompt, answer=answer.text, **words)))
        cases = trying.cases(problem, test.text)
        if cases is None:
            test.reward = 0.0
            test.meta["cases"] = "unreadable"
            return
        valid = not await trying.failures(problem, trying.reference(problem), cases)
        failures = await trying.failures(problem, answer.text, cases)
        right = score >= _RIGHT
        diagnostic = valid and (not failures) == right
        test.reward = 0.5 * (valid + diagnostic)
        test.reward_parts.update(valid=float(valid), diagnostic=float(diagnostic))
        if right or not failures:
            return
        question = fill(retry_prompt, answer=answer.text, feedback="\n".join(failures), **words)


@lru_cache
def load_bench(name: str) -> Bench:
    """The bench of a built-in name or an import path; one for all episodes. Raises ``ConfigError``."""
    made: Bench = find(BUILT_IN.get(name, name), {}, where="workflow.options.bench")()
    return made
