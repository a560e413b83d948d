"""Manager, pools and trainers speak to the store and to Prefect, never to each other: seen in the kernel's tables."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from urllib.parse import urlsplit

import pytest

from infra.s3_server import S3Server
from tests.e2e.runs import LIVES, RunUnderTest
from tests.e2e.sockets import SocketWatch, listening_ports
from tests.e2e.stack import PYTHON, LocalStack

STEPS = 6
BY_VERSION = "select policy, version, avg(reward) as reward, count(*) as n from trajectories group by all order by all"


@pytest.mark.e2e
@pytest.mark.parametrize("kind", ["local", "s3"])
def test_a_small_run_from_start_to_end(
    kind: str, stack: LocalStack, started: list[RunUnderTest], s3_store_url: str, s3_server: S3Server
) -> None:
    """On a folder and on S3: the run, what is seen of it meanwhile, its status and a query over it."""
    run = RunUnderTest(stack, f"{kind}-run", s3_store_url if kind == "s3" else None)
    started.append(run)
    run.start("small", f"trainer.steps={STEPS}", "pools.local.flush_s=0.1")

    watch = SocketWatch()
    while not run.view().is_over and run.is_followed:
        watch.look({process.pid: f"{role}-{process.pid}" for role in LIVES for process in run.lives(role)})
        time.sleep(0.2)
    (answer,) = run.answers()
    assert answer.ok().json["steps"] == STEPS

    assert watch.joined == set(), "two participants were connected"
    assert watch.listens == set(), "a participant listens"
    storage = {urlsplit(s3_server.endpoint).port} if kind == "s3" else set()
    prefect = {stack.stack.port, *listening_ports(stack.stack.runner.pid)}  # a runner tells its flow runs to cancel
    assert set().union(*watch.peers.values()) <= prefect | storage
    for role in LIVES:
        ports = set().union(*(found for name, found in watch.peers.items() if name.startswith(role)))
        assert ports & prefect, f"nothing was seen of a {role}"
        assert storage <= ports, f"a {role} was not seen to use the store"

    figures = run.check_finished(steps=STEPS)
    assert figures.lag_max is not None
    assert 0 <= figures.lag_max <= 2
    at = ("--store", run.store_url, "--json")
    status = stack.astraflow("status", run.name, *at).ok().json
    assert (status["state"], status["steps"], status["policies"]["solver"]["ended"]) == ("stopped", STEPS, "done")
    rows = stack.astraflow("query", BY_VERSION, "--run", run.name, *at).ok().json
    assert [row["version"] for row in rows] == sorted({row["version"] for row in rows})
    assert {row["policy"] for row in rows} == {"solver"}
    assert sum(row["n"] for row in rows) >= STEPS * 2 * 4
    listed = stack.astraflow("runs", *at).ok().json
    assert [(entry["run"], entry["state"]) for entry in listed if entry["run"] == run.name] == [(run.name, "stopped")]


def test_the_watch_sees_a_connection_where_there_is_one() -> None:
    """Otherwise the test above would say nothing."""
    code = "import socket, sys; s = socket.create_connection(('127.0.0.1', int(sys.argv[1]))); s.recv(1)"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        child = subprocess.Popen([PYTHON, "-c", code, str(listener.getsockname()[1])])
        try:
            accepted, _ = listener.accept()
            watch = SocketWatch()
            watch.look({os.getpid(): "one", child.pid: "two"})
            accepted.close()
        finally:
            child.wait(10)
    assert watch.joined == {("one", "two")}
    assert watch.listens == {"one"}
