"""``python -m infra.demo``: the whole system once, in minutes, on this machine: up, a run, its figures, down.

It leaves nothing running that did not run before, whether it ends, fails or is interrupted; the run itself stays in the
store.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from astraflow import open_run
from astraflow.pages.rows import clock
from astraflow.query import runs
from astraflow.report import chart, size
from infra import local_stack
from infra.places import RECIPES, find_server, named_store, read_recipe
from storage import open_store
from storage.errors import AstraFlowError, ServiceError
from storage.location import Location
from storage.store import ObjectStore

if TYPE_CHECKING:
    from infra.launch import Launched

RECIPE = "tiny-add"
QUERIES = (
    "select policy, n, reward_mean, lag_max from batches order by n desc limit 5",
    "select version, count(*) as n, avg(reward) as reward from trajectories group by version order by version limit 5",
    "select kind, count(*) as n, sum(delta_bytes) as shipped, sum(full_bytes) as full from versions group by kind",
)


def main() -> None:
    """Run the demo; the exit code says how it went."""
    console = Console(highlight=False, markup=False, soft_wrap=True)
    os.environ.pop("PREFECT_API_URL", None)  # the demo brings its own server
    home, start = local_stack.stack_home(), time.monotonic()
    was_up = (stack := local_stack.read_stack(home)) is not None and stack.is_alive
    code, left = 0, contextlib.ExitStack()  # what a demo that was cut short has to end in a stack that goes on
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # both end it cleanly
    try:
        _demo(console, sys.argv[1:], start, left)
    except KeyboardInterrupt:
        console.print("\nInterrupted.")
        code = 130
    except AstraFlowError as error:
        print(f"error: {error}", file=sys.stderr)  # noqa: T201
        code = error.exit_code
    finally:
        _end(console, home, left, was_up=was_up)
    sys.exit(code)


def _demo(console: Console, overrides: list[str], start: float, left: contextlib.ExitStack) -> None:
    console.print("Starting a Prefect server and a runner on this machine …")
    stack, _ = local_stack.up(local_stack.stack_home())
    console.print(f"  {stack.ui_url}  after {clock(time.monotonic() - start)}")
    store_url = named_store(None)
    name = _fresh_name(store_url)
    config = read_recipe(RECIPES / f"{RECIPE}.toml", [f"name={name}", *overrides], default_store=store_url)
    server = find_server()
    server.use()
    from infra import following, launch  # noqa: PLC0415  # prefect reads its settings when it is imported

    launched = launch.launch(server, config, resume=False)
    left.callback(_cancel, console, launched, name)
    console.print(f"  run {name}: {launched.url}")
    following.watch(open_store(config.store), name, launched, console)
    left.pop_all()
    figures = json.loads(open_run(f"{config.store}/{name}").figures().to_json())
    _tell(console, figures, launched.url, time.monotonic() - start)


def _tell(console: Console, figures: dict[str, Any], url: str, seconds: float) -> None:
    policy, own = next(iter(figures["policies"].items()))
    console.print(f"\nMean reward of {policy} per step (share of right sums, sampled at T = 1):\n")
    console.print(chart(own["rewards"]))
    console.print(
        f"\n  first 20 steps {_number(own['reward_first20'])}, last 20 steps {_number(own['reward_last20'])}; "
        f"lag mean {_number(own['lag_mean'])}, max {own['lag_max']}; {own['steps']} steps"
    )
    console.print(
        f"  weights shipped: {size(own['delta_bytes'])} for {own['versions']} versions; "
        f"as full copies {size(own['full_bytes'])}, {_times(own)} as much.\n"
        "  This tiny model is no measure of sparsity: at its high learning rate (3e-4) about half of the weights\n"
        "  change each step. At the rates of real models under 1 % do: see the 135M figures in README.md."
    )
    console.print(f"\nThe run's page in Prefect, while the server runs: {url}\nThree questions to try:")
    for query in QUERIES:
        console.print(f'  astraflow query --run {figures["run"]} "{query}"')
    console.print(f"\nThe demo took {clock(seconds)}.")


def _cancel(console: Console, launched: Launched, run: str) -> None:
    from infra import launch  # noqa: PLC0415  # as above

    try:
        launch.cancel(launched)
    except ServiceError as error:
        console.print(f"The run {run} may go on: {error}")
    else:
        console.print(f"The run {run} is being cancelled; `astraflow run --resume {run}` goes on.")


def _end(console: Console, home: Path, left: contextlib.ExitStack, *, was_up: bool) -> None:
    """Leave the machine as it was found: a stack that ran before goes on, the demo's own run does not."""
    if was_up:
        left.close()
        console.print("The local stack ran before the demo and still runs: `astraflow down` ends it.")
        return
    console.print("Ending the local stack …")
    local_stack.down(home)
    console.print("Nothing of it runs any more. `astraflow up` starts it again, with the run's pages.")


def _fresh_name(store_url: str) -> str:
    """``demo``, ``demo-2``, …: the first name that the store does not have."""
    location = Location.parse(store_url)
    if location.scheme == "file" and not location.path.is_dir():
        return "demo"
    taken = _names(open_store(store_url))
    return next(
        name for number in range(1, len(taken) + 2) if (name := f"demo-{number}" if number > 1 else "demo") not in taken
    )


def _names(store: ObjectStore) -> set[str]:
    return {entry.run for entry in runs(store)}


def _times(figures: dict[str, Any]) -> str:
    return f"{figures['full_bytes'] / figures['delta_bytes']:.1f} times" if figures["delta_bytes"] else "–"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


if __name__ == "__main__":
    main()
