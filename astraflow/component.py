"""Finding what a config names: a built-in, or ``package.module:attribute``.

Used wherever a ``Component`` of the config may be the user's own code. What is wrong with a name or its options is a
``ConfigError`` that says where the name stands and which names there are.
"""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from storage.errors import ConfigError


def find(name: str, built_in: Mapping[str, Any], *, where: str) -> Any:
    """The built-in ``name``, or the attribute that an import path names. Raises ``ConfigError``."""
    if name in built_in:
        return built_in[name]
    known = ", ".join(sorted(built_in))
    module_name, colon, attribute = name.partition(":")
    if not colon:
        near = difflib.get_close_matches(name, built_in, n=1)
        guess = f"Did you mean {near[0]!r}? " if near else ""
        raise ConfigError(
            f"{name!r} is not built in",
            where=where,
            remedy=f"{guess}Built in: {known}. Own code is named 'package.module:attribute'",
            kind="unknown",
        )
    try:
        return getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise ConfigError(
            f"{name!r} cannot be imported: {error}",
            where=where,
            remedy="Put the module beside the recipe, name its folder in code = […], or install it",
            kind="import",
        ) from error


def use_code(folders: Iterable[str]) -> None:
    """Make the modules in a run's ``code`` folders importable here; what is installed comes first.

    A folder that this machine does not have is passed over: elsewhere the modules are installed, or on PYTHONPATH.
    """
    for folder in folders:
        if folder not in sys.path and Path(folder).is_dir():
            sys.path.append(folder)


def check_options(target: Callable[..., Any], options: Mapping[str, Any], *, given: int, where: str) -> None:
    """Raise ``ConfigError`` unless ``target`` takes ``options`` by keyword after ``given`` positional arguments."""
    try:
        signature = inspect.signature(target)
    except ValueError:  # some C callables have none: the call itself will tell
        return
    try:
        signature.bind(*[None] * given, **options)
    except TypeError as error:
        names = [
            name
            for name, parameter in list(signature.parameters.items())[given:]
            if parameter.kind in (parameter.KEYWORD_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
        raise ConfigError(
            f"wrong options: {error}",
            where=where,
            remedy=f"It takes: {', '.join(names) or 'none'}",
            kind="options",
        ) from error
