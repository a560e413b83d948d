"""``stop``, ``pause``, ``resume`` and ``scale``: what an operator asks of a run's manager, through the store."""

from __future__ import annotations

from typing import Annotated

import typer

from infra.commands.options import Json, Last, RunName, Store, named_run, print_json, say

Policy = Annotated[str | None, typer.Option("--policy", help="Only this policy; left out: all of the run.")]
Region = Annotated[str | None, typer.Option("--region", help="Only pools of this region; left out: of all.")]
Timeout = Annotated[float, typer.Option("--timeout", help="Seconds to wait for the manager's answer.")]


def stop(
    run: RunName = None,
    last: Last = False,
    store: Store = None,
    timeout_s: Annotated[float, typer.Option("--timeout", help="Seconds to wait for the end.")] = 120.0,
    as_json: Json = False,
) -> None:
    """End a run: trainers keep a checkpoint, pools hand back, and the log is closed."""
    from infra import wishes

    opened, name = named_run(run, store, last=last)
    reason = wishes.stop(opened, name, reason="astraflow stop", timeout_s=timeout_s)
    if as_json:
        print_json({"run": name, "stopped": reason})
    else:
        say(f"{name} has stopped: {reason}")


def pause(
    run: RunName = None,
    policy: Policy = None,
    region: Region = None,
    last: Last = False,
    store: Store = None,
    timeout_s: Timeout = 60.0,
    as_json: Json = False,
) -> None:
    """Give no more leases, until `resume`: at all, for a policy, or to a region. What is under way is finished."""
    from infra import wishes

    opened, name = named_run(run, store, last=last)
    wishes.pause(opened, name, policy or "", region=region or "", reason="astraflow pause", timeout_s=timeout_s)
    _tell(name, policy, region, "paused", f"`astraflow resume {name}` goes on", as_json=as_json)


def resume(
    run: RunName = None,
    policy: Policy = None,
    region: Region = None,
    last: Last = False,
    store: Store = None,
    timeout_s: Timeout = 60.0,
    as_json: Json = False,
) -> None:
    """Give leases again. (A run whose processes have ended goes on with `run --resume`.)"""
    from infra import wishes

    opened, name = named_run(run, store, last=last)
    wishes.resume(opened, name, policy or "", region=region or "", timeout_s=timeout_s)
    _tell(name, policy, region, "resumed", "leases are given again", as_json=as_json)


def scale(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run's name.")],
    region: Annotated[str, typer.Argument(metavar="REGION", help="A region of its pools.")],
    pools: Annotated[str, typer.Argument(metavar="N|auto", help="Pools from now on; auto: as load reports ask for.")],
    store: Store = None,
    timeout_s: Timeout = 60.0,
    as_json: Json = False,
) -> None:
    """Set how many pools a region has. Missing ones start; the last ones hand back and leave."""
    from astraflow.wishes import pools_of, scaled_text
    from infra import wishes

    opened, name = named_run(run, store, last=False)
    count = pools_of(pools)
    wanted = wishes.scale(opened, name, region, count, reason="astraflow scale", timeout_s=timeout_s)
    if as_json:
        print_json({"run": name, "region": region, "held": count is not None, "pools_wanted": wanted})
    else:
        say(f"{name}: {scaled_text(region, count, wanted)}")


def _tell(run: str, policy: str | None, region: str | None, state: str, then: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"run": run, "policy": policy, "region": region, "state": state})
    else:
        what = f", policy {policy}" if policy else f", region {region}" if region else ""
        say(f"{run}{what}: {state}; {then}")
