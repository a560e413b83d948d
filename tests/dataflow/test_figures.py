"""Why a policy waits, in words that say what to mend."""

from __future__ import annotations

from astraflow import records as r
from astraflow.config import Component
from astraflow.dataflow.figures import status_figures, wait_reason, wait_reasons
from tests.dataflow.drive import Drive, make_config

BOTH = {"solver": {}, "verifier": {}}


def test_who_is_missing_is_named_first() -> None:
    drive = Drive(make_config(policies=BOTH))
    assert wait_reasons(drive.state) == dict.fromkeys(BOTH, "waiting for its trainer")
    for policy in BOTH:
        drive.join_trainer(policy)
    drive.step()
    assert wait_reason(drive.state, "solver") == "waiting for a pool"
    drive.join_pool("pool-a", policies=["solver"])
    drive.step()
    assert wait_reason(drive.state, "solver") == "no pool serves role verifier of workflow solve"
    drive.join_pool("pool-b", policies=["verifier"])
    drive.step()
    assert wait_reason(drive.state, "solver") == "no pool serves all of solver, verifier, as workflow solve needs"
    joined = r.PoolJoined(pool="l", region="h", policies=list(BOTH), capacity=4, engine="x", data_hash="abc")
    drive.say("pool-c", joined)
    drive.step()
    assert "load its first version" in wait_reason(drive.state, "solver")


def test_what_is_under_way_is_counted() -> None:
    drive = Drive(make_config(filters=[Component(name="zero_advantage")]))
    drive.ready()
    drive.commit([0], rewards=(1.0, 1.0))
    drive.step()
    assert wait_reason(drive.state, "solver") == (
        "waiting for pools: 0 of 2 parts are ready, 4 groups played; dynamic sampling filtered 1 of 1"
    )
    drive.commit([1, 2])
    drive.step()
    assert wait_reason(drive.state, "solver") == ""  # it has a batch


def test_failures_and_old_weights_show() -> None:
    drive = Drive(make_config(batch_size=1, max_staleness=0, max_attempts=1))
    drive.ready()
    drive.say("pool-a", r.Failed(group=0, attempt=1, kind="environment"))
    drive.step()
    drive.commit([1])
    drive.step()
    drive.train(0)
    drive.step()
    assert wait_reason(drive.state, "solver") == (
        "waiting for pools to load version 1: 0 of 1 parts are ready, 0 groups played; 1 groups failed so far"
    )


def test_orders_show() -> None:
    drive = Drive(make_config(steps=1, batch_size=1))
    drive.ready()
    drive.say("operator-1", r.Wanted(what="pause", target="solver", reason="lunch"))
    drive.step()
    assert wait_reason(drive.state, "solver") == "paused: lunch"
    drive.say("operator-1", r.Wanted(what="resume", target="solver"), r.Wanted(what="pause"))
    drive.step()
    assert wait_reason(drive.state, "solver") == "paused: pause was wanted"
    drive.say("operator-1", r.Wanted(what="drain", target="pool-a"))
    drive.say("operator-1", r.Wanted(what="resume"))
    drive.step()
    assert "groups played" in wait_reason(drive.state, "solver")
    drive.commit([0])
    drive.step()
    drive.train(0)
    drive.step()
    assert wait_reason(drive.state, "solver") == "waiting for the trainer to end"


def test_a_trainer_that_is_gone_shows_even_while_it_has_a_batch() -> None:
    drive = Drive(make_config(silence_s=10))
    drive.ready()
    drive.commit([0, 1])
    drive.step()
    assert wait_reason(drive.state, "solver") == ""
    drive.say("experiment-1", r.Wanted(what="lost", target="trainer-solver"))
    drive.step()
    assert wait_reason(drive.state, "solver") == "its trainer is silent, lost or quarantined"


def test_draining_shows() -> None:
    drive = Drive(make_config())
    drive.ready(1)
    drive.say("operator-1", r.Wanted(what="drain", target="pool-a"))
    drive.commit([0])
    drive.step()
    assert wait_reason(drive.state, "solver") == "all pools are draining"
    drive.say("operator-1", r.Wanted(what="stop", reason="enough"))
    drive.step()
    assert wait_reason(drive.state, "solver") == "draining: enough"
    drive.say("trainer-solver", r.Ended(policy="solver"))
    drive.step()
    assert wait_reason(drive.state, "solver") == ""


def test_the_status_shows_each_policy() -> None:
    drive = Drive(make_config(policies=BOTH))
    drive.ready()
    drive.commit([0])
    drive.step()
    figures = status_figures(drive.state)
    assert figures["groups"] == 4 and figures["pools"] == 1
    assert (figures["solver.ready"], figures["verifier.leased"], figures["solver.version"]) == (1, 3, 0)
