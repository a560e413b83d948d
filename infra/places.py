"""Where things are: the store, the run that is meant, and the Prefect server, from options and environment."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from astraflow.config import RunConfig
from astraflow.recipe import load_recipe, store_url
from infra.local_stack import is_healthy, read_stack, stack_home
from storage import open_store
from storage.errors import ConfigError, ServiceError
from storage.location import Location
from storage.store import ObjectStore

DEFAULT_STORE = ".astraflow/store"
RECIPES = Path(__file__).parent / "recipes"


@dataclass(frozen=True, slots=True)
class Server:
    """A Prefect server that answers."""

    api_url: str
    is_local: bool

    @property
    def ui_url(self) -> str:
        """The server's pages; ``PREFECT_UI_URL`` when they are elsewhere than the API."""
        own = None if self.is_local else os.environ.get("PREFECT_UI_URL")
        return (own or self.api_url.removesuffix("/api")).rstrip("/")

    def use(self) -> None:
        """Make this process's Prefect client speak to it; to be called before prefect is imported."""
        os.environ["PREFECT_API_URL"] = self.api_url
        os.environ.setdefault("DO_NOT_TRACK", "1")
        if self.is_local:
            os.environ["PREFECT_HOME"] = str(stack_home() / "prefect")


def find_server(*, runner: bool = True) -> Server:
    """The server of ``PREFECT_API_URL``, or the local stack's; ``runner``: one that can start flow runs.

    Raises ``ServiceError`` if none answers, or the local runner is needed and not there.
    """
    wanted = os.environ.get("PREFECT_API_URL")
    if wanted:
        if not is_healthy(wanted, timeout_s=10):
            raise ServiceError(
                "no Prefect server answers",
                where=f"PREFECT_API_URL={wanted}",
                remedy="Start it, or unset PREFECT_API_URL and run `astraflow up`",
                kind="unreachable",
            )
        return Server(wanted, is_local=False)
    stack = read_stack(stack_home())
    if stack is None or not is_healthy(stack.api_url):
        raise ServiceError(
            "no Prefect server runs here",
            where=str(stack_home()),
            remedy="Start the local stack: `astraflow up` (or set PREFECT_API_URL)",
            kind="unreachable",
        )
    if runner and not stack.runner.is_alive:
        raise ServiceError(
            "the local stack's runner has died, so nothing would start",
            where=str(stack_home()),
            remedy="Start it again: `astraflow up`",
            kind="no_runner",
        )
    return Server(stack.api_url, is_local=True)


def named_store(option: str | None) -> str:
    """The store's URL: the option, ``ASTRAFLOW_STORE``, or ``.astraflow/store`` here."""
    return store_url(option or os.environ.get("ASTRAFLOW_STORE") or DEFAULT_STORE)


def find_run(store: ObjectStore, run: str | None) -> str:
    """``run``, or the newest run of the store. Raises ``ConfigError`` if there is none."""
    from astraflow.query import newest_run  # noqa: PLC0415  # brings duckdb: nothing else here needs it

    if run:
        return run
    newest = newest_run(store)
    if newest is None:
        raise ConfigError(
            f"there is no run in {store.url}",
            where="--last",
            remedy="Start one with `astraflow run`, or name another store with --store",
            kind="no_run",
        )
    return newest


def open_named(option: str | None) -> ObjectStore:
    """Open the store that is meant; a folder that is not there is an error, not an empty store."""
    url = named_store(option)
    location = Location.parse(url)
    if location.scheme == "file" and not Path(location.path).is_dir():
        raise ConfigError(
            f"there is no store at {url}",
            where="--store" if option else "ASTRAFLOW_STORE or the default",
            remedy="`astraflow run` makes it; --store names another one",
            kind="no_store",
        )
    return open_store(url)


def find_recipe(name: str) -> Path:
    """A recipe file by path, or one that comes with AstraFlow by its name (``tiny-add``)."""
    path = Path(name)
    built_in = RECIPES / (name if name.endswith(".toml") else f"{name}.toml")
    return built_in if not path.is_file() and path.name == name and built_in.is_file() else path


def read_recipe(file: Path, overrides: Sequence[str] = (), *, default_store: str) -> RunConfig:
    """``load_recipe``, where an ``extends`` may name a recipe that comes with AstraFlow."""
    return load_recipe(file, overrides, default_store=default_store, built_in=RECIPES)


def find_recipes(folder: Path) -> list[Path]:
    """The recipe files of a folder, its ``recipes`` and AstraFlow's own, by name; a folder's own hides a built-in one.

    ``local`` is left out: it is the name of the deployment that every flow has.
    """
    found = {
        file.stem: file for place in (RECIPES, folder / "recipes", folder) for file in sorted(place.glob("*.toml"))
    }
    return [file for name, file in sorted(found.items()) if name != "local" and _is_recipe(file)]


def _is_recipe(file: Path) -> bool:
    """Whether a TOML file looks like one, so that a project's other files are left alone."""
    try:
        keys = tomllib.loads(file.read_text(encoding="utf-8")).keys()
    except (OSError, ValueError):
        return False
    return "extends" in keys or {"policies", "problems"} <= keys
