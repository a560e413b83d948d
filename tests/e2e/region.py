"""A region with machines of its own: a Prefect worker that is no part of the local stack, and what it started.

Nothing of the stack's environment reaches it, so its flow runs look to the experiment like those of another machine:
only the store tells of them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from json import dumps, loads
from pathlib import Path
from typing import Any

import psutil

from astraflow.records import Status
from tests.e2e.runs import RunUnderTest, until
from tests.e2e.stack import ROOT, LocalStack

RECIPE = """
extends = "unhurried.toml"
name = "far"
[regions.west]
work_pool = "west-machines"
store = "west-bucket"
mirror_timeout_s = 5.0
[pools.west]
region = "west"
"""


class RegionUnderTest:
    """The machines of the region ``west``, with their own way to the store and, if named there, to Prefect's server."""

    def __init__(self, stack: LocalStack, folder: Path, environment: Mapping[str, str]) -> None:
        self.api_url = stack.stack.api_url
        self._folder = folder
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_", "ASTRAFLOW_", "AWS_"))}
        self._environment = {
            **kept,
            "PREFECT_API_URL": self.api_url,
            "PREFECT_HOME": str(folder / "prefect"),
            "PREFECT_WORKER_QUERY_SECONDS": "2",
            "PYTHONPATH": str(ROOT),
            **environment,
        }
        self.workers: list[subprocess.Popen[bytes]] = []

    def start_worker(self) -> None:
        """``prefect worker start``, as `astraflow up` prints it."""
        command = [str(Path(sys.executable).parent / "prefect"), "worker", "start", "--pool", "west-machines"]
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / f"worker-{len(self.workers)}.log").open("wb") as log:
            worker = subprocess.Popen(
                [*command, "--work-queue", "west"],
                cwd=self._folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self.workers.append(worker)

    def kill_worker(self) -> None:
        """The newest worker dies; what it started lives on."""
        self.workers[-1].kill()
        self.workers[-1].wait()

    def flow_processes(self) -> list[psutil.Process]:
        """All processes of flow runs here, also of workers that are dead."""
        home, workers = str(self._folder / "prefect"), [worker.pid for worker in self.workers]
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.pid in workers or process.status() == psutil.STATUS_ZOMBIE:
                    continue
                if process.environ().get("PREFECT_HOME") == home:
                    found.append(process)
        return found

    def kill_all(self) -> None:
        """The machines of the region lose their power: worker and flow runs die at once."""
        self.kill_worker()
        self.kill_flow_processes()
        until(lambda: not self.flow_processes(), "the end of the region's processes", 30)

    def kill_flow_processes(self) -> None:
        for process in self.flow_processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def log(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-4000:] for path in sorted(self._folder.glob("*.log")))

    def ask_server(self, path: str, body: Mapping[str, Any]) -> Any:
        """The Prefect server's answer to a POST."""
        request = urllib.request.Request(
            f"{self.api_url}{path}", dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return loads(answer.read())

    def flow_runs(self, run: RunUnderTest, child: str) -> list[dict[str, Any]]:
        """The flow runs of a child of a run, its first life first."""
        tags = {"all_": [f"run:{run.name}", f"child:{child}"]}
        found = self.ask_server("/flow_runs/filter", {"flow_runs": {"tags": tags}, "limit": 50})
        return sorted(found, key=lambda flow_run: str(flow_run["created"]))


@contextmanager
def region(stack: LocalStack, folder: Path, **environment: str) -> Iterator[RegionUnderTest]:
    """A region with one worker; whatever it started ends with the block."""
    there = RegionUnderTest(stack, folder, environment)
    try:
        there.start_worker()
        yield there
    finally:
        for worker in there.workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGKILL)
                worker.wait()
        there.kill_flow_processes()
        print(there.log())  # shown if the test fails


def pools(run: RunUnderTest, name: str) -> list[Status]:
    """The lives of a pool, in the order in which they showed themselves last."""
    return [status for status in run.statuses("pool") if status.name == name]


def committed(run: RunUnderTest, name: str) -> int:
    """Groups that all lives of a pool have committed, by what they say themselves."""
    return int(sum(status.figures.get("committed_groups", 0) for status in pools(run, name)))
