"""``astraflow weights``: what was published of a policy, whether it is whole, how sparse it is, and the tidying up."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra.commands.options import EPILOG, Json, Last, RunOption, Store, ToFolder, named_run, print_json, say

if TYPE_CHECKING:
    from astraflow.weights.subscriber import Subscriber
    from storage.keys import RunKeys
    from storage.store import ObjectStore

app = typer.Typer(name="weights", help="The published weights of a run.", no_args_is_help=True, rich_markup_mode=None)

PolicyName = Annotated[str | None, typer.Option("--policy", help="The policy; left out if the run has only one.")]
Version = Annotated[int, typer.Argument(min=0, help="A version's number.")]


@dataclass(frozen=True, slots=True)
class Place:
    """The policy that is meant, and where it lies."""

    store: ObjectStore
    keys: RunKeys
    policy: str


@app.command("list", epilog=EPILOG)
def list_versions(
    run: RunOption = None, last: Last = False, policy: PolicyName = None, store: Store = None, as_json: Json = False
) -> None:
    """List the versions and merged deltas, with what they cost to ship."""
    from astraflow.weights.inspection import history

    place = _place(run, policy, store)
    found = [dataclasses.asdict(row) for row in history(place.store, place.keys, place.policy)]
    columns = ["version", "base", "step", "kind", "size_bytes", "full_bytes", "changed", "bytes_per_changed"]
    _table(found, columns, as_json=as_json)


@app.command(epilog=EPILOG)
def show(
    version: Version,
    run: RunOption = None,
    last: Last = False,
    policy: PolicyName = None,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Show a version: its manifest, and what a reader that has nothing fetches for it."""
    import msgspec

    place = _place(run, policy, store)
    reader = _reader(place, version)
    manifest, plan = reader.manifest(version), reader.plan(version)
    hops = [{"base": hop.base, "version": hop.version, "size_bytes": hop.size_bytes} for hop in plan.deltas]
    way = {"snapshot": plan.snapshot.version if plan.snapshot else None, "deltas": hops, "size_bytes": plan.size_bytes}
    shown = {**msgspec.to_builtins(manifest), "way": way}
    if as_json:
        print_json(shown)
        return
    for name, value in shown.items():
        if name not in ("delta", "snapshot", "way"):
            say(f"{name:12} {value}")
    for part in ("delta", "snapshot"):
        for blob in shown[part]:
            say(f"{part:12} {blob['name']}  {blob['size_bytes']:,} bytes")
    steps = [f"snapshot of {way['snapshot']}"] if plan.snapshot else []
    steps += [f"{hop['base']} → {hop['version']}" for hop in hops]
    say(f"{'from nothing':12} {', '.join(steps)}: {plan.size_bytes:,} bytes")


@app.command(epilog=EPILOG)
def verify(
    run: RunOption = None, last: Last = False, policy: PolicyName = None, store: Store = None, as_json: Json = False
) -> None:
    """Read every object and every version, and say what is not whole. Exit code 6 if something is damaged."""
    from astraflow.weights.inspection import verify as find
    from storage.errors import DataError

    place = _place(run, policy, store)
    findings = [dataclasses.asdict(finding) for finding in find(place.store, place.keys, place.policy)]
    damaged = [finding for finding in findings if finding["kind"] != "gone"]
    if as_json:
        print_json({"policy": place.policy, "findings": findings})
    for finding in findings if not as_json else ():
        say(f"{finding['kind']:12} {finding['where']}: {finding['what']}")
    if damaged:
        raise DataError(
            f"{len(damaged)} things are not as their manifests say",
            where=place.keys.weights(place.policy),
            remedy="Restore the objects from a mirror; readers go around them where another way is left",
            kind="damaged",
        )
    if not as_json:
        say(f"{place.policy}: nothing is damaged")


@app.command(epilog=EPILOG)
def diff(
    one: Version,
    other: Version,
    run: RunOption = None,
    last: Last = False,
    policy: PolicyName = None,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Show what differs between two versions, a row a tensor; steps in units in the last place."""
    from astraflow.weights.inspection import compare

    place = _place(run, policy, store)
    for version in (one, other):
        _reader(place, version)
    rows = [dataclasses.asdict(row) for row in compare(place.store, place.keys, place.policy, one, other)]
    _table(rows, ["tensor", "words", "changed", "share", "one_step", "largest_step"], as_json=as_json)


@app.command(epilog=EPILOG)
def sparsity(
    run: RunOption = None,
    last: Last = False,
    policy: PolicyName = None,
    first: Annotated[int, typer.Option("--from", min=1, help="First version.")] = 1,
    until: Annotated[int | None, typer.Option("--until", help="Last version; left out: the newest.")] = None,
    picture: Annotated[Path | None, typer.Option("--picture", metavar="FILE.svg", help="Draw it there.")] = None,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Show how many weights change a version: by version, layer, kind of tensor and learning rate."""
    from astraflow.weights.sparsity import GROUPINGS, chart, grouped, measure
    from storage.errors import ConfigError

    place = _place(run, policy, store)
    changes = list(measure(place.store, place.keys, place.policy, rates=_rates(place), first=first, last=until))
    if not changes:
        raise ConfigError(
            "no version in that range changed the weights of the one before",
            where=place.keys.weights(place.policy),
            remedy="`astraflow weights list` shows what there is",
            kind="empty",
        )
    if picture is not None:
        picture.write_text(chart(changes, place.policy), encoding="utf-8")
    versions = {change.version: change for change in changes}.values()
    shipped, full = sum(each.size_bytes for each in versions), sum(each.full_bytes for each in versions)
    found: dict[str, Any] = {by: [dataclasses.asdict(share) for share in grouped(changes, by)] for by in GROUPINGS}
    if as_json:
        print_json(
            {"policy": place.policy, "versions": len(versions), "shipped_bytes": shipped, "full_bytes": full, **found}
        )
        return
    for by in GROUPINGS:
        _table([{**row, by: row["group"]} for row in found[by]], [by, "words", "changed", "share"], as_json=False)
    say(f"{len(versions)} versions, {shipped:,} bytes shipped of {full:,}: 1/{full / max(1, shipped):.0f}")


@app.command(epilog=EPILOG)
def export(
    version: Version,
    to: ToFolder,
    run: RunOption = None,
    last: Last = False,
    policy: PolicyName = None,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Write a version as a Hugging Face folder that transformers (or peft, for an adapter) loads."""
    from infra.commands.taking_out import write_out

    place = _place(run, policy, store)
    write_out(place.store, place.keys, place.policy, to, version, as_json=as_json)


@app.command(epilog=EPILOG)
def collect(
    run: RunOption = None,
    last: Last = False,
    policy: PolicyName = None,
    keep: Annotated[list[int] | None, typer.Option("--keep", help="A version that stays, beside the newest.")] = None,
    newest_only: Annotated[bool, typer.Option("--newest-only", help="Give up all versions but the newest.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go; delete nothing.")] = False,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Delete what nobody can need of a run that has stopped: leftovers; with --keep, all other versions too."""
    from astraflow.weights.garbage import collect as delete
    from astraflow.weights.garbage import find_garbage

    if not dry_run:
        named_run(run, store, last=last)
    place = _place(run, policy, store)
    if not dry_run:
        _must_have_stopped(place)
    chosen = (keep or []) if keep or newest_only else None
    garbage = find_garbage(place.store, place.keys, place.policy, keep=chosen)
    if not dry_run:
        delete(place.store, garbage)
    if as_json:
        print_json({**dataclasses.asdict(garbage), "deleted": not dry_run})
        return
    verb = "would go" if dry_run else "are gone"
    say(f"{len(garbage.keys)} objects of {garbage.size_bytes:,} bytes {verb}; {garbage.kept_bytes:,} bytes stay")


def _place(run: str | None, policy: str | None, store: str | None) -> Place:
    """The policy that is meant. Raises ``ConfigError`` when that is not clear."""
    from astraflow.recipe import load_run_config
    from infra.places import find_run, open_named
    from storage.errors import ConfigError
    from storage.keys import RunKeys

    opened = open_named(store)
    name = find_run(opened, run)
    policies = sorted(load_run_config(opened, name).policies)
    if policy is None and len(policies) > 1:
        problem = "the run has several policies"
    elif policy is not None and policy not in policies:
        problem = f"the run {name} has no policy {policy!r}"
    else:
        return Place(opened, RunKeys(name), policy or policies[0])
    raise ConfigError(problem, where="--policy", remedy=f"Name one of: {', '.join(policies)}", kind="policy")


def _reader(place: Place, version: int) -> Subscriber:
    """A reader of the policy, once it is sure that there is such a version."""
    from astraflow.weights.subscriber import Subscriber
    from storage.errors import ConfigError

    reader = Subscriber(place.store, place.keys, place.policy)
    newest = reader.newest()
    if version > newest:
        raise ConfigError(
            f"policy {place.policy} of {place.keys.run} has no version {version}",
            where=place.keys.weights(place.policy),
            remedy=f"There are 0 to {newest}" if newest >= 0 else "None is published yet",
            kind="version",
        )
    return reader


def _rates(place: Place) -> dict[int, float]:
    """Learning rates by version, from the trainer's rows of steps; empty where there are none."""
    from functools import partial

    from storage.fetch import fetch_all
    from storage.tables import read_table

    keys = [info.key for info in place.store.list(place.keys.steps(place.policy)) if info.key.endswith(".parquet")]
    rates: dict[int, float] = {}
    for table in fetch_all(place.store, partial(read_table, place.store), keys):
        for row in table.to_pylist():
            if row.get("lr") is not None and row.get("version", -1) >= 0:
                rates[row["version"]] = row["lr"]
    return rates


def _must_have_stopped(place: Place) -> None:
    """While a run goes on, a blob without a manifest may be that of a publish under way."""
    from astraflow.follow import RunFollower
    from astraflow.recipe import load_run_config
    from storage.errors import ConfigError

    follower = RunFollower(place.store, load_run_config(place.store, place.keys.run))
    follower.poll()
    if not follower.is_over:
        raise ConfigError(
            f"the run {place.keys.run} has not stopped, so its weights may still be needed",
            where="collect",
            remedy=f"Try --dry-run, or stop it: `astraflow stop {place.keys.run}`",
            kind="running",
        )


def _table(rows: Sequence[dict[str, Any]], columns: list[str], *, as_json: bool) -> None:
    from rich.console import Console

    from infra.display import rows as show_rows

    if as_json:
        print_json(rows)
    else:
        show_rows(Console(), columns, rows)
