"""The two regions of ``make bench-regions``: what crosses their link is counted, and nothing is left behind."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.benchmarks import region_network
from tests.benchmarks.region_network import network

BENCHMARKS = Path(region_network.__file__).parent
ROOT = BENCHMARKS.parents[1]
WHY_NOT = region_network.missing()
pytestmark = pytest.mark.skipif(WHY_NOT != "", reason=WHY_NOT)

RECEIVE = """
import socket
server = socket.create_server(("10.91.0.2", 9))
print(flush=True)
server.accept()[0].recv(200_000, socket.MSG_WAITALL)
"""
SEND = """
import socket
from tests.benchmarks.region_network import claim
s = socket.socket()
claim(s, "mirror")
s.connect(("10.91.0.2", 9))
s.sendall(bytes(200_000))
"""
USE = """
import json
from storage import open_store
for bucket in ("home", "far"):
    store = open_store(f"s3://{bucket}/x")
    store.create("a", bytes(100_000))
    assert store.get("a") == bytes(100_000)
print(json.dumps([info.size_bytes for info in open_store("s3://far/x").list("")]))
"""


def script(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A benchmark's module, which finds its siblings beside it."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module(name)


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def env() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def test_what_a_lane_sends_is_counted_as_its_own() -> None:
    with network(50) as made:
        receiver = subprocess.Popen(made.inside("far") + python(RECEIVE), stdout=subprocess.PIPE)
        assert receiver.stdout is not None
        receiver.stdout.readline()
        subprocess.run(made.inside("home") + python(SEND), check=True, env=env(), cwd=ROOT)
        receiver.wait(20)
        receiver.stdout.close()
        sent = made.sent_bytes()
    assert 200_000 < sent["home"]["mirror"] < 230_000  # headers are counted, too
    assert sent["home"]["pools"] == sent["home"]["trainer"] == sent["far"]["mirror"] == 0
    assert 0 < sent["far"]["other"] < 20_000  # what the receiver's socket, which claimed nothing, acknowledged


def test_each_end_is_as_slow_as_the_link() -> None:
    with network(50) as made:
        for name in made.namespaces.values():
            shown = subprocess.run(
                ["tc", "-n", name, "class", "show", "dev", region_network.DEVICE], check=True, capture_output=True
            ).stdout.decode()
            lanes = shown.splitlines()
            assert len(lanes) == 1 + len(region_network.LANES) + 1
            assert all("ceil 50Mbit" in lane for lane in lanes)


def test_two_networks_side_by_side_leave_nothing() -> None:
    before = region_network.namespaces()
    with pytest.raises(KeyboardInterrupt), network(50) as one, network(50) as other:
        names = {*one.namespaces.values(), *other.namespaces.values()}
        ports = {*one.first_ports.values(), *other.first_ports.values()}
        assert len(names) == len(ports) == 4
        assert names <= set(region_network.namespaces())
        raise KeyboardInterrupt
    assert region_network.namespaces() == before


def test_a_network_that_cannot_be_made_says_why_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = region_network.namespaces()
    with pytest.raises(ValueError, match="-1 Mbit/s"), network(-1):
        pass
    (tmp_path / "tc").write_text("#!/bin/sh\necho Specified qdisc kind is unknown. >&2; exit 2\n")
    (tmp_path / "tc").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with (
        pytest.raises(RuntimeError, match=r"^tc -n astraflow-\S+ qdisc add .*: Specified qdisc kind is unknown\."),
        network(50),
    ):
        pass
    assert region_network.namespaces() == before
    assert region_network.missing().startswith("tc -n")


def test_namespaces_of_a_process_that_is_gone_are_taken_away_and_no_others() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    names = [f"{region_network.PREFIX}-{owner}-7-home" for owner in (gone.pid, os.getpid())]
    for name in names:
        subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        region_network.sweep()
        assert [name in region_network.namespaces() for name in names] == [False, True]
    finally:
        subprocess.run(["ip", "netns", "del", names[1]], check=True)


@pytest.mark.s3
def test_a_request_goes_where_its_bucket_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = script("region_run", monkeypatch)
    with network(100) as made:
        home = run.Spec("home", str(tmp_path / "home"), 0.01, made.first_ports["home"])
        with run.gateway(home, made) as keys:
            far = run.Spec("far", str(tmp_path / "far"), 0.01, made.first_ports["far"], run.asdict(keys))
            with run.gateway(far, made):
                place = env() | run.at_gate(keys, "trainer")
                command = [*made.inside("home"), *python(USE)]
                done = subprocess.run(command, check=True, env=place, capture_output=True, text=True)
                sent = made.sent_bytes()
    assert json.loads(done.stdout) == [100_000]
    for region in ("home", "far"):  # one object there, the same back; those of the near bucket cross nothing
        assert 100_000 < sent[region]["trainer"] < 130_000
        assert sent[region]["mirror"] == sent[region]["pools"] == 0


@pytest.mark.s3
def test_a_benchmark_that_is_told_to_end_leaves_no_process_and_no_namespace(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "regions.py"), "--parts", "reward", "--seeds", "0"]
    with (tmp_path / "log").open("wb") as log:
        child = subprocess.Popen(command, env=env() | {"TMPDIR": str(tmp_path)}, stdout=log, stderr=log)
    try:
        inside: set[int] = set()
        deadline = time.monotonic() + 120
        while not any("weed" in Path(f"/proc/{pid}/cmdline").read_text() for pid in inside):
            assert child.poll() is None and time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.2)
            inside = pids_of(child.pid)
        child.send_signal(signal.SIGTERM)
        assert child.wait(90) == 128 + signal.SIGTERM
    finally:
        child.kill()
    assert not [pid for pid in inside if Path(f"/proc/{pid}").exists()]
    assert not [name for name in region_network.namespaces() if f"-{child.pid}-" in name]
    assert [path.name for path in tmp_path.iterdir()] == ["log"]


def pids_of(owner: int) -> set[int]:
    """The processes in the namespaces that a process has made."""
    names = [name for name in region_network.namespaces() if f"-{owner}-" in name]
    shown = [subprocess.run(["ip", "netns", "pids", name], check=False, capture_output=True).stdout for name in names]
    return {pid for pid in map(int, b"".join(shown).split()) if Path(f"/proc/{pid}").exists()}


def test_what_is_paced_takes_its_time_and_says_when_it_took_more(monkeypatch: pytest.MonkeyPatch) -> None:
    process = script("region_process", monkeypatch)
    stamps = process.Stamps()
    began = time.monotonic()
    assert process.paced(lambda x: x + 1, 0.05, stamps)(1) == 2
    assert time.monotonic() - began >= 0.05
    process.paced(time.sleep, 0.001, stamps)(0.01)
    assert stamps.times == {"paced/turns": 2.0, "paced/late": 1.0}


def test_what_is_missed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    regions = script("regions", monkeypatch)
    good = {
        "reward_gap": -0.05,
        "reward_gap_allowed": 0.06,
        "trainer_wait_ratio": 0.025,
        "trainer_wait_ratio_one_region": 0.02,
    }
    assert regions.missed(good) == []
    assert len(regions.missed({**good, "reward_gap_allowed": 0.03, "trainer_wait_ratio": 0.04})) == 2
    rows = [{"step": n, "wait_s": float(n > 5), "step_s": 2.0, "publish_s": 1.0} for n in range(1, 9)]
    assert regions.wait_ratio(rows, skip=5) == 0.25
    assert regions.wait_ratio(rows, skip=0) == round(3 / 27, 4)


def test_what_a_version_costs_on_the_link_is_what_the_mirror_moved_after_the_first_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def sent(mirror: int, pools: int) -> dict[str, dict[str, int]]:
        lanes = {"mirror": mirror, "pools": pools, "trainer": 0, "other": 0}
        return {"home": lanes, "far": {**lanes, "mirror": 10, "pools": 0}}

    found = {
        "stamps": {
            "pool.local": {"applied/0": 12.0, "applied/2": 25.0, "applied/3": 31.0, "applied/4": 44.0},
            "trainer": {f"published/{version}": 10.0 * version for version in range(5)},
        },
        "sent": [
            (20.0, sent(90_000, 0)),
            (26.0, sent(100_000, 500)),
            (35.0, sent(101_000, 1500)),
            (None, sent(103_000, 2500)),
        ],
        "versions": [{"version": v, "delta_bytes": 900, "full_bytes": 80_000} for v in range(5)],
        "batches": [{"step_s": 9.0}],
        "steps": [{"step": n, "wait_s": 1.0, "step_s": 8.0, "publish_s": 1.0} for n in range(1, 5)],
    }
    figures = script("regions", monkeypatch).weights_figures(found)
    assert (figures["link_bytes_per_version"], figures["full_bytes"]) == (1500, 80_000)
    assert figures["other_link_bytes_per_version"]["pools"] == 1000
    assert figures["first_versions_link_bytes"] == 100_010
    assert figures["publish_to_applied_s"] == {"p50": 4.0, "p95": 5.0, "n": 3}
    assert figures["first_version_to_applied_s"] == 12.0
    assert figures["weights_trainer_wait_ratio"] == 0.1
