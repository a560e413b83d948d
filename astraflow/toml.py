"""A TOML writer for configs: what ``tomllib`` reads back is equal, type by type.

The standard library reads TOML but does not write it. Values are those of a validated config: text,
numbers, booleans, lists and tables. ``None`` inside a table means «not set» and is left out.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

from storage.errors import ConfigError

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def dump_table(table: Mapping[str, Any]) -> str:
    """The table as a TOML document, scalars first and sub-tables after them, in the given order."""
    lines: list[str] = []
    _write_table(lines, table, ())
    return "\n".join(lines).lstrip("\n") + "\n"


def _write_table(lines: list[str], table: Mapping[str, Any], path: tuple[str, ...]) -> None:
    scalars = {key: value for key, value in table.items() if value is not None and not isinstance(value, Mapping)}
    tables = {key: value for key, value in table.items() if isinstance(value, Mapping)}
    if path and (scalars or not tables):
        lines += ["", "[" + ".".join(map(_key, path)) + "]"]
    lines += [f"{_key(key)} = {_value(value, (*path, key))}" for key, value in scalars.items()]
    for key, value in tables.items():
        _write_table(lines, value, (*path, key))


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _text(key)


def _text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any, path: tuple[str, ...]) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_value(item, path) for item in value) + "]"
    if isinstance(value, Mapping):
        inner = (f"{_key(key)} = {_value(item, (*path, key))}" for key, item in value.items() if item is not None)
        return "{ " + ", ".join(inner) + " }"
    raise ConfigError(
        f"a {type(value).__name__} cannot be kept in a config",
        where=".".join(path),
        remedy="Use text, numbers, true/false, lists and tables",
        kind="value",
    )
