"""Where a test generator's cases are tried: the bench ``code`` of the workflow ``solve_and_test``.

Cases are JSON in the answer's last fenced block. They are data, never code, so a generator can be wrong but not
hostile; programs are run on them in the sandbox like any other.
"""

from __future__ import annotations

import json
import re
from typing import Any

from astraflow.problems import Problem
from astraflow.workloads.code.judge import Verdict, repr_of
from astraflow.workloads.code.reward import CodeReward, code_block, suite_of
from astraflow.workloads.code.suite import CallCase, Calls, Checks, ProgramCase, Programs, Suite

MOST_CASES = 16
_JSON = re.compile(r"```[ \t]*(?:json)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)


class CodeBench:
    """Implements ``Bench``."""

    form = (
        'Give them as JSON in a block ```json: [{"input": "what is read", "output": "what must be printed"}] for a '
        'program, [{"args": [1, 2], "expected": 3}] for a function.'
    )

    def __init__(self) -> None:
        self._reward = CodeReward(partial=True, cpu_s=4, wall_s=8.0)

    def cases(self, problem: Problem, text: str) -> Suite | None:
        """The generator's cases as a suite of the problem's kind."""
        blocks = _JSON.findall(text)
        try:
            listed = json.loads(blocks[-1] if blocks else text)
            return _suite(problem, listed[:MOST_CASES]) if isinstance(listed, list) and listed else None
        except (ValueError, KeyError, TypeError, RecursionError):
            return None

    async def failures(self, problem: Problem, text: str, cases: Any) -> list[str]:
        """A line for each case that the program in ``text`` does not pass."""
        source = code_block(text)
        if source is None:
            return ["there is no program in the answer"]
        verdicts = await self._reward.verdicts(source, cases)
        pairs = zip(cases.cases, verdicts, strict=True)
        return [_line(case, verdict) for case, verdict in pairs if not verdict.passed]

    def reference(self, problem: Problem) -> str:
        """The problem's own solution, as an answer would give it."""
        return f"```python\n{problem.answer}\n```"


def _suite(problem: Problem, listed: list[Any]) -> Suite:
    known = suite_of(problem)
    if isinstance(known, Programs):
        return Programs(tuple(ProgramCase(str(case["input"]), str(case["output"])) for case in listed))
    names = known.given if isinstance(known, Checks) else (known.function,)
    if not names:
        raise ValueError("the problem does not say which function is called")
    name = names[0]
    return Calls(name, tuple(CallCase(tuple(case["args"]), case["expected"]) for case in listed))


def _line(case: ProgramCase | CallCase, verdict: Verdict) -> str:
    if isinstance(case, ProgramCase):
        return f"input {case.stdin!r}: expected {case.stdout!r}, {verdict.kind} {verdict.detail}".rstrip()
    arguments = ", ".join(map(repr_of, case.args))
    return f"arguments ({arguments}): expected {repr_of(case.expected)}, {verdict.kind} {verdict.detail}".rstrip()
