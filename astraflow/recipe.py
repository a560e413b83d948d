"""Recipes: TOML files, overlays (``extends``) and dotted overrides become one validated ``RunConfig``.

Every problem of the input is reported at once as a ``ConfigError`` that names key, value, origin and
remedy. Relative model folders, problem files and code folders are taken from the file that names them (those of
overrides, and the stores, from the working directory), so a recipe means the same wherever it is started. If a recipe
names own code (``my_module:reward``), the folders of its files are where every process of the run looks for it.
"""

from __future__ import annotations

import datetime
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from astraflow.config import REMOTE, RunConfig, Workflow
from astraflow.models import BUILT_IN
from astraflow.recipe_errors import Fault, faults_of, raise_faults, unknown_trainer_fields
from astraflow.toml import dump_table
from storage.errors import ConfigError, NotFound
from storage.keys import RunKeys
from storage.location import Location
from storage.store import ObjectStore

_DELETE = object()


@dataclass(slots=True)
class _Draft:
    """A config in the making: the merged table, and where each key came from."""

    table: dict[str, Any] = field(default_factory=dict)
    origins: dict[tuple[str, ...], str] = field(default_factory=dict)
    raw: dict[tuple[str, ...], str] = field(default_factory=dict)  # overrides as typed


def load_recipe(
    path: str | Path, overrides: Sequence[str] = (), *, default_store: str | None = None, built_in: Path | None = None
) -> RunConfig:
    """Read a recipe file with its overlays and ``key=value`` overrides. Raises ``ConfigError``.

    ``default_store`` is used when neither the recipe nor an override names a store; ``built_in`` is a folder of recipes
    that an ``extends`` may name. The stores of the returned config, the run's and its regions', are URLs; folders are
    made absolute from the working directory.
    """
    draft = _Draft()
    layers = _layers(Path(path), built_in)
    for file, table in layers:
        _merge(draft, _with_paths(table, file.parent), str(file))
    for override in overrides:
        _override(draft, override)
    if _names_own_code(draft.table):
        draft.table.setdefault("code", list(dict.fromkeys(str(file.parent.resolve()) for file, _ in reversed(layers))))
    if default_store is not None:
        draft.table.setdefault("store", default_store)
    return with_store_urls(_validate(draft, str(path)))


def override_config(config: RunConfig, overrides: Sequence[str]) -> RunConfig:
    """``config`` with ``key=value`` overrides, as on the command line. Raises ``ConfigError``."""
    draft = _Draft(table=config.model_dump(mode="python"))
    for override in overrides:
        _override(draft, override)
    return _validate(draft, config.name)


def dump_toml(config: RunConfig) -> str:
    """The whole config, defaults written out; ``parse_toml`` gives an equal config back."""
    return dump_table(config.model_dump(mode="python"))


def parse_toml(text: str, *, where: str) -> RunConfig:
    """A config from the text of ``dump_toml``. Raises ``ConfigError`` naming ``where``."""
    draft = _Draft(table=_parse(text, where))
    return _validate(draft, where)


def load_run_config(store: ObjectStore, run: str) -> RunConfig:
    """The frozen config of a run in the store. Raises ``ConfigError`` if there is no such run."""
    keys = RunKeys(run)
    try:
        data = store.get(keys.config)
    except NotFound as error:
        raise ConfigError(
            f"there is no run {run!r} in {store.url}",
            where=keys.config,
            remedy="`astraflow runs` lists the runs of a store; --store or ASTRAFLOW_STORE names another store",
            kind="no_run",
        ) from error
    return parse_toml(data.decode(), where=f"{store.url}/{keys.config}")


def store_url(store: str) -> str:
    """A store as a URL: folders become absolute ``file://`` URLs, URLs stay as they are."""
    return Location.parse(store).url


def with_store_urls(config: RunConfig) -> RunConfig:
    """The config with its stores as URLs, so that they mean the same to each process wherever it starts."""
    regions = {
        name: region.model_copy(update={"store": store_url(region.store)}) if region.store else region
        for name, region in config.regions.items()
    }
    return config.model_copy(update={"store": store_url(config.store), "regions": regions})


def _layers(path: Path, built_in: Path | None) -> list[tuple[Path, dict[str, Any]]]:
    """The recipe's files, base first. An ``extends`` is relative to the file that says it, or a built-in recipe."""
    layers: list[tuple[Path, dict[str, Any]]] = []
    seen: list[Path] = []
    following: Path | None = path
    while following is not None:
        file = following.absolute()
        if file.resolve() in seen:
            chain = " -> ".join(part.name for part in [*seen, file])
            raise ConfigError(f"recipes extend each other in a circle: {chain}", where=str(file), kind="circle")
        seen.append(file.resolve())
        table = _read(file)
        base = table.pop("extends", None)
        if base is not None and not isinstance(base, str):
            raise ConfigError(
                f"extends = {base!r} is not the name of a recipe file",
                where=str(file),
                remedy='Write extends = "other.toml"',
                kind="value",
            )
        layers.append((file, table))
        following = None if base is None else _base(file, base, built_in)
    return layers[::-1]


def _base(file: Path, name: str, built_in: Path | None) -> Path:
    """Where the recipe is that ``file`` extends: beside it, or else among the built-in ones."""
    beside = file.parent / name
    ours = built_in / name if built_in is not None and Path(name).name == name else None
    return ours if ours is not None and ours.is_file() and not beside.exists() else beside


def _read(file: Path) -> dict[str, Any]:
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        near = sorted(other.name for other in file.parent.glob("*.toml")) if file.parent.is_dir() else []
        remedy = f"Recipes beside it: {', '.join(near)}" if near else "Check the path"
        raise ConfigError("there is no such recipe file", where=str(file), remedy=remedy, kind="no_file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot be read: {error}", where=str(file), remedy="A recipe is a UTF-8 TOML file"
        ) from error
    return _parse(text, str(file))


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        table: dict[str, Any] = _plain(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(
            f"not valid TOML: {error}", where=where, remedy="Text values need quotes", kind="toml"
        ) from error
    return table


def _plain(value: Any) -> Any:
    """Dates become text, so that a config is the same as JSON (Prefect's parameters) and as TOML."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    return value


def _merge(draft: _Draft, table: Mapping[str, Any], origin: str, path: tuple[str, ...] = ()) -> None:
    """Lay ``table`` over the draft: tables are merged key by key, everything else replaces."""
    node = _node(draft.table, path)
    if _means_another(draft, node, table, path):
        del node["options"]
    for key, value in table.items():
        here = (*path, key)
        draft.origins[here] = origin
        if isinstance(value, dict) and isinstance(node.get(key, {}), dict):
            node.setdefault(key, {})
            _merge(draft, value, origin, here)
        else:
            node[key] = value


def _means_another(draft: _Draft, node: Mapping[str, Any], table: Mapping[str, Any], path: tuple[str, ...]) -> bool:
    """Whether the table names another source or component than the layers below, whose options are not for it.

    Options typed on the command line are meant for what is named there too, in either order.
    """
    if not path or "options" not in node or any(typed[: len(path) + 1] == (*path, "options") for typed in draft.raw):
        return False
    default = {"name": Workflow().name} if path == ("workflow",) else {}
    return any(key in table and table[key] != node.get(key, default.get(key)) for key in ("source", "name"))


def _node(table: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    for key in path:
        table = table[key]
    return table


def _override(draft: _Draft, override: str) -> None:
    key, sign, text = override.partition("=")
    path = tuple(part.strip() for part in key.split("."))
    if not sign or not all(path):
        raise ConfigError(
            f"{override!r} is not an override",
            where="command line",
            remedy="Write key=value with a dotted key, as in trainer.lr=1e-6",
            kind="override",
        )
    origin = f"override {override!r}"
    value = _override_value(text.strip())
    node = draft.table
    for depth, part in enumerate(path[:-1], start=1):
        node = node.setdefault(part, {})
        if not isinstance(node, dict):
            raise ConfigError(
                f"{'.'.join(path[:depth])} is not a table", where=origin, remedy="Use a shorter key", kind="override"
            )
    if value is _DELETE:
        node.pop(path[-1], None)
        return
    nested: Any = value
    for part in reversed(path):
        nested = {part: nested}
    _merge(draft, _with_paths(nested, Path.cwd()), origin)
    draft.raw[path] = text.strip()


def _override_value(text: str) -> Any:
    """A TOML value; a bare word is text; ``null`` takes the key away."""
    if text == "null":
        return _DELETE
    try:
        return _plain(tomllib.loads(f"value = {text}")["value"])
    except tomllib.TOMLDecodeError:
        return text


def _with_paths(table: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The table with its relative model folders and problem files made absolute from ``folder``."""
    policies = table.get("policies")
    own = [p.get("trainer") for p in policies.values() if isinstance(p, dict)] if isinstance(policies, dict) else []
    for trainer in (table.get("trainer"), *own):
        if isinstance(trainer, dict) and trainer.get("teacher") and isinstance(trainer["teacher"], str):
            trainer["teacher"] = _absolute(trainer["teacher"], folder, is_path=True)
    if isinstance(policies, dict):
        for policy in policies.values():
            if isinstance(policy, dict) and isinstance(policy.get("model"), str):
                policy["model"] = _absolute(policy["model"], folder, is_path=policy["model"] not in (*BUILT_IN, REMOTE))
    problems = table.get("problems")
    if isinstance(problems, dict) and isinstance(problems.get("source"), str):
        source = problems["source"]
        problems["source"] = _absolute(source, folder, is_path="/" in source or source.endswith(".jsonl"))
    if isinstance(table.get("code"), list):
        table["code"] = [_absolute(str(code), folder, is_path=True) for code in table["code"]]
    return table


def _names_own_code(node: Any, key: str = "") -> bool:
    """Whether some ``name`` or ``kind`` in the table is an import path, ``package.module:attribute``."""
    if isinstance(node, dict):
        return any(_names_own_code(value, name) for name, value in node.items())
    if isinstance(node, list):
        return any(_names_own_code(value) for value in node)
    return key in ("name", "kind", "engine", "source") and isinstance(node, str) and ":" in node


def _absolute(text: str, folder: Path, *, is_path: bool) -> str:
    return str((folder / Path(text).expanduser()).absolute()) if is_path and "://" not in text else text


def _validate(draft: _Draft, where: str) -> RunConfig:
    """Validate; an override typed without quotes (``name=7``) is text where the schema wants text."""
    faults: list[Fault] = unknown_trainer_fields(draft.table)
    try:
        config = RunConfig.model_validate(draft.table)
    except ValidationError as error:
        texts = [tuple(map(str, e["loc"])) for e in error.errors() if e["type"] == "string_type"]
        mended = [path for path in texts if path in draft.raw]
        if mended:
            for path in mended:
                _node(draft.table, path[:-1])[path[-1]] = draft.raw.pop(path)
            return _validate(draft, where)
        faults += faults_of(error)
        raise_faults(faults, where, draft.origins, cause=error)
    if faults:
        raise_faults(faults, where, draft.origins)
    return config
