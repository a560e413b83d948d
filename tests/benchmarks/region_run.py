"""One run of ``regions.py``, in the home region's namespace, and its figures as JSON.

    ip netns exec HOME python tests/benchmarks/region_run.py SPEC.json

Home has the run's store, the manager, the trainer and pools; ``far``, if a pool plays there, a store, a mirror and
pools.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from region_gateway import GATES, Spec, write_spec
from region_network import Network
from region_process import PACE_S, STEP_S
from run_processes import ROOT, start_run

from astraflow.bootstrap import create_run
from astraflow.query import Run
from astraflow.recipe import load_recipe
from infra.s3_server import S3Server
from storage import open_store

RUN = "run"
WATCH_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class RunSpec:
    """What to run."""

    recipe: str  # TOML
    regions: dict[str, str]  # of each pool that is started
    speeds: dict[str, float]  # of pools, as shares of full speed; of one that is not here: as quick as it is
    network: dict[str, Any]
    folder: str
    rtt_s: float
    pace_s: float = 0.0  # of a decode step at full speed
    step_s: float = 0.0  # of a trainer's step, at least

    @property
    def is_split(self) -> bool:
        """Whether there are two regions."""
        return "far" in self.regions.values()

    def place(self, role: str) -> tuple[str, str, dict[str, str]]:
        """The region and lane of a role, and how slow it is."""
        kind, _, name = role.partition(".")
        if kind == "mirror":
            return "far", "mirror", {}
        if kind == "pool":
            region, speed = self.regions[name], self.speeds.get(name)
            pace = {PACE_S: str(self.pace_s / speed)} if speed else {}
            return region, "pools" if region == "far" else "trainer", pace
        return "home", "trainer", {STEP_S: str(self.step_s)} if kind == "trainer" and self.step_s else {}


def run(spec: RunSpec) -> dict[str, Any]:
    """All of it. Raises ``RuntimeError`` with the end of a log."""
    folder, network = Path(spec.folder), Network(**spec.network)
    with contextlib.ExitStack() as stack:
        home = Spec("home", str(folder / "home"), spec.rtt_s, network.first_ports["home"])
        keys = stack.enter_context(gateway(home, network))
        if spec.is_split:
            far = Spec("far", str(folder / "far"), spec.rtt_s, network.first_ports["far"], asdict(keys))
            stack.enter_context(gateway(far, network))
        os.environ.update(at_gate(keys, "trainer"))
        config = load_recipe(_recipe(spec), default_store="s3://home/runs")
        store = open_store(config.store)
        create_run(store, config)
        roles = ["manager", "trainer", *(f"pool.{name}" for name in spec.regions)]
        roles += ["mirror.far"] if spec.is_split else []
        watch = stack.enter_context(watching(network))

        def place(role: str) -> tuple[Sequence[str], dict[str, str]]:
            region, lane, slowness = spec.place(role)
            return [*network.inside(region), *die_with_parent()], at_gate(keys, lane) | slowness

        script = Path(__file__).with_name("region_process.py")
        with start_run(config.store, RUN, folder, roles=roles, place=place, script=script, timeout_s=3600) as files:
            pass
        ended = network.sent_bytes()
        stamps = {role: json.loads(file.read_text()) for role, file in files.items()}
        return {"stamps": stamps, "sent": [*watch, (None, ended)], **_tables(Run(store, RUN))}


def _recipe(spec: RunSpec) -> Path:
    """The recipe, with its pools' regions."""
    file = Path(spec.folder) / "recipe.toml"
    places = "".join(f'[pools.{pool}]\nregion = "{region}"\n' for pool, region in spec.regions.items())
    stores = '[regions.far]\nstore = "s3://far/runs"\n' if spec.is_split else ""
    file.with_name("base.toml").write_text(spec.recipe)
    file.write_text(f'extends = "base.toml"\nname = "{RUN}"\n{places}{stores}')
    return file


def _tables(run: Run) -> dict[str, Any]:
    """What the run's own log says of its steps, pools and versions."""
    return {name: run.table(name).to_pylist() for name in ("batches", "steps", "pools", "versions")}


@contextlib.contextmanager
def gateway(spec: Spec, network: Network) -> Iterator[S3Server]:
    """A region's process; gives its server."""
    file = Path(spec.folder).with_suffix(".json")
    write_spec(spec, file)
    command = [*network.inside(spec.region), *die_with_parent(), sys.executable]
    command += [str(Path(__file__).with_name("region_gateway.py")), str(file)]
    with file.with_suffix(".log").open("w") as log:
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        child = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=env)
    assert child.stdout is not None
    try:
        said = child.stdout.readline()
        if not said:
            raise RuntimeError(f"the region {spec.region}: {file.with_suffix('.log').read_text()[-3000:]}")
        yield S3Server(**json.loads(said))
    finally:
        child.terminate()
        child.wait(20)


def at_gate(server: S3Server, lane: str) -> dict[str, str]:
    """The environment of a process of this lane."""
    return {**server.environment, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{GATES[lane]}"}


def die_with_parent() -> list[str]:
    """What stands before a command that shall not outlive this process, even if that is killed."""
    return ["setpriv", "--pdeathsig", "TERM", "--"]


@contextlib.contextmanager
def watching(network: Network) -> Iterator[list[tuple[float, dict[str, dict[str, int]]]]]:
    """The link's counters again and again, each with its time."""
    seen: list[tuple[float, dict[str, dict[str, int]]]] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(WATCH_EVERY_S):
            seen.append((time.monotonic(), network.sent_bytes()))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


def write_run_spec(spec: RunSpec, path: Path) -> None:
    """For ``main``."""
    path.write_text(json.dumps(asdict(spec)))


def _end(signum: int, frame: object) -> None:
    raise SystemExit(128 + signum)  # so that blocks end what they began


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    print(json.dumps(run(RunSpec(**json.loads(Path(sys.argv[1]).read_text())))))
