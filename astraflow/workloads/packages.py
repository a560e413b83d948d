"""Optional packages: imported when used; their absence says which extra brings them."""

from __future__ import annotations

import importlib
from typing import Any

from storage.errors import ConfigError


def need(module: str, extra: str) -> Any:
    """The module. Raises ``ConfigError`` naming the extra if it is not installed."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        if missing.partition(".")[0] != module.partition(".")[0]:
            raise
        raise ConfigError(
            f"the package of {module!r} is not installed",
            where=f"extra {extra!r}",
            remedy=f"pip install 'astraflow-prefect[{extra}]'",
            kind="missing_package",
        ) from error
