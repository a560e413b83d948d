"""The tests of a programming problem: programs with inputs and outputs, calls with results, or checks that are code.

A suite travels as JSON in a problem's ``meta["tests"]``, so it is frozen with the data set.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from storage.errors import DataError


@dataclass(frozen=True, slots=True)
class ProgramCase:
    """What a program reads and what it must print."""

    stdin: str
    stdout: str


@dataclass(frozen=True, slots=True)
class Programs:
    """The submission is a program."""

    cases: tuple[ProgramCase, ...]


@dataclass(frozen=True, slots=True)
class CallCase:
    """Arguments and the result, as JSON values."""

    args: tuple[Any, ...]
    expected: Any


@dataclass(frozen=True, slots=True)
class Calls:
    """The submission defines ``function``, by itself or as a method of ``Solution``."""

    function: str
    cases: tuple[CallCase, ...]


@dataclass(frozen=True, slots=True)
class Checks:
    """Test code: ``source`` defines the functions ``checks``, which are called with the submission's ``given``.

    ``prefix`` goes before a submission that only completes it.
    """

    source: str
    checks: tuple[str, ...]
    given: tuple[str, ...] = ()
    prefix: str = ""


Suite = Programs | Calls | Checks


def to_json(suite: Suite) -> str:
    """The text that ``from_json`` reads."""
    if isinstance(suite, Programs):
        body: dict[str, Any] = {"kind": "program", "cases": [[case.stdin, case.stdout] for case in suite.cases]}
    elif isinstance(suite, Calls):
        cases = [[list(case.args), case.expected] for case in suite.cases]
        body = {"kind": "call", "function": suite.function, "cases": cases}
    else:
        body = {
            "kind": "check",
            "source": suite.source,
            "checks": list(suite.checks),
            "given": list(suite.given),
            "prefix": suite.prefix,
        }
    return json.dumps(body)


def from_json(text: str) -> Suite:
    """Raises ``DataError`` if the text is no suite or has no case."""
    try:
        body = json.loads(text)
        suite = _READERS[body["kind"]](body)
    except (ValueError, KeyError, TypeError) as error:
        raise _wrong(f"not a test suite: {type(error).__name__} {error}") from error
    if not (suite.checks if isinstance(suite, Checks) else suite.cases):
        raise _wrong("a test suite without a case would pass anything")
    return suite


def _programs(body: Mapping[str, Any]) -> Suite:
    return Programs(tuple(ProgramCase(str(given), str(expected)) for given, expected in body["cases"]))


def _calls(body: Mapping[str, Any]) -> Suite:
    return Calls(str(body["function"]), tuple(CallCase(tuple(args), expected) for args, expected in body["cases"]))


def _checks(body: Mapping[str, Any]) -> Suite:
    return Checks(body["source"], tuple(body["checks"]), tuple(body.get("given", ())), body.get("prefix", ""))


_READERS: dict[str, Callable[[Mapping[str, Any]], Suite]] = {"program": _programs, "call": _calls, "check": _checks}


def _wrong(what: str) -> DataError:
    return DataError(what, where="meta.tests", remedy="See docs/workloads.md for the form of tests", kind="undecodable")
