"""Judging a submission: each case is played in the sandbox, its outcome compared here.

Invariant: nothing that says what is right enters the sandbox in which the submission runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from astraflow.workloads.code import compare
from astraflow.workloads.code.suite import Calls, Checks, ProgramCase, Programs, Suite
from astraflow.workloads.sandbox import DEFAULT, Call, Limits, Program, Report, Sandbox


@dataclass(frozen=True, slots=True)
class Verdict:
    """The outcome of one case: ``passed``, ``wrong``, or how else it ended. ``detail`` is short, for feedback."""

    kind: str
    detail: str = ""

    @property
    def passed(self) -> bool:
        return self.kind == "passed"


class Judge:
    """Judges submissions with one sandbox."""

    def __init__(self, sandbox: Sandbox, limits: Limits = DEFAULT) -> None:
        self._sandbox = sandbox
        self._limits = limits

    async def judge(self, source: str, suite: Suite, *, to_the_end: bool = False) -> list[Verdict]:
        """Verdicts in order of the cases, up to the first that did not pass unless ``to_the_end``."""
        if isinstance(suite, Checks):
            return await self._check(suite.prefix + source, suite)
        verdicts: list[Verdict] = []
        async with self._sandbox.session(source, self._limits) as session:
            for case in suite.cases:
                if isinstance(case, ProgramCase):
                    report = await session.play(Program(case.stdin))
                    verdicts.append(_of_program(report, case.stdout))
                else:
                    report = await session.play(Call(suite.function, case.args))  # type: ignore[union-attr]
                    verdicts.append(_of_call(report, case.expected))
                if not (to_the_end or verdicts[-1].passed):
                    break
        return verdicts

    async def passes(self, source: str, suite: Suite) -> bool:
        """Whether the submission passes everything."""
        return all(verdict.passed for verdict in await self.judge(source, suite))

    async def _check(self, source: str, suite: Checks) -> list[Verdict]:
        """Tests in one sandbox, the submission in another; what the tests call travels between them as plain data."""
        async with (
            self._sandbox.session(source, self._limits) as player,
            self._sandbox.session(suite.source, self._limits, waits=False) as tests,
        ):

            async def answer(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> Report:
                return await player.play(Call(name, args, kwargs))

            report = await tests.check(list(suite.checks), list(suite.given), answer)
        if report.ended == "ended":
            return [Verdict("passed")]
        kind = "wrong" if report.ended == "error" else report.ended
        return [Verdict(kind, f"{report.error}: {report.message}")]


def _of_program(report: Report, expected: str) -> Verdict:
    if report.ended != "ended":
        return _failed(report)
    if compare.same_output(expected, report.stdout):
        return Verdict("passed")
    return Verdict("wrong", f"printed {report.stdout[:200]!r}")


def _of_call(report: Report, expected: Any) -> Verdict:
    if report.ended != "ended":
        return _failed(report)
    if compare.same_value(expected, report.value):
        return Verdict("passed")
    return Verdict("wrong", f"returned {repr_of(report.value)}")


def _failed(report: Report) -> Verdict:
    return Verdict(report.ended, f"{report.error}: {report.message}"[:300] if report.error else report.stderr[-300:])


def repr_of(value: Any) -> str:
    """A short text of a value; of a huge number only that it is one."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    return text if len(text) <= 200 else text[:200] + "…"


__all__ = ["Calls", "Judge", "Programs", "Verdict"]
