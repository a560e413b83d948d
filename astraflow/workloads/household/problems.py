"""Household problems: procedural houses, and the games of ALFWorld's published data by path."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

from astraflow.problems import Problem
from astraflow.workloads.household.houses import house
from astraflow.workloads.household.kinds import CHORES
from storage.errors import ConfigError

_TASK = re.compile(r"Your task is to: (.*?)\\?\"")
_MOST = 100_000


def household(seed: int, *, count: int = 512, chores: Sequence[str] = CHORES) -> list[Problem]:
    """``count`` houses, the ``chores`` in turn. ``answer`` is one way to do it, as JSON; the policy never sees it."""
    _check_chores(chores)
    if not 1 <= count <= _MOST:
        raise _refused(f"{count} houses", f"count is 1 to {_MOST}")
    problems = []
    for index in range(count):
        made = house(seed, index, chores)
        meta = {"house": json.dumps([seed, index, list(chores)]), "chore": made.chore}
        problems.append(Problem(index, f"house-{index}", made.task, json.dumps(made.commands), meta))
    return problems


def alfworld(seed: int, *, path: str, count: int = 0, chores: Sequence[str] = CHORES) -> list[Problem]:
    """The games below ``path`` (``…/json_2.1.1/train``): every ``game.tw-pddl`` that is solvable, by folder.

    The chore is the beginning of the name of the folder above the trial's, as published. ``count`` 0 takes all.
    """
    del seed  # published data is one order
    _check_chores(chores)
    folder = Path(path).expanduser()
    problems: list[Problem] = []
    for file in sorted(folder.glob("**/game.tw-pddl")):
        chore = file.parent.parent.name.split("-")[0]
        if chore not in chores:
            continue
        if count and len(problems) == count:
            break  # thousands of files are left unread
        game = _read(file)
        if game.get("solvable", True):
            name = str(file.parent.relative_to(folder))
            meta = {"path": str(file.resolve()), "chore": chore}
            walkthrough = json.dumps(game.get("walkthrough") or [])
            problems.append(Problem(len(problems), name, _task(file, game), walkthrough, meta))
    if not problems:
        raise ConfigError(
            "there is no game of these chores",
            where=str(folder),
            remedy="Name a folder of ALFWorld's data (alfworld-download puts it into ~/.cache/alfworld/json_2.1.1)",
            kind="file",
        )
    return problems


def _read(file: Path) -> dict[str, object]:
    try:
        game: dict[str, object] = json.loads(file.read_text(encoding="utf-8"))
        if not {"pddl_domain", "pddl_problem", "grammar"} <= set(game):
            raise ValueError("pddl_domain, pddl_problem or grammar is missing")
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"not a game of ALFWorld: {error}",
            where=str(file),
            remedy="Take the file away, or fetch the data again",
            kind="file",
        ) from error
    return game


def _task(file: Path, game: dict[str, object]) -> str:
    found = _TASK.search(str(game["grammar"]))
    return found[1].strip() if found else file.parent.parent.name


def _check_chores(chores: Sequence[str]) -> None:
    unknown = [chore for chore in chores if chore not in CHORES]
    if unknown or not chores:
        raise _refused(f"chores {list(chores)}", f"chores are some of {', '.join(CHORES)}")


def _refused(what: str, remedy: str) -> ConfigError:
    return ConfigError(f"no household of {what}", where="problems.options", remedy=remedy, kind="options")
