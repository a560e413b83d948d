"""Opening, refreshing and listing runs, and what a damaged log does."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import astraflow
from astraflow import records as r
from astraflow.query import Run, open_run, runs
from storage import open_store
from storage.errors import ConfigError, DataError, StoreError
from storage.memory import MemoryStore
from tests.query.conftest import RunWriter


def test_a_run_opens_by_its_url(run: Run) -> None:
    url = f"{run.store.url}/hand"
    opened = astraflow.open_run(url + "/")
    assert opened.config == run.config
    assert opened.table("parts").equals(run.table("parts"))
    assert repr(opened) == f"Run({url})"


@pytest.mark.parametrize("url", ["hand", "", "s3://bucket", "/", "store/Not A Name"])
def test_what_is_no_url_of_a_run_is_refused(url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_run(url)
    assert caught.value.kind in ("run_url", "store_url")


def test_a_run_that_is_not_there_is_refused(writer: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        open_run(f"{writer.store.url}/hand")
    assert caught.value.kind == "no_run"


def test_a_run_before_its_first_decision_is_empty_and_created(writer: Any) -> None:
    config = writer.config()
    run = open_run(f"{writer.store.url}/hand")
    assert run.config == config
    figures = run.figures()
    assert (figures.state, figures.seconds, figures.steps, figures.tokens_per_s) == ("created", 0, 0, None)
    tables = ("parts", "batches", "steps", "versions", "decisions", "pools")
    assert [run.table(name).num_rows for name in tables] == [0] * 6


def test_refresh_takes_in_what_came_and_only_that(writer: Any) -> None:
    w, pool = writer, "pool-a-1"
    w.config()
    w.decide(1, 0.0, {}, w.epoch(1))
    run = open_run(f"{w.store.url}/hand")
    assert run.figures().decisions == 1
    w.decide(1, 1.0, {pool: w.say(pool, w.joined("a", "us"))}, w.leased(pool, [0, 1], [0, 0]))
    w.commit(pool, "solver", 0, {0: [0, 1]}, now=2.0)
    assert run.figures().decisions == 1
    assert run.refresh().figures().decisions == 3
    assert run.table("parts").equals(open_run(f"{w.store.url}/hand").table("parts"))
    assert run.refresh().figures().decisions == 3


def test_the_state_follows_the_decisions(writer: Any) -> None:
    w = writer
    w.config()
    run = open_run(f"{w.store.url}/hand")
    states, reasons = [], []
    for now, decision in enumerate(
        [
            w.epoch(1),
            r.Paused(policy="", reason="looking"),
            r.Resumed(policy=""),
            r.DrainRequested(participants=["pool-a-1"], reason="autoscaler"),
            r.DrainRequested(participants=[], reason="all ended"),
            r.Stopped(reason="all ended"),
        ]
    ):
        w.decide(1, float(now), {}, decision)
        figures = run.refresh().figures()
        states.append(figures.state)
        reasons.append(figures.reason)
    assert reasons[1:3] == ["looking", ""]
    assert states == ["running", "paused", "running", "running", "draining", "stopped"]
    assert run.figures().reason == "all ended"


def test_a_paused_policy_says_why_and_leaves_the_run_running(writer: Any) -> None:
    writer.config()
    writer.decide(1, 0.0, {}, writer.epoch(1), r.Paused(policy="solver", reason="nothing was kept"))
    figures = open_run(f"{writer.store.url}/hand").figures()
    assert (figures.state, figures.policies["solver"].paused) == ("running", "nothing was kept")
    assert figures.policies["verifier"].paused is None


def test_a_paused_region_says_why_and_leaves_the_run_running_while_another_plays(writer: Any) -> None:
    w = writer
    w.config()
    w.decide(1, 0.0, {}, w.epoch(1), r.Paused(policy="", region="us", reason="too dear"))
    run = open_run(f"{w.store.url}/hand")
    assert (run.figures().state, run.figures().regions_paused) == ("running", {"us": "too dear"})
    w.decide(1, 1.0, {}, r.Paused(policy="", region=r.EVERYWHERE, reason="no region plays: us (too dear)"))
    figures = run.refresh().figures()
    assert (figures.state, figures.reason) == ("paused", "no region plays: us (too dear)")
    assert figures.regions_paused == {"us": "too dear"} and figures.policies["solver"].paused is None
    w.decide(1, 2.0, {}, r.Resumed(policy="", region="us"), r.Resumed(policy="", region=r.EVERYWHERE))
    figures = run.refresh().figures()
    assert (figures.state, figures.regions_paused) == ("running", {})


def test_an_ended_trainer_shows_why(writer: Any) -> None:
    w, trainer = writer, "trainer-solver-1"
    w.config()
    cursor = w.say(trainer, r.Ended(policy="solver", reason="done"), r.Left(reason="done"))
    w.decide(1, 0.0, {trainer: cursor}, w.epoch(1))
    policies = open_run(f"{w.store.url}/hand").figures().policies
    assert (policies["solver"].ended, policies["verifier"].ended) == ("done", None)


def test_a_pool_s_end_shows(writer: Any) -> None:
    w = writer
    w.config()
    pools = ["pool-a-1", "pool-a-2", "pool-a-3"]
    cursors = {pool: w.say(pool, w.joined("a", "us")) for pool in pools}
    cursors["pool-a-2"] = w.say("pool-a-2", r.Draining(reason="asked"))
    cursors["pool-a-3"] = w.say("pool-a-3", r.Draining(), r.Left())
    cursors["operator-1"] = w.say("operator-1", r.Wanted(what="lost", target="pool-a-1"))
    w.decide(1, 0.0, cursors, w.epoch(1))
    run = open_run(f"{w.store.url}/hand")
    states = {row["participant"]: row["state"] for row in run.table("pools").to_pylist()}
    assert states == {"pool-a-1": "lost", "pool-a-2": "draining", "pool-a-3": "left"}
    assert run.figures().pools == {"draining": 1, "left": 1, "lost": 1}


def test_a_pool_that_beats_again_is_not_lost(writer: Any) -> None:
    w = writer
    w.config()
    pools = ["pool-a-1", "pool-a-2"]
    cursors = {pool: w.say(pool, w.joined("a", "us")) for pool in pools}
    cursors["pool-a-2"] = w.say("pool-a-2", r.Draining(reason="asked"))
    w.decide(1, 0.0, cursors, w.epoch(1))
    wish = w.say("operator-1", *(r.Wanted(what="lost", target=pool) for pool in pools))
    w.decide(1, 1.0, {"operator-1": wish})
    run = open_run(f"{w.store.url}/hand")
    assert run.figures().pools == {"lost": 2}
    w.decide(1, 2.0, {}, beats=pools)
    assert run.refresh().figures().pools == {"draining": 1, "live": 1}


def test_a_reading_that_failed_is_done_again_whole() -> None:
    class Shaky(MemoryStore):
        broken = ""

        def get(self, key: str) -> bytes:
            if self.broken and self.broken in key:
                raise StoreError("away", where=key, remedy="", kind="unreachable")
            return super().get(key)

    store = Shaky("memory://shaky")
    w, pool = RunWriter(store), "pool-a-1"
    run = Run(store, w.config().name)
    w.decide(1, 0.0, {}, w.epoch(1))
    w.decide(1, 1.0, {pool: w.say(pool, w.joined("a", "us"))}, w.leased(pool, [0], [0]))
    w.commit(pool, "solver", 0, {0: [1, 0]}, now=2.0)
    store.broken = "outbox"
    with pytest.raises(StoreError):
        run.refresh()
    store.broken = ""
    figures = run.refresh().figures()
    assert (figures.pools, figures.policies["solver"].parts) == ({"live": 1}, {"ready": 1})


def test_a_quarantined_pool_shows_as_such(writer: Any) -> None:
    w, pool = writer, "pool-a-1"
    w.config()
    cursor = w.say(pool, w.joined("a", "us"))
    w.decide(1, 0.0, {pool: cursor}, w.epoch(1), w.leased(pool, [0], [0]))
    cursor = w.say_raw(pool, b"[]")
    w.decide(1, 1.0, {pool: cursor}, r.Rejected(participant=pool, seq=cursor - 1, reason="x", quarantined=True))
    w.say(pool, r.Failed(group=0, attempt=0, kind="engine"))  # its cursor never moves again
    w.decide(1, 2.0, {})
    figures = open_run(f"{w.store.url}/hand").figures()
    assert (figures.pools, figures.errors, figures.rejected) == ({"quarantined": 1}, {}, {"x": 1})


def test_a_fact_that_a_decision_was_made_on_must_be_there(writer: Any) -> None:
    writer.config()
    writer.decide(1, 0.0, {"pool-a-1": 1}, writer.epoch(1))
    with pytest.raises(DataError) as caught:
        open_run(f"{writer.store.url}/hand").figures()
    assert caught.value.kind == "missing"


def test_runs_are_listed_with_their_state_and_steps(run: Run) -> None:
    store = run.store
    store.put("notes.txt", b"no run")
    store.put("stray/file", b"no run either")
    store.put("zz-broken/run.toml", b"name = ")
    listed = {entry.run: entry for entry in runs(store)}
    assert set(listed) == {"hand", "zz-broken"}
    assert (listed["hand"].state, listed["hand"].steps) == ("running", {"solver": 2, "verifier": 0})
    assert listed["zz-broken"].state == "unreadable"
    assert listed["zz-broken"].reason


def test_a_stopped_run_is_listed_as_stopped(writer: Any) -> None:
    writer.config()
    (entry,) = runs(writer.store)
    assert (entry.state, entry.steps) == ("created", {"solver": 0, "verifier": 0})
    writer.decide(1, 0.0, {}, writer.epoch(1), r.DrainRequested(participants=[], reason="asked"))
    (entry,) = runs(writer.store)
    assert (entry.state, entry.reason) == ("draining", "asked")
    writer.decide(1, 0.0, {}, r.Stopped(reason="enough"))
    (entry,) = runs(open_store(writer.store.url))
    assert (entry.state, entry.reason) == ("stopped", "enough")


def test_importing_astraflow_is_cheap() -> None:
    code = "import sys, astraflow; print({'torch', 'pyarrow', 'duckdb', 'prefect'} & set(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "set()"


def test_reading_a_run_needs_neither_torch_nor_prefect() -> None:
    code = "import sys, astraflow.query; print({'torch', 'prefect'} & set(sys.modules))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "set()"
