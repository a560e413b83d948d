"""How many pools a run has: by load reports within bounds, by a person at once, and by the fold alone."""

from __future__ import annotations

from typing import Any

from astraflow import records as r
from astraflow.config import Pool, Region, RunConfig, Scale, Trainer
from tests.dataflow.drive import Drive, make_config, of


def elastic(*, policies: tuple[str, ...] = ("solver",), **scale: Any) -> RunConfig:
    """Two regions with a pool each, the second one cheaper; a report every second step."""
    config = make_config(
        policies={name: {} for name in policies}, batch_size=1, steps=40, max_staleness=3, prefetch=1, report_every=2
    )
    return config.model_copy(
        update={
            "pools": {"a": Pool(region="dear"), "b": Pool(region="cheap")},
            "regions": {"dear": Region(cost=3.0), "cheap": Region(cost=1.0, most_pools=4)},
            "scale": Scale(**{"mode": "act", "rule": "three_zone", "cool_down": 0, "most": 8, **scale}),
        }
    )


def started(config: RunConfig, pools: int = 2) -> Drive:
    drive = Drive(config)
    for policy in config.trained:
        drive.join_trainer(policy)
    for n in range(pools):
        drive.join_pool(f"pool-{n}", capacity=4)
    drive.step()
    return drive


def report(drive: Drive, wait_s: float, policy: str = "solver") -> list[r.AnyDecision]:
    """Two steps of a policy whose trainer waited so long for each 10 s of training; what the second one led to."""
    decisions: list[r.AnyDecision] = []
    for _ in range(2):
        for name in [name for name in drive.state.participants if name.startswith("pool")]:
            if groups := drive.open_groups(name):
                drive.commit(groups[:2], name=name, version=max(0, drive.state.policies["solver"].newest))
        drive.step()
        drive.beat(*drive.state.participants)
        batch = drive.state.policies[policy].consumed
        counted_s = 2 * wait_s if batch == 1 else wait_s  # the wait for the very first batch does not count
        metrics = {"wait_s": counted_s, "step_s": 10.0}
        consumed = r.Consumed(policy=policy, batch=batch, step=batch + 1, incarnation=0, metrics=metrics)
        drive.say(f"trainer-{policy}", drive.published(policy, batch + 1, batch + 1), consumed)
        for name in [name for name in drive.state.participants if name.startswith("pool")]:
            drive.say(name, drive.applied(policy, batch + 1, batch + 1))
        decisions = drive.step()
    assert of(decisions, r.LoadReported)
    return decisions


def test_a_starving_trainer_gets_pools_where_they_are_cheap_and_then_elsewhere() -> None:
    drive = started(elastic())
    decisions = report(drive, wait_s=10.0)  # half of the time: twice the pools
    (load,) = of(decisions, r.LoadReported)
    assert load.figures["pools_advised"] == 4 and load.figures["leased_mean"] > 0
    (scaled,) = of(decisions, r.Scaled)
    assert scaled.pools == {"cheap": 3} and scaled.held == []
    for n in (2, 3):
        drive.join_pool(f"pool-{n}", capacity=4)
    (scaled,) = of(report(drive, wait_s=10.0), r.Scaled)
    assert scaled.pools == {"cheap": 4, "dear": 4}, "no more than most_pools in the cheap one"
    assert drive.state.ledger.scaling.counts(drive.config) == {"dear": 4, "cheap": 4}


def test_the_wait_for_the_first_batch_is_no_reason_to_grow() -> None:
    drive = started(elastic())
    for name in ("pool-0", "pool-1"):
        drive.commit(drive.open_groups(name), name=name)
    drive.step()
    for batch, wait_s in enumerate((1000.0, 0.0)):
        metrics = {"wait_s": wait_s, "step_s": 10.0}
        consumed = r.Consumed(policy="solver", batch=batch, step=batch + 1, incarnation=0, metrics=metrics)
        drive.say("trainer-solver", drive.published("solver", batch + 1, batch + 1), consumed)
        decisions = drive.step()
    (load,) = of(decisions, r.LoadReported)
    assert (load.figures["wait_s"], load.figures["pools_advised"]) == (0.0, 2)


def test_pools_that_are_still_to_come_are_waited_for() -> None:
    drive = started(elastic())
    assert of(report(drive, wait_s=10.0), r.Scaled)
    assert not of(report(drive, wait_s=10.0), r.Scaled), "two of four play: four are wanted already"
    (scaled,) = of(report(drive, wait_s=40.0), r.Scaled)
    assert sum((drive.state.ledger.scaling.counts(drive.config) | scaled.pools).values()) == 8


def test_nothing_changes_before_the_policy_has_cooled_down() -> None:
    drive = started(elastic(cool_down=4))
    assert of(report(drive, wait_s=10.0), r.Scaled)
    assert not of(report(drive, wait_s=90.0), r.Scaled)
    assert of(report(drive, wait_s=90.0), r.Scaled)


def test_advice_is_only_told_and_off_is_silent() -> None:
    drive = started(elastic(mode="advise"))
    decisions = report(drive, wait_s=10.0)
    assert of(decisions, r.LoadReported)[0].figures["pools_advised"] == 4
    assert not of(decisions, r.Scaled) and not drive.state.ledger.scaling.changes
    assert "pools_advised" not in of(report(started(elastic(mode="off")), 10.0), r.LoadReported)[0].figures


def test_the_dear_region_shrinks_first_and_the_least_stays() -> None:
    drive = started(elastic(rule="matched"), pools=0)
    for n in range(2):
        drive.join_pool(f"pool-{n}", capacity=1000)  # nearly nothing of it is leased
    drive.step()
    (scaled,) = of(report(drive, wait_s=0.0), r.Scaled)
    assert scaled.pools == {"dear": 0}
    assert not of(report(drive, wait_s=0.0), r.Scaled)


def test_the_run_shrinks_only_when_every_policy_needs_less() -> None:
    drive = started(elastic(rule="matched", policies=("solver", "verifier")), pools=0)
    for n in range(2):
        drive.join_pool(f"pool-{n}", capacity=1000)
    drive.step()
    assert not of(report(drive, 0.0, "solver"), r.Scaled), "the verifier has not said anything"
    assert of(report(drive, 0.0, "verifier"), r.Scaled)


def test_a_persons_word_counts_at_once_and_stays_until_it_is_taken_back() -> None:
    drive = started(elastic())
    drive.say("operator", r.PoolsWanted(region="cheap", pools=1, reason="a quota"))
    (scaled,) = of(drive.step(), r.Scaled)
    assert (scaled.pools, scaled.held, scaled.reason) == ({"cheap": 1}, ["cheap"], "a quota")
    assert of(report(drive, wait_s=10.0), r.Scaled)[0].pools == {"dear": 3}, "the held region does not grow"
    drive.say("operator", r.PoolsWanted(region="cheap", pools=-1))
    (scaled,) = of(drive.step(), r.Scaled)
    assert (scaled.pools, scaled.held) == ({"cheap": 1}, [])


def test_a_wish_that_no_region_can_fulfil_is_rejected() -> None:
    drive = started(elastic())
    drive.say("operator", r.PoolsWanted(region="moon", pools=1))
    drive.say("operator", r.PoolsWanted(region="cheap", pools=10**6))
    rejected = of(drive.step(), r.Rejected)
    assert ["no region" in rejected[0].reason, "more than" in rejected[1].reason] == [True, True]
    drive.say("operator", r.Wanted(what="stop"))
    drive.step()
    drive.say("operator", r.PoolsWanted(region="cheap", pools=2))
    assert not of(drive.step(), r.Scaled), "a run that ends starts nothing"


def test_another_manager_comes_to_the_same_numbers() -> None:
    drive = started(elastic())
    report(drive, wait_s=10.0)
    before = drive.state.ledger.scaling
    drive.new_epoch()
    assert drive.state.ledger.scaling == before == drive.mirror.ledger.scaling
    assert drive.state.leases.marked_at == 0.0, "the new clock begins again"


def test_pools_that_will_get_nothing_more_leave_down_to_the_least() -> None:
    def let_go(mode: str) -> list[str]:
        config = elastic(mode=mode).model_copy(update={"trainer": Trainer(steps=2, batch_size=1)})
        drive = started(config, pools=3)
        for name in ("pool-0", "pool-1", "pool-2"):
            if groups := drive.open_groups(name):
                drive.commit(groups, name=name)
        drive.step()
        return [name for decision in of(drive.log, r.DrainRequested) for name in decision.participants]

    drained = let_go("act")
    assert len(set(drained)) == len(drained) == 2, "one stays, for what may have to be played again"
    assert let_go("advise") == []


def test_a_pool_that_still_plays_is_not_spare() -> None:
    config = elastic().model_copy(update={"trainer": Trainer(steps=2, batch_size=1)})
    drive = started(config, pools=2)
    (first, *_) = [name for name in ("pool-0", "pool-1") if drive.open_groups(name)]
    drained = [name for d in of(drive.log, r.DrainRequested) for name in d.participants]
    assert first not in drained
