"""Pausing a region: its pools get nothing new, the others play on, and nobody takes it for a want of pools."""

from __future__ import annotations

from typing import Any

from astraflow import records as r
from astraflow.config import Evaluation, Pool, Problems, RunConfig, Scale
from astraflow.dataflow.figures import load_figures, pool_figures, wait_reason
from astraflow.dataflow.scaling import advice, scaled_by_load
from tests.dataflow.drive import Drive, leased_groups, make_config, of

WEST = r.Wanted(what="pause", region="west", reason="lunch")


def two_regions(*, scale: Scale | None = None, held: bool = False, **config: Any) -> RunConfig:
    """A pool section in ``east`` and one in ``west``."""
    evaluation = Evaluation(problems=Problems(source="none"), problem_count=9)
    return make_config(**{"batch_size": 4, "max_staleness": 3, **config}).model_copy(
        update={
            "pools": {"a": Pool(region="east"), "b": Pool(region="west")},
            "scale": scale or Scale(),
            "evaluations": {"held": evaluation} if held else {},
        }
    )


def started(config: RunConfig, *, capacity: int = 3, regions: tuple[str, ...] = ("east", "west")) -> Drive:
    """A trainer, and a pool in each of ``regions``: pool-0, pool-1 and so on."""
    drive = Drive(config)
    drive.join_trainer()
    for n, region in enumerate(regions):
        drive.join_pool(f"pool-{n}", capacity=capacity, region=region)
    drive.step()
    return drive


def say(drive: Drive, *wishes: r.AnyFact) -> list[r.AnyDecision]:
    drive.say("operator-1", *wishes)
    return drive.step()


def test_what_is_under_way_counts_and_nothing_new_is_leased_there() -> None:
    drive = started(two_regions())
    decisions = say(drive, WEST)
    assert of(decisions, r.Paused) == [r.Paused(policy="", region="west", reason="lunch")]
    playing = drive.open_groups("pool-1")
    for name in ("pool-0", "pool-1"):
        drive.commit(drive.open_groups(name), name=name)
    decisions = drive.step()
    assert set(playing) <= {group for admitted in of(decisions, r.Admitted) for group in admitted.groups}
    assert leased_groups(decisions, "pool-0") and not leased_groups(decisions, "pool-1")
    assert not of(drive.log, r.DrainRequested | r.Expired)
    decisions = say(drive, r.Wanted(what="resume", region="west"))
    assert of(decisions, r.Resumed) == [r.Resumed(policy="", region="west")]
    assert leased_groups(decisions, "pool-1")


def test_a_lease_that_a_paused_pool_lost_goes_to_another() -> None:
    drive = started(two_regions(batch_size=8))
    group = drive.open_groups("pool-1")[0]
    drive.say("pool-1", r.Failed(group=group, attempt=1, kind="environment"))
    drive.commit(drive.open_groups("pool-0"), name="pool-0")
    assert group in leased_groups(say(drive, WEST), "pool-0")


def test_no_evaluation_is_leased_there() -> None:
    drive = started(two_regions(held=True), regions=("east",))
    say(drive, WEST)
    drive.join_pool("pool-1", region="west")
    assert not of(drive.step(), r.EvalLeased)
    assert {lease.pool for lease in of(drive.log, r.EvalLeased)} == {"pool-0"}
    decisions = say(drive, r.Wanted(what="resume", region="west"))
    assert [lease.pool for lease in of(decisions, r.EvalLeased)] == ["pool-1"]


def test_its_pools_keep_their_weights_fresh() -> None:
    drive = started(two_regions(batch_size=1))
    say(drive, WEST)
    drive.commit(drive.open_groups("pool-0"), name="pool-0")
    drive.step()
    drive.train(0)
    drive.say("pool-1", drive.applied("solver", 1, 1))
    assert not of(drive.step(), r.Rejected)
    assert drive.state.participants["pool-1"].applied["solver"].version == 1


def test_when_all_regions_are_paused_the_run_stands_still_and_says_so() -> None:
    drive = started(two_regions())
    say(drive, WEST)
    assert wait_reason(drive.state, "solver").startswith("waiting for pools")
    decisions = say(drive, r.Wanted(what="pause", region="east"))
    still = "no region plays: west (lunch), east (pause was wanted)"
    assert of(decisions, r.Paused)[1:] == [r.Paused(policy="", region=r.EVERYWHERE, reason=still)]
    assert wait_reason(drive.state, "solver") == f"paused: {still}"
    assert not of(drive.step(), r.Paused), "it is said once"
    drive.new_epoch()
    assert not of(drive.step(), r.Paused), "the next manager knows of it"
    decisions = say(drive, r.Wanted(what="resume", region="west"))
    assert [said.region for said in of(decisions, r.Resumed)] == ["west", r.EVERYWHERE]
    assert wait_reason(drive.state, "solver").startswith("waiting for pools")


def test_a_region_that_shall_have_no_pools_is_none_that_could_play() -> None:
    drive = started(two_regions())
    say(drive, WEST)
    decisions = say(drive, r.PoolsWanted(region="east", pools=0))
    assert [said.region for said in of(decisions, r.Paused)] == [r.EVERYWHERE]
    decisions = say(drive, r.PoolsWanted(region="east", pools=1))
    assert [said.region for said in of(decisions, r.Resumed)] == [r.EVERYWHERE]


def test_a_pause_said_twice_ends_at_once() -> None:
    drive = started(two_regions())
    assert of(say(drive, WEST, WEST), r.Paused) == [r.Paused(policy="", region="west", reason="lunch")] * 2
    say(drive, r.Wanted(what="resume", region="west"))
    assert not drive.state.ledger.scaling.paused


def test_the_run_may_be_paused_beside_a_region() -> None:
    drive = started(two_regions())
    say(drive, WEST, r.Wanted(what="pause"))
    for name in ("pool-0", "pool-1"):
        drive.commit(drive.open_groups(name), name=name)
    assert not leased_groups(drive.step())
    assert wait_reason(drive.state, "solver") == ""  # a batch is there
    assert not leased_groups(say(drive, r.Wanted(what="resume")), "pool-1"), "the region is paused still"


def test_pools_elsewhere_are_waited_for() -> None:
    drive = started(two_regions(), regions=("west",))
    say(drive, WEST)
    drive.say("pool-0", *(r.Failed(group=g, attempt=1, kind="environment") for g in drive.open_groups("pool-0")))
    drive.step()
    assert wait_reason(drive.state, "solver") == "waiting for a pool elsewhere: west is paused"
    drive.join_pool("pool-1", region="east", policies=[])
    drive.step()
    assert wait_reason(drive.state, "solver").startswith("no pool serves role solver")


# --- the number of pools -------------------------------------------------------------------------


def acting(**scale: Any) -> Scale:
    return Scale(**{"mode": "act", "rule": "three_zone", "cool_down": 0, "most": 8, **scale})


def grown(drive: Drive, west: int = 3) -> Drive:
    """``west`` pools in the west, where a person put them, and left to the reports."""
    say(drive, r.PoolsWanted(region="west", pools=west))
    for n in range(2, west + 1):
        drive.join_pool(f"pool-{n}", capacity=3, region="west")
    say(drive, r.PoolsWanted(region="west", pools=-1))
    return drive


def test_load_is_that_of_the_pools_that_play() -> None:
    drive = grown(started(two_regions()))
    assert load_figures(drive.state, "solver")["capacity"] == 12
    say(drive, WEST)
    figures = load_figures(drive.state, "solver")
    assert (figures["pools"], figures["capacity"]) == (1, 3)
    assert list(pool_figures(drive.state, "solver")) == ["pool-0"]


def test_a_pause_drains_nobody() -> None:
    drive = grown(started(two_regions(scale=acting())))
    say(drive, WEST)
    assert scaled_by_load(drive.state, "solver", 1) is None
    assert drive.state.ledger.scaling.counts(drive.config) == {"east": 1, "west": 3}
    assert not of(drive.log, r.DrainRequested)


def test_only_regions_that_play_grow_and_all_together_stay_below_the_most() -> None:
    drive = grown(started(two_regions(scale=acting(most=5))))
    say(drive, WEST)
    starving = {"wait_s": 90.0, "step_s": 10.0}
    advised = advice(drive.state, "solver", starving)
    assert advised == 2, "three of five stand by in the west"
    scaled = scaled_by_load(drive.state, "solver", advised)
    assert scaled is not None and scaled.pools == {"east": 2}


def test_reports_of_before_a_pause_count_no_more() -> None:
    drive = grown(started(two_regions(scale=acting(cool_down=2))))
    report = r.LoadReported(policy="solver", step=0, figures={"pools_advised": 4.0})
    drive.state.ledger.scaling.hear(report)
    drive.mirror.ledger.scaling.hear(report)
    say(drive, WEST)
    assert drive.state.ledger.scaling.advised == {} and drive.state.ledger.scaling.changed_at == {"solver": 0}
    assert scaled_by_load(drive.state, "solver", 2) is None, "its next report still tells of the pools from before"
    drive.state.policies["solver"].consumed = 2
    assert scaled_by_load(drive.state, "solver", 2) is not None
