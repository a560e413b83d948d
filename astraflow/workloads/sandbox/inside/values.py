"""Python values as JSON and back: what a function was given and what it returned.

Only plain data passes (None, bool, int, float, str, bytes, complex, list, tuple, set, frozenset, dict and their
subclasses, which become plain). An object that claims to equal everything therefore never reaches a comparison, and
a value that comes out of a sandbox can do nothing when it is compared. Whole numbers beyond 2**53 travel in base 16, so
that no limit on decimal digits stands in the way.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any

_DEPTH = 60
_EXACT = 2**53
_HASHED = 10_000
"""Entries of a set or dict that are taken in: a hostile choice of keys makes building one quadratic."""


class NotPlainError(ValueError):
    """A value that is no plain data, or too deeply nested."""


def encode(value: Any, depth: int = 0) -> Any:
    """``value`` as JSON values. Raises ``NotPlainError``."""
    kind = type(value)
    if depth > _DEPTH:
        raise NotPlainError(f"nested more than {_DEPTH} deep")
    if value is None or kind is bool or kind is str:
        return value
    if issubclass(kind, int):
        number = int.__add__(value, 0)
        return number if -_EXACT <= number <= _EXACT else {"i": format(number, "x")}
    if issubclass(kind, float):
        real = float.__add__(value, 0.0)
        return real if math.isfinite(real) else {"f": repr(real)}
    if issubclass(kind, str):
        return str.__str__(value)
    return _encode_compound(value, kind, depth + 1)


def _encode_compound(value: Any, kind: type, depth: int) -> Any:
    # The iterators are those of the base class: what a subclass makes of them does not matter.
    if issubclass(kind, list):
        return [encode(item, depth) for item in list.__iter__(value)]
    if issubclass(kind, deque):
        return [encode(item, depth) for item in deque.__iter__(value)]
    if issubclass(kind, dict):
        return {"d": [[encode(key, depth), encode(item, depth)] for key, item in dict.items(value)]}
    for tag, base in (("t", tuple), ("s", set), ("z", frozenset)):
        if issubclass(kind, base):
            return {tag: [encode(item, depth) for item in base.__iter__(value)]}
    if issubclass(kind, bytes):
        return {"b": bytes.hex(value)}
    if kind is complex:
        return {"c": [encode(value.real), encode(value.imag)]}
    raise NotPlainError(f"a {kind.__name__} is no plain data")


def decode(data: Any) -> Any:
    """Inverse of ``encode``. Raises ``NotPlainError`` for what ``encode`` never makes."""
    if isinstance(data, list):
        return [decode(item) for item in data]
    if not isinstance(data, dict):
        return data
    if len(data) != 1:
        raise NotPlainError("not an encoded value")
    ((tag, body),) = data.items()
    try:
        return _decode_tagged(tag, body)
    except (TypeError, ValueError, KeyError) as error:
        raise NotPlainError(f"not an encoded value: {error}") from error


def _decode_tagged(tag: str, body: Any) -> Any:
    if tag == "i":
        return int(body, 16)
    if tag == "f":
        return {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[body]
    if tag == "b":
        return bytes.fromhex(body)
    if tag == "c":
        return complex(decode(body[0]), decode(body[1]))
    if tag in ("d", "s", "z") and len(body) > _HASHED:
        raise NotPlainError(f"a set or dict of more than {_HASHED} entries")
    if tag == "d":
        return {decode(key): decode(item) for key, item in body}
    base = {"t": tuple, "s": set, "z": frozenset}[tag]
    return base(decode(item) for item in body)
