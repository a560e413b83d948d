"""A process that compares answers by algebra: a pair a line in, a verdict a line out. Started by ``checker``.

It is bounded in memory, and in processor time by a signal, which works since a worker does this in its main thread.
math-verify's numeric comparison is too kind in places, so what it calls equal is looked at again where that is
known: factorials (both sides are almost 0) and equations (two that equal 0 are not the same).
"""

from __future__ import annotations

import json
import resource
import signal
import sys
from typing import Any

_MEMORY_BYTES = 2 << 30
_DIGITS = 6


class TooCostlyError(Exception):
    """The comparison took more processor time than it may."""


def main(limit_s: float) -> None:
    """Serve until the other side closes the pipe."""
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    signal.signal(signal.SIGPROF, _ring)
    answers = sys.stdout
    sys.stdout = sys.stderr  # whatever a library prints is no verdict
    import math_verify  # noqa: PLC0415 - after the limits, and its absence is the parent's to report

    _compare("x^2", "2x")  # what is imported and built at the first comparison is no pair's time
    print(json.dumps({"ready": math_verify.__name__}), file=answers, flush=True)
    for line in sys.stdin:
        gold, prediction = json.loads(line)
        print(json.dumps({"kind": verdict(gold, prediction, limit_s)}), file=answers, flush=True)


def verdict(gold: str, prediction: str, limit_s: float) -> str:
    """``correct``, ``wrong``, ``unparsed`` or, if it costs too much, ``timeout``."""
    signal.setitimer(signal.ITIMER_PROF, limit_s)
    try:
        return _compare(gold, prediction)
    except (TooCostlyError, MemoryError, RecursionError, OverflowError):
        return "timeout"
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _ring(number: int, frame: Any) -> None:
    raise TooCostlyError


def _compare(gold: str, prediction: str) -> str:
    from math_verify import verify  # noqa: PLC0415

    expected, given = _parse(gold), _parse(prediction)
    if not expected or not given:
        return "unparsed"
    if "!" in gold or "!" in prediction:
        return "correct" if _same(expected[0], given[0]) else "wrong"
    if "=" in gold and "=" in prediction:
        return "correct" if _same_equation(gold, prediction) else "wrong"
    return "correct" if verify(expected, given, float_rounding=_DIGITS, timeout_seconds=None) else "wrong"


def _parse(answer: str) -> list[Any]:
    from math_verify import LatexExtractionConfig, parse  # noqa: PLC0415

    found: list[Any] = parse(
        f"${answer}$", [LatexExtractionConfig()], parsing_timeout=None, fallback_mode="no_fallback"
    )
    return found


def _same(left: Any, right: Any) -> bool:
    import sympy  # noqa: PLC0415

    return bool(sympy.simplify(left - right) == 0)


def _same_equation(left: str, right: str) -> bool:
    """Whether the two say the same of their variables: the differences of their sides are multiples of each other."""
    import sympy  # noqa: PLC0415

    sides = [[_parse(side) for side in text.split("=")] for text in (left, right)]
    if any(len(pair) != 2 or not all(pair) for pair in sides):
        return False
    (a, b), (c, d) = ((lhs[0], rhs[0]) for lhs, rhs in sides)
    ratio = sympy.simplify((a - b) / (c - d))
    return bool(ratio.is_number and ratio.is_finite and ratio != 0)


if __name__ == "__main__":
    main(float(sys.argv[1]))
