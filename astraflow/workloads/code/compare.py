"""Comparing what a submission printed or returned with what it should have.

Printed text is compared by lines without the spaces at their ends, and numbers by value where a line is all numbers.
Returned values are plain data: a tuple equals a list of the same items, and floats may differ in the last digits.
"""

from __future__ import annotations

import math
from decimal import Decimal, InvalidOperation
from typing import Any

_TOLERANCE = 1e-9


def same_output(expected: str, printed: str) -> bool:
    """Whether a program printed what it should have."""
    left, right = _lines(expected), _lines(printed)
    return len(left) == len(right) and all(a == b or _same_numbers(a, b) for a, b in zip(left, right, strict=True))


def same_value(expected: Any, returned: Any) -> bool:
    """Whether a function returned what it should have."""
    if isinstance(expected, list | tuple) and isinstance(returned, list | tuple):
        return len(expected) == len(returned) and all(map(same_value, expected, returned))
    if isinstance(expected, dict) and isinstance(returned, dict):
        return expected.keys() == returned.keys() and all(same_value(expected[key], returned[key]) for key in expected)
    if isinstance(expected, float) or isinstance(returned, float):
        try:
            return math.isclose(expected, returned, rel_tol=_TOLERANCE, abs_tol=_TOLERANCE)
        except (TypeError, OverflowError):
            return False
    return bool(expected == returned)


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.strip().splitlines()]


def _same_numbers(expected: str, printed: str) -> bool:
    left, right = expected.split(), printed.split()
    if len(left) != len(right):
        return False
    try:
        return all(a == b or _decimal(a) == _decimal(b) for a, b in zip(left, right, strict=True))
    except InvalidOperation:
        return False


def _decimal(text: str) -> Decimal:
    value = Decimal(text)
    if not value.is_finite():
        raise InvalidOperation
    return value
