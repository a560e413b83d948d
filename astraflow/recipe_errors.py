"""What is wrong in a recipe, said so that it can be mended: key, value, origin and the nearest known key."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, get_args

from pydantic import BaseModel, ValidationError

from astraflow.config import RunConfig, Trainer
from storage.errors import ConfigError

_MISSING = object()


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that is wrong: the key's path, the value found there, what and how to mend it."""

    path: tuple[str, ...]
    value: Any
    what: str
    remedy: str = ""

    def line(self, origin: str = "") -> str:
        """``trainer.lr = -1 (base.toml): …`` on one line."""
        key = ".".join(self.path)
        shown = key if self.value is _MISSING else f"{key} = {_short(self.value)}"
        place = f" ({origin})" if origin else ""
        remedy = f". {self.remedy}" if self.remedy else ""
        return f"{shown}{place}: {self.what}{remedy}" if key else f"{self.what}{remedy}"


def faults_of(error: ValidationError) -> list[Fault]:
    """The faults that pydantic found, in its order."""
    return [_fault(dict(item)) for item in error.errors()]


def unknown_trainer_fields(table: Mapping[str, Any]) -> list[Fault]:
    """Unknown keys in ``[policies.NAME.trainer]``, which the schema itself keeps open."""
    policies = table.get("policies")
    if not isinstance(policies, dict):
        return []
    return [
        Fault(("policies", name, "trainer", key), value, "unknown key", _nearest(key, list(Trainer.model_fields)))
        for name, policy in policies.items()
        if isinstance(policy, dict) and isinstance(policy.get("trainer"), dict)
        for key, value in policy["trainer"].items()
        if key not in Trainer.model_fields
    ]


def raise_faults(
    faults: list[Fault],
    where: str,
    origins: Mapping[tuple[str, ...], str],
    *,
    cause: Exception | None = None,
) -> NoReturn:
    """Raise one ``ConfigError`` with all faults, each with the file or override it came from."""
    unique = list({(fault.path, fault.what): fault for fault in faults if not _is_repeated(fault, faults)}.values())
    lines = [fault.line(_origin(fault.path, origins, where)) for fault in unique]
    if len(lines) == 1:
        raise ConfigError(
            Fault(unique[0].path, unique[0].value, unique[0].what).line(_origin(unique[0].path, origins, where)),
            where=where,
            remedy=unique[0].remedy or "Correct the recipe or the override",
            kind="invalid",
        ) from cause
    raise ConfigError(
        f"{len(lines)} errors\n  " + "\n  ".join(lines),
        where=where,
        kind="invalid",
    ) from cause


def _is_repeated(fault: Fault, faults: list[Fault]) -> bool:
    """Whether a whole-config complaint only says again what a fault with a path says."""
    return not fault.path and any(other.path and ".".join(other.path) in fault.what for other in faults)


def _origin(path: tuple[str, ...], origins: Mapping[tuple[str, ...], str], where: str) -> str:
    """The file or override that set the key or the nearest table above it, if it is not ``where`` itself."""
    for end in range(len(path), 0, -1):
        if path[:end] in origins:
            origin = origins[path[:end]]
            return "" if origin.endswith(where) else origin
    return ""


def _fault(item: dict[str, Any]) -> Fault:
    path = tuple(str(part) for part in item["loc"] if part != "[key]")
    kind, message = item["type"], str(item["msg"]).removeprefix("Value error, ")
    if kind == "extra_forbidden":
        return Fault(path, item["input"], "unknown key", _nearest(path[-1], _fields(path[:-1])))
    if kind == "missing":
        return Fault(path, _MISSING, "is missing", f"Add it: {_description(path)}")
    if not path:
        return Fault((), _MISSING, message)
    if kind == "string_pattern_mismatch":
        message = "not a name: use lower-case letters, digits, - and _ (at most 63, first a letter or digit)"
    return Fault(path, item["input"], message[0].lower() + message[1:], _description(path))


def _nearest(key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    if close:
        return f"Did you mean {close[0]!r}?"
    return f"Known here: {', '.join(sorted(known))}" if known else ""


def _model_at(path: tuple[str, ...]) -> type[BaseModel] | None:
    """The schema class that describes the table at ``path``; dictionaries of sections are stepped through."""
    model: type[BaseModel] = RunConfig
    rest = list(path)
    while rest:
        part = rest.pop(0)
        if part not in model.model_fields:
            return None
        annotation = model.model_fields[part].annotation
        inner = _section(annotation)
        if inner is None:
            return None
        if getattr(annotation, "__origin__", None) in (dict, list) and rest:
            rest.pop(0)
        model = inner
    return model


def _section(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _section(part)) is not None), None)


def _fields(path: tuple[str, ...]) -> list[str]:
    model = _model_at(path)
    return list(model.model_fields) if model else []


def _description(path: tuple[str, ...]) -> str:
    model = _model_at(path[:-1])
    info = model.model_fields.get(path[-1]) if model and path else None
    return (info.description or "").rstrip(".") if info else ""


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
