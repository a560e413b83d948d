"""What all readers of published files share: rows, their fields, and errors that name file and line."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from astraflow.problems import Problem
from storage.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Row:
    """A problem before it has its number; without an ``id`` it is called by its number."""

    prompt: str
    answer: str
    id: str = ""
    meta: Mapping[str, str] = field(default_factory=dict)


Read = Callable[[Mapping[str, Any]], Row | None]
"""Makes a row of a line's object; None for one that cannot be used on purpose (it has no tests, say)."""


def read_rows(path: Path, read: Read, *, limit: int = 0) -> list[Problem]:
    """The problems of a ``.jsonl`` or ``.jsonl.gz`` file. Raises ``ConfigError`` naming the line."""
    problems: list[Problem] = []
    seen: set[str] = set()
    for number, values in _objects(path):
        where = f"{path}:{number}"
        try:
            row = read(values)
        except KeyError as error:
            raise _wrong(f"the field {error} is missing", where) from error
        except (ValueError, TypeError, AttributeError) as error:
            raise _wrong(f"a field is not what this format has: {error}", where) from error
        if row is None:
            continue
        if not row.prompt:
            raise _wrong("the prompt is empty", where)
        name = row.id or str(len(problems))
        if name in seen:
            raise _wrong(f"the id {name!r} occurs twice", where)
        seen.add(name)
        problems.append(Problem(len(problems), name, row.prompt, row.answer, row.meta))
        if limit and len(problems) >= limit:
            break
    if not problems:
        raise ConfigError("no line gave a problem", where=str(path), remedy="Is it the right format?", kind="file")
    return problems


def _objects(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(io.TextIOWrapper(file, encoding="utf-8"), start=1):
                if line.strip():
                    yield number, _object(line, f"{path}:{number}")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the problem file cannot be read: {error}",
            where=f"problems.source = {path}",
            remedy="Name a UTF-8 file with one JSON object a line; a recipe's path is relative to the recipe",
            kind="file",
        ) from error


def _object(line: str, where: str) -> Mapping[str, Any]:
    try:
        values = json.loads(line)
    except ValueError as error:
        raise _wrong(f"not JSON: {error}", where) from error
    if not isinstance(values, dict):
        raise _wrong(f"a JSON object is expected, not {type(values).__name__}", where)
    return values


def text_of(value: Any) -> str:
    """A text or number as text; whole numbers without their ``.0``."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError(f"a text or number is expected, not {type(value).__name__}")
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def first(values: Mapping[str, Any], *names: str) -> Any:
    """The first of the fields that is there. Raises ``KeyError`` naming them."""
    for name in names:
        if values.get(name) not in (None, ""):
            return values[name]
    raise KeyError(" or ".join(names))


def rest(values: Mapping[str, Any], *names: str) -> dict[str, str]:
    """The named fields that are there, as texts for ``meta``."""
    found = {name: values[name] for name in names if values.get(name) is not None}
    return {name: value if isinstance(value, str) else json.dumps(value) for name, value in found.items()}


def _wrong(what: str, where: str) -> ConfigError:
    return ConfigError(what, where=where, remedy="problems.options.format says how lines look", kind="line")
