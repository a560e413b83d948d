"""Can one local stack carry many long-lived flow runs? Nothing may be locked, nothing may die, the pages stay fresh.

    python tests/benchmarks/many_flows.py [--flows 10] [--minutes 10] [--postgres] [--json]

Runs of five flow runs each (experiment, manager, trainer, two pools) that take their time, on a Prefect server of this
script's own: SQLite, or with ``--postgres`` a PostgreSQL of its own (Debian's binaries). Exit code 1 if a log says
«database is locked», a flow run ended, or a page was older than 30 s at any look.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from infra.local_stack import DATABASE, down, up
from infra.processes import Process

FLOWS_A_RUN = 5
FRESH_S = 30.0
LOOK_EVERY_S = 5.0
SAYINGS = ("database is locked", "QueuePool limit", "TimeoutError", "500 Internal Server Error")
ROOT = Path(__file__).parents[2]

RECIPE = """
name = "many"
[problems]
source = "addition"
options = { digits = 1, count = 64 }
reward = { name = "tests.e2e.rewards:Unhurried", options = { seconds = 2.0 } }
[policies.solver]
model = "tiny-qwen3"
sampling = { max_tokens = 2 }
[dataflow]
group_size = 2
[trainer]
steps = 1000000
batch_size = 4
[pools]
one = { capacity = 2 }
two = { capacity = 2 }
"""


def main() -> None:
    """Start, watch, end, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flows", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--postgres", action="store_true")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="astraflow-many-")))
        os.environ.pop("PREFECT_API_URL", None)
        os.environ.update(ASTRAFLOW_HOME=str(folder / "home"), ASTRAFLOW_STORE=str(folder / "store"))
        os.environ["PYTHONPATH"] = str(ROOT)
        if arguments.postgres:
            os.environ[DATABASE] = stack.enter_context(postgres(folder / "postgres"))
        stack.callback(down, folder / "home")
        report = watch(folder, runs=-(-arguments.flows // FLOWS_A_RUN), minutes=arguments.minutes)
    report |= {"machine": f"{platform.machine()}, {os.cpu_count()} cores"}
    report |= {"database": "postgresql" if arguments.postgres else "sqlite"}
    report["passed"] = not report["said"] and not report["ended"] and report["page_age_max_s"] <= FRESH_S  # type: ignore[operator]
    print(json.dumps(report, indent=2) if arguments.json else "\n".join(f"{k:<18} {v}" for k, v in report.items()))
    sys.exit(0 if report["passed"] else 1)


def watch(folder: Path, *, runs: int, minutes: float) -> dict[str, object]:
    """Let ``runs`` runs go for a while and look at their pages, states and logs."""
    home = folder / "home"
    server, _ = up(home)
    (folder / "many.toml").write_text(RECIPE)
    names = [f"many-{number}" for number in range(runs)]
    for name in names:
        command = [sys.executable, "-m", "infra.cli", "run", str(folder / "many.toml"), f"name={name}", "--detach"]
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    os.environ.update(PREFECT_API_URL=server.api_url, PREFECT_HOME=str(home / "prefect"))
    asked = Prefect(names)
    wait_until_running(asked, runs * FLOWS_A_RUN)
    ages: list[float] = []
    latencies: list[float] = []
    states: dict[str, int] = {}
    size_before = database_bytes(home)
    end = time.monotonic() + minutes * 60
    while time.monotonic() < end:
        before = time.monotonic()
        ages += asked.page_ages_s()
        states = asked.states()
        latencies.append(time.monotonic() - before)
        time.sleep(LOOK_EVERY_S)
    latencies.sort()
    return {
        "flows": runs * FLOWS_A_RUN,
        "minutes": minutes,
        "looks": len(latencies),
        "said": sayings(home / "logs"),
        "states": states,
        "ended": sum(count for state, count in states.items() if state != "RUNNING"),
        "restarted": sum(states.values()) - runs * FLOWS_A_RUN,
        "page_age_max_s": round(max(ages), 1),
        "page_age_mean_s": round(sum(ages) / len(ages), 1),
        "look_p95_s": round(latencies[int(len(latencies) * 0.95)], 3),
        "database_kb_a_minute": round((database_bytes(home) - size_before) / 1000 / minutes, 1),
        "server_rss_mb": resident_mb(server.server),
        "steps": steps(folder, names),
    }


class Prefect:
    """What the script asks the server for. Made after the environment says which server."""

    def __init__(self, names: list[str]) -> None:
        from prefect.client.orchestration import get_client

        self._client, self._names = get_client, names

    def states(self) -> dict[str, int]:
        from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterTags

        found: dict[str, int] = {}
        with self._client(sync_client=True) as client:
            for name in self._names:
                tagged = FlowRunFilter(tags=FlowRunFilterTags(all_=[f"run:{name}"]))
                for flow_run in client.read_flow_runs(flow_run_filter=tagged):
                    state = flow_run.state.type.value if flow_run.state else "SCHEDULED"
                    found[state] = found.get(state, 0) + 1
        return found

    def page_ages_s(self) -> list[float]:
        """Seconds since each run's page was written; none before the first time."""
        from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey

        ages = []
        with self._client(sync_client=True) as client:
            for name in self._names:
                wanted = ArtifactFilter(key=ArtifactFilterKey(any_=[f"run-{name}"]))
                pages = client.read_artifacts(artifact_filter=wanted)
                ages += [(datetime.now(UTC) - page.updated).total_seconds() for page in pages if page.updated]
        return ages


def wait_until_running(asked: Prefect, flows: int) -> None:
    """All flow runs run and every run has its page."""
    deadline = time.monotonic() + 300
    while asked.states().get("RUNNING", 0) < flows or not asked.page_ages_s():
        if time.monotonic() > deadline:
            raise SystemExit(f"after 300 s: {asked.states()}")
        time.sleep(2)


def sayings(logs: Path) -> dict[str, int]:
    """How often the logs of server, runner and flow runs say what they must not."""
    texts = [path.read_text(errors="replace") for path in logs.rglob("*.log")]
    counts = {saying: sum(text.count(saying) for text in texts) for saying in SAYINGS}
    return {saying: count for saying, count in counts.items() if count}


def database_bytes(home: Path) -> int:
    return sum(path.stat().st_size for path in (home / "prefect").glob("prefect.db*"))


def resident_mb(process: Process) -> float:
    status = Path(f"/proc/{process.pid}/status")
    lines = status.read_text().splitlines() if status.exists() else []
    return round(sum(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024, 1)


def steps(folder: Path, names: list[str]) -> int:
    from astraflow import open_run

    return sum(open_run(f"{folder / 'store'}/{name}").figures().steps for name in names)


@contextlib.contextmanager
def postgres(folder: Path) -> Iterator[str]:
    """A PostgreSQL on this machine for the length of a block; its URL. As root it runs as ``postgres``."""
    binaries = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    if not binaries:
        raise SystemExit("no PostgreSQL here: apt-get install postgresql")
    folder.mkdir()
    as_user: list[str] = []
    if os.geteuid() == 0:
        shutil.chown(folder, "postgres", "postgres")
        folder.parent.chmod(0o755)
        as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    data = folder / "data"
    quiet = {"stdout": subprocess.DEVNULL, "cwd": folder}
    initdb = [*as_user, str(binaries[-1] / "initdb"), "-D", str(data), "-A", "trust", "-U", "prefect"]
    subprocess.run(initdb, check=True, **quiet)  # type: ignore[call-overload]
    options = ["-D", str(data), "-p", str(port), "-k", str(folder), "-c", "listen_addresses=127.0.0.1"]
    server = subprocess.Popen([*as_user, str(binaries[-1] / "postgres"), *options], stderr=subprocess.DEVNULL, **quiet)  # type: ignore[call-overload]
    try:
        ready = [str(binaries[-1] / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(port)]
        while subprocess.run(ready, check=False).returncode != 0:
            assert server.poll() is None, "PostgreSQL did not start"
            time.sleep(0.2)
        yield f"postgresql+asyncpg://prefect@127.0.0.1:{port}/postgres"
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(30)


if __name__ == "__main__":
    main()
