"""``replay``: decide a run again, and try other algorithms on what its rollouts came to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from infra.commands.options import Json, Store, print_json, run_url, say

if TYPE_CHECKING:
    from astraflow.config import RunConfig


def replay(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's name.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[dataflow.KEY=VALUE]...", help="Algorithms to try: dataflow.curator.name=greso …"),
    ] = None,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Decide a run again from its logs and compare; with overrides, replay its outcomes under other algorithms."""
    from astraflow import open_run
    from astraflow.dataflow.replay import prove_run

    opened = open_run(run_url(run, store))
    proof = prove_run(opened.store, opened.keys, opened.config)
    found: dict[str, Any] = {
        "run": opened.keys.run,
        "records": proof.records,
        "decisions": proof.decisions,
        "identical_bytes": proof.identical_bytes,
    }
    if not as_json:
        say(
            f"{proof.records} records with {proof.decisions} decisions were decided again: all are the same, "
            f"{proof.identical_bytes} of {proof.records} records byte for byte"
        )
    if overrides:
        found |= _compare(opened, _changed(opened.config, overrides))
    if as_json:
        print_json(found)
    elif overrides:
        _show(found)


def _changed(config: RunConfig, overrides: list[str]) -> RunConfig:
    from astraflow.dataflow.algorithms import load_algorithms
    from astraflow.recipe import override_config
    from storage.errors import ConfigError

    for override in overrides:
        key = override.partition("=")[0].strip()
        if not key.startswith("dataflow.") or key == "dataflow.group_size":
            raise ConfigError(
                f"{key!r} cannot be replayed",
                where="command line",
                remedy="Override dataflow.* but group_size: rewards, lengths and times are as they were recorded",
                kind="override",
            )
    changed = override_config(config, overrides)
    load_algorithms(changed)
    return changed


def _compare(opened: Any, changed: RunConfig) -> dict[str, Any]:
    """The run as recorded, its replay, and the replay of the changed config."""
    from astraflow.dataflow.counterfactual import replay_outcomes
    from astraflow.dataflow.outcomes import read_outcomes

    recorded = read_outcomes(opened.store, opened.keys, opened.config)
    size = opened.config.dataflow.group_size
    found: dict[str, Any] = {"recorded": recorded.tally.to_dict(size)}
    for name, config in (("replayed", opened.config), ("changed", changed)):
        replayed = replay_outcomes(recorded, config)
        found[name] = replayed.tally.to_dict(size) | {
            "seconds": replayed.seconds,
            "finished": replayed.is_finished,
            "borrowed": replayed.borrowed,
            "reused": replayed.reused,
        }
    return found


MEANINGS = {
    "steps": "optimizer steps done, by policy",
    "groups_leased": "attempts included",
    "rollouts": "episodes leased",
    "groups_admitted": "whole groups that came back",
    "parts_trained": "for the first time",
    "parts_replayed": "again",
    "kept": "trained, of those that were trained or dropped",
    "dropped": "parts, by reason",
    "lag_mean": "steps, of fresh parts when batched",
    "lags": "fresh parts, by lag",
    "problems": "different ones that were leased",
    "seconds": "of the virtual clock",
    "finished": "whether it did all recorded steps",
    "borrowed": "outcomes of another problem: the run had none of this one",
    "reused": "outcomes given more than once",
}


def _show(found: dict[str, Any]) -> None:
    from infra.display import rows

    kinds = ["recorded", "replayed", "changed"]
    shown = [
        {"figure": name} | {kind: _text(found[kind].get(name)) for kind in kinds} | {"what": MEANINGS.get(name, "")}
        for name in found["changed"]
    ]
    rows(Console(), ["figure", *kinds, "what"], shown)
    say("recorded: as it was. replayed: its own config on the recorded outcomes. changed: with the overrides.")
    say("Compare the last two: both meet the same outcomes. The more is reused or borrowed, the less they say.")


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item}" for key, item in value.items()) or "none"
    if isinstance(value, float):
        return f"{value:.3f}"
    return "" if value is None else str(value)
