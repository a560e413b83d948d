"""``init``: a small project that runs as it is, copied from ``infra/project``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from infra.commands.options import Json, print_json, say
from storage.errors import ConfigError

TEMPLATE = Path(__file__).parents[1] / "project"
FILES = {
    "recipe.toml": "recipe.toml",
    "problems.jsonl": "problems.jsonl",
    "workflow.py": "workflow.py",
    "reward.py": "reward.py",
    "README.md": "README.md",
    "gitignore": ".gitignore",
}
_NAMED = ("recipe.toml", "README.md")  # hold the name of the run
_TEMPLATE_NAME = "first"


def init(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The new project's folder; made if it is not there.")],
    as_json: Json = False,
) -> None:
    """Make a small project: a recipe, problems, a workflow and a reward. It runs as it is; nothing is overwritten."""
    name = _run_name(folder)
    taken = [target for target in FILES.values() if (folder / target).exists()]
    if taken:
        raise ConfigError(
            f"there is {', '.join(taken)} already",
            where=str(folder),
            remedy="Choose another folder; nothing was written",
            kind="exists",
        )
    texts = {target: (TEMPLATE / source).read_text(encoding="utf-8") for source, target in FILES.items()}
    for target in _NAMED:
        texts[target] = re.sub(rf"\b{_TEMPLATE_NAME}\b", name, texts[target])
    _write(folder, texts)
    if as_json:
        print_json({"folder": str(folder.absolute()), "run": name, "files": sorted(texts)})
        return
    say(f"Made {folder}: {', '.join(texts)}\nNext: cd {folder} && astraflow up && astraflow run recipe.toml")


def _run_name(folder: Path) -> str:
    """A run's name out of the folder's: lower case, digits, - and _."""
    name = re.sub(r"[^a-z0-9_-]+", "-", folder.absolute().name.lower()).strip("-_")[:40].strip("-_")
    return name or _TEMPLATE_NAME


def _write(folder: Path, texts: dict[str, str]) -> None:
    """All files or, as far as that can be had, none."""
    written: list[Path] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for target, text in texts.items():
            with (folder / target).open("x", encoding="utf-8") as file:
                written.append(folder / target)
                file.write(text)
    except BaseException as error:
        for path in written:
            path.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise ConfigError(
                f"the project cannot be written: {error}", where=str(folder), remedy="Choose another folder"
            ) from error
        raise
