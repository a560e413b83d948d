"""``simulate``: what a recipe would come to on other machines and with other luck, in seconds and without a model."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from infra.commands.options import Json, print_json, say

WORLD = "world."


def simulate(
    recipe: Annotated[str, typer.Argument(help="A recipe file, or the name of a built-in one.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...", help="Overrides of the recipe; those of the scenario begin with world."
        ),
    ] = None,
    world: Annotated[
        Path | None, typer.Option("--world", metavar="FILE", help="A scenario: lengths, pools, deaths, faults.")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Decide the whole run again from its logs, and compare.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Play a recipe with the real manager, virtual pools and trainers and a virtual clock."""
    from astraflow.recipe import load_recipe
    from astraflow.simulation import World, load_scenario
    from infra.places import DEFAULT_STORE, find_recipe

    given = overrides or []
    own = [override for override in given if not override.startswith(WORLD)]
    scenario = load_scenario(world, [o.removeprefix(WORLD) for o in given if o.startswith(WORLD)])
    config = load_recipe(find_recipe(recipe), own, default_store=DEFAULT_STORE)
    begun = time.monotonic()
    played = World(config, scenario)
    report = played.run()
    took_s = time.monotonic() - begun
    extra: dict[str, Any] = {"run": config.name, "took_s": round(took_s, 3), "episodes_per_s": report.episodes / took_s}
    if verify:
        from astraflow.dataflow.replay import verify_run

        extra["verified_records"] = verify_run(played.base.client(), played.keys, played.config)
    if as_json:
        print_json({**extra, **report.to_json()})
        return
    _show(report.to_json(), extra)


def _show(report: Mapping[str, Any], extra: Mapping[str, Any]) -> None:
    from infra.display import rows

    say(
        f"{extra['run']}: {report['steps']} steps in {report['wall_s'] / 3600:.2f} virtual hours, "
        f"{report['gpu_h']:.1f} GPU-hours; {report['episodes']:,} episodes simulated in {extra['took_s']:.1f} s"
    )
    if "verified_records" in extra:
        say(f"Decided again from the logs, with equal results: {extra['verified_records']} records")
    console = Console()
    policies = [
        {
            "policy": name,
            "steps": figures["steps"],
            "trainer waits": f"{figures['wait_ratio']:.1%}",
            "lags": ", ".join(f"{lag}: {count}" for lag, count in figures["lag_histogram"].items()),
            "dropped": ", ".join(f"{count} {reason}" for reason, count in figures["dropped"].items()) or "none",
        }
        for name, figures in report["policies"].items()
    ]
    rows(console, ["policy", "steps", "trainer waits", "lags", "dropped"], policies)
    pools = [{**pool, "gone_s": "-" if pool["gone_s"] is None else f"{pool['gone_s']:.0f}"} for pool in report["pools"]]
    rows(console, ["pool", "region", "speed", "joined_s", "gone_s", "groups", "tokens_per_s"], pools)
    lengths = [{"policy": name, **law} for name, law in report["lengths"].items()]
    rows(console, ["policy", "median", "sigma", "mean", "p90", "p99", "most"], lengths)
