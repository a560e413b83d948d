"""``astraflow run``: from a recipe to a run that is launched, followed and summed up."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from rich.console import Console

from astraflow import open_run
from astraflow.bootstrap import check_config, check_run
from astraflow.config import RunConfig
from astraflow.recipe import dump_toml, load_run_config
from infra.display import summary
from infra.interrupts import INTERRUPTED, leaving
from infra.places import DEFAULT_STORE, find_recipe, find_server, open_named, read_recipe
from infra.regions import plan
from storage import open_store
from storage.errors import ConfigError
from storage.keys import RunKeys


def resolve(
    recipe: str | None, overrides: Sequence[str], *, resume: str | None, store: str | None, ranks: int | None = None
) -> RunConfig:
    """The config that is meant: a recipe with overrides, or the frozen one of a run, its trainers with ``ranks``."""
    if resume:
        opened = open_named(store)
        frozen = load_run_config(opened, resume).model_copy(update={"store": opened.url})
        return frozen if ranks is None else frozen.with_ranks(dict.fromkeys(frozen.policies, ranks))
    if recipe is None:
        raise ConfigError(
            "run needs a recipe", where="command line", remedy="For example: astraflow run tiny-add", kind="usage"
        )
    named = [f"store={json.dumps(store)}"] if store else []
    default = os.environ.get("ASTRAFLOW_STORE") or DEFAULT_STORE
    return read_recipe(find_recipe(recipe), [*overrides, *named], default_store=default)


def show_plan(config: RunConfig, *, as_json: bool) -> None:
    """Print the resolved config and what would start, having checked all that needs no store."""
    frozen, problems = check_config(config)
    keys = RunKeys(config.name)
    planned = plan(config)
    if as_json:
        starts = [
            {
                "flow": each.child.flow,
                "name": each.child.key,
                "parameters": each.child.parameters,
                "deployment": each.deployment,
                "note": each.note,
            }
            for each in planned
        ]
        _print({"config": frozen.model_dump(mode="json"), "starts": starts, "keys": keys.root})
        return
    lines = [
        dump_toml(frozen).rstrip(),
        "",
        f"# Would start, each as a flow run and process of its own ({len(planned) + 1}):",
        f"#   experiment/local            {config.name}/experiment",
        *(f"#   {each.deployment:<27} {config.name}/{each.child.key}  {each.note}".rstrip() for each in planned),
        f"# Would write under {config.store}/{keys.root}, first:",
        f"#   {keys.problems(frozen.data_hash)}  ({len(problems)} problems)",
        f"#   {keys.config}",
        "# Nothing was started or written.",
    ]
    Console().print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)


def run(config: RunConfig, *, resume: bool, detach: bool, as_json: bool) -> int:
    """Launch the experiment, follow it, print its figures; the exit code."""
    server = find_server()
    store = open_store(config.store)
    if not resume and server.is_local:
        check_run(store, config)  # wrong input is said here and now, not in a flow run's log
    server.use()
    from infra import following, launch  # noqa: PLC0415  # prefect reads its settings when it is imported

    console = Console(stderr=as_json)
    with leaving(f"The run {config.name} may have been launched: `astraflow status {config.name}` tells."):
        launched = launch.launch(server, config, resume=resume)
    with leaving(f"The run {config.name} goes on by itself: `astraflow status {config.name}`."):
        console.print(f"run {config.name}  {launched.url}", highlight=False, markup=False, soft_wrap=True)
        if detach:
            if as_json:
                _print({"run": config.name, "store": store.url, "flow_run": launched.id, "url": launched.url})
            return 0
        if not following.follow(store, config.name, launched, console):
            return INTERRUPTED
    with leaving(f"The run {config.name} is over: `astraflow status {config.name}` shows its figures."):
        figures: dict[str, Any] = json.loads(open_run(f"{store.url}/{config.name}").figures().to_json())
        if as_json:
            _print(figures)
        else:
            summary(console, figures)
    return 0


def _print(value: object) -> None:
    print(json.dumps(value, indent=2, default=str, ensure_ascii=False))  # noqa: T201
