"""What leases ahead are worth on a far store: groups a second of a pool whose places are all that limits a run.

    python tests/benchmarks/leases_ahead.py [--steps 24] [--play-s 4] [--json]

A real run (manager, pool and trainer as processes, the tiny model) on an S3 server behind a line of 300 ms there and
back. The pool has four places, a play takes at least ``play-s``, and admission leaves room for more. Once the pool asks
for leases ahead, once it is kept from asking. ``busy`` is the share of the places' time in which they play, from the
first quarter of the groups on: by then the pool knows its own times.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from latency import RECIPE, environment, place
from run_processes import Stamps, main, read_stamps, start_run

from astraflow.bootstrap import create_run
from astraflow.recipe import load_recipe
from infra.s3_server import S3Server, s3_server
from storage import open_store

PLACES = 4
OWN = ("name=leases-ahead", "trainer.batch_size=4", f"pools.local.capacity={PLACES}")
"""What differs from the run whose latencies are measured."""
PLAY = "BENCHMARK_PLAY_S"
KEEP = "BENCHMARK_NO_LEASES_AHEAD"


def pace() -> None:
    """Let plays take their time, and keep the pool from asking for leases ahead if the environment says so."""
    from astraflow.raas import player
    from astraflow.raas.prefetch import Prefetch

    play, at_least_s = player.play_group, float(os.environ[PLAY])

    async def paced(lease: Any, *rest: Any) -> Any:
        done, _ = await asyncio.gather(play(lease, *rest), asyncio.sleep(at_least_s))
        return done

    player.play_group = paced
    if os.environ.get(KEEP):
        Prefetch.asks = lambda self: None  # type: ignore[method-assign]


def measure(server: S3Server, steps: int, play_s: float, *, ahead: bool) -> dict[str, float]:
    """One run's groups a second and the share of time in which its pool's places play."""
    with tempfile.TemporaryDirectory(prefix="astraflow-ahead-") as text, contextlib.ExitStack() as stack:
        folder = Path(text)
        url, env = stack.enter_context(place("s3_300ms", folder, server))
        stack.enter_context(environment(env))
        recipe = folder / "recipe.toml"
        recipe.write_text(RECIPE.format(steps=steps, staleness=8, prefetch=1, flush=""))
        config = load_recipe(recipe, OWN, default_store=url)
        create_run(open_store(config.store), config)
        env = {**env, PLAY: str(play_s), KEEP: "" if ahead else "1"}
        with start_run(config.store, config.name, folder, env, script=Path(__file__).resolve()) as files:
            pass
        began = sorted(read_stamps(files)["started"].values())
    late = began[len(began) // 4 :]
    groups_per_s = (len(late) - 1) / (late[-1] - late[0])
    return {"groups_per_s": round(groups_per_s, 3), "busy": round(groups_per_s * play_s / PLACES, 3)}


def benchmark() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--play-s", type=float, default=4.0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="astraflow-s3-") as folder, s3_server(Path(folder)) as server:
        found = {
            name: measure(server, given.steps, given.play_s, ahead=name == "ahead") for name in ("ahead", "without")
        }
    gain = round(found["ahead"]["groups_per_s"] / found["without"]["groups_per_s"], 3)
    if given.json:
        print(json.dumps({"benchmark": "leases_ahead", **found, "gain": gain, "play_s": given.play_s}, indent=2))
        return
    for name, row in found.items():
        print(f"{name:8} {row['groups_per_s']:.3f} groups a second, places busy {row['busy']:.0%}")
    print(f"gain: {gain:.2f}")


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):  # a participant's process
        if sys.argv[1] == "pool":
            pace()
        main(Stamps())
    else:
        benchmark()
