"""Who gets leases and how many: room, gate, round robin, re-leases, silence, timeouts."""

from __future__ import annotations

import pytest

from astraflow import records as r
from tests.dataflow.drive import Drive, drops, leased_groups, make_config, of

BOTH = {"solver": {}, "verifier": {}}


def test_a_pool_gets_as_many_groups_as_staleness_lets_the_trainer_use() -> None:
    drive = Drive(make_config(batch_size=3, max_staleness=2))
    drive.join_pool(capacity=100)
    drive.join_trainer()
    assert leased_groups(drive.step()) == list(range(9))
    assert leased_groups(drive.step()) == []


def test_nothing_is_leased_before_a_trainer_joined_and_the_pool_has_applied() -> None:
    drive = Drive(make_config())
    joined = r.PoolJoined(pool="l", region="h", policies=["solver"], capacity=4, engine="x", data_hash="abc")
    drive.say("pool-a", joined)
    assert not leased_groups(drive.step())
    drive.say("pool-a", drive.applied())
    assert not leased_groups(drive.step())
    drive.join_trainer()
    assert leased_groups(drive.step()) == [0, 1, 2, 3]


def test_room_is_capacity_less_what_is_held() -> None:
    drive = Drive(make_config(max_staleness=3))
    drive.join_trainer()
    drive.join_pool(capacity=3)
    assert len(leased_groups(drive.step())) == 3
    assert not leased_groups(drive.step())
    drive.commit([1])
    assert leased_groups(drive.step()) == [3]


def test_groups_are_shared_by_room() -> None:
    drive = Drive(make_config(batch_size=6, max_staleness=1))
    drive.join_trainer()
    drive.join_pool("pool-a", capacity=10)
    drive.join_pool("pool-b", capacity=20)
    decisions = drive.step()
    assert len(leased_groups(decisions, "pool-a")) == 4
    assert len(leased_groups(decisions, "pool-b")) == 8


def test_a_pool_with_old_weights_gets_less() -> None:
    drive = Drive(make_config(batch_size=2, max_staleness=1))
    drive.ready()
    drive.commit([0, 1])
    drive.commit([2, 3])
    drive.step()  # batches 0 and 1
    drive.train(0)
    assert len(leased_groups(drive.step())) == 0  # one step behind: bound 2, and batch 1 is under way
    drive.say("pool-a", drive.applied(version=1, step=1))
    assert len(leased_groups(drive.step())) == 2
    drive.train(1)
    assert not leased_groups(drive.step())


def test_no_more_is_leased_than_the_remaining_steps_can_use() -> None:
    drive = Drive(make_config(batch_size=2, max_staleness=3, steps=1))
    drive.join_trainer()
    drive.join_pool(capacity=100)
    assert leased_groups(drive.step()) == [0, 1]


@pytest.mark.parametrize(("coupling", "expected"), [("none", 4), ("slowest", 0)])
def test_one_policy_below_its_bound_is_enough_unless_they_are_coupled(coupling: str, expected: int) -> None:
    drive = Drive(make_config(policies=BOTH, coupling=coupling))
    drive.ready()
    drive.commit([0, 1, 2, 3])
    drive.step()
    drive.train(0, policy="solver")
    drive.train(1, policy="solver")
    for policy in BOTH:
        version = 2 if policy == "solver" else 0
        drive.say("pool-a", drive.applied(policy, version, version))
    assert len(leased_groups(drive.step())) == expected


def test_a_pool_that_lacks_a_policy_gets_nothing() -> None:
    drive = Drive(make_config(policies=BOTH))
    drive.join_trainer("solver")
    drive.join_pool(policies=["solver"])
    assert not leased_groups(drive.step())


def test_a_frozen_policy_is_served_and_has_no_load() -> None:
    drive = Drive(make_config(policies={"solver": {}, "judge": {"frozen": True}}))
    drive.ready()
    assert drive.open_groups() == [0, 1, 2, 3]
    drive.commit([0, 1])
    decisions = drive.step()
    assert drops(decisions) == {("judge", "frozen"): [0, 1]}
    assert of(decisions, r.Batched)[0].groups == [0, 1]


def test_a_silent_pool_loses_its_leases_and_is_heard_again() -> None:
    drive = Drive(make_config(silence_s=10))
    drive.ready()
    drive.join_pool("pool-b", capacity=8)
    for _ in range(4):
        drive.beat("pool-b", "trainer-solver")
        decisions = drive.step(3.0)
    assert of(decisions, r.Expired)[0].reason == "silent"
    assert leased_groups(decisions, "pool-b") == [0, 1, 2, 3]
    assert of(decisions, r.Leased)[0].attempts == [2, 2, 2, 2]
    drive.beat("pool-a")
    drive.commit([0], attempt=1)  # a late attempt of an open group wins
    decisions = drive.step()
    assert of(decisions, r.Admitted) == [r.Admitted(groups=[0], attempts=[1], participant="pool-a")]
    drive.commit([0], name="pool-b")
    assert not of(drive.step(), r.Admitted)
    assert not of(drive.log, r.Rejected)


def test_a_lost_pool_loses_its_leases_at_once() -> None:
    drive = Drive(make_config())
    drive.ready()
    drive.say("experiment-1", r.Wanted(what="lost", target="pool-a"))
    assert of(drive.step(), r.Expired)[0].reason == "lost"
    assert not leased_groups(drive.step())
    drive.beat("pool-a")
    assert leased_groups(drive.step()) == [0, 1, 2, 3]


def test_losing_somebody_unknown_is_no_error() -> None:
    drive = Drive(make_config())
    drive.say("experiment-1", r.Wanted(what="lost", target="pool-zzz"))
    assert drive.step() == []


def test_an_old_lease_is_leased_again_and_then_dropped() -> None:
    drive = Drive(make_config(group_timeout_s=100, silence_s=1000, batch_size=1, max_staleness=0))
    drive.ready()
    decisions = drive.step(101)
    assert [d.reason for d in of(decisions, r.Expired)] == ["timeout"]
    assert of(decisions, r.Leased)[0] == r.Leased(pool="pool-a", groups=[0], problems=[0], attempts=[2])
    decisions = drive.step(101)
    assert drops(decisions) == {("solver", "failed"): [0]}
    assert leased_groups(decisions) == [1]


def test_a_handed_back_group_comes_again_before_new_ones() -> None:
    drive = Drive(make_config())
    drive.ready(2)
    drive.say("pool-a", r.Failed(group=1, attempt=1, kind="environment"))
    drive.commit([0])
    decisions = drive.step()
    assert of(decisions, r.Expired)[0].reason == "environment"
    assert [(d.groups, d.attempts) for d in of(decisions, r.Leased)] == [([1], [2]), ([2], [1])]


def test_failures_of_the_past_change_nothing() -> None:
    drive = Drive(make_config())
    drive.ready()
    drive.commit([0])
    drive.step()
    drive.say("pool-a", r.Failed(group=0, attempt=1, kind="cancelled"))
    drive.say("pool-a", r.Failed(group=1, attempt=1, kind="timeout"))
    drive.step()
    drive.say("pool-a", r.Failed(group=1, attempt=1, kind="timeout"))
    assert not of(drive.step(), r.Expired | r.Rejected)


def test_a_pool_that_only_fails_gets_one_group_at_a_time() -> None:
    drive = Drive(make_config(batch_size=8))
    drive.ready(2)
    for _ in range(2):
        for group, attempt in list(drive.state.participants["pool-a"].held.items()):
            drive.say("pool-a", r.Failed(group=group, attempt=attempt, kind="environment"))
        decisions = drive.step()
    assert len(leased_groups(decisions)) == 1
    drive.commit(drive.open_groups())
    assert len(leased_groups(drive.step())) == 2


def test_who_left_loses_its_leases() -> None:
    drive = Drive(make_config())
    drive.ready()
    drive.say("pool-a", r.Left())
    assert of(drive.step(), r.Expired)[0].reason == "left"


def test_a_draining_pool_gets_nothing_new_and_may_still_bring() -> None:
    drive = Drive(make_config(batch_size=4))
    drive.ready(2)
    drive.say("operator-1", r.Wanted(what="drain", target="pool-a", reason="spot"))
    decisions = drive.step()
    assert of(decisions, r.DrainRequested) == [r.DrainRequested(participants=["pool-a"], reason="spot")]
    drive.say("pool-a", r.Draining())
    drive.commit([0])
    decisions = drive.step()
    assert of(decisions, r.Admitted) and not of(decisions, r.Leased | r.DrainRequested)


def test_a_pool_is_leased_ahead_as_much_as_it_asks_for() -> None:
    drive = Drive(make_config(batch_size=20))
    drive.join_trainer()
    drive.join_pool(capacity=4)
    assert len(leased_groups(drive.step())) == 4
    drive.say("pool-a", r.LeasesWanted(ahead=3))
    assert len(leased_groups(drive.step())) == 3
    drive.say("pool-a", r.LeasesWanted(ahead=0))
    drive.commit([0, 1])
    assert not leased_groups(drive.step()), "five are held of four"
    drive.commit([2, 3])
    assert len(leased_groups(drive.step())) == 1


def test_a_pool_that_joins_anew_or_fails_again_and_again_is_leased_nothing_ahead() -> None:
    drive = Drive(make_config(batch_size=20))
    drive.join_trainer()
    drive.join_pool(capacity=2)
    drive.say("pool-a", r.LeasesWanted(ahead=2))
    assert len(leased_groups(drive.step())) == 4
    drive.say("pool-a", *(r.Failed(group=group, attempt=1, kind="engine") for group in range(4)))
    assert len(leased_groups(drive.step())) == 1
    drive.join_pool(capacity=2)
    drive.step()
    assert drive.state.participants["pool-a"].ahead == 0


@pytest.mark.parametrize(
    ("ahead", "batch_size", "leased", "places"),
    [
        (0, 20, 4, 4.0),
        (4, 20, 8, 4.0),  # full is full
        (4, 4, 4, 2.0),  # half of what it could hold: half of its places play
    ],
)
def test_leases_ahead_fill_no_more_places_than_there_are(
    ahead: int, batch_size: int, leased: int, places: float
) -> None:
    drive = Drive(make_config(batch_size=batch_size, max_staleness=0))
    drive.join_trainer()
    drive.join_pool(capacity=4)
    drive.say("pool-a", r.LeasesWanted(ahead=ahead))
    drive.step()
    drive.step()
    book = drive.state.leases
    assert len(book.leased) == leased
    before = book.played_s
    drive.state.begin(book.marked_at + 10.0)
    drive.state.mark()
    drive.state.mark()
    assert book.played_s - before == 10.0 * places


def test_its_rate_is_of_all_its_leases() -> None:
    drive = Drive(make_config(batch_size=20))
    drive.join_trainer()
    drive.join_pool(capacity=4)
    drive.say("pool-a", r.LeasesWanted(ahead=4))
    drive.step()
    drive.commit(drive.open_groups())
    drive.step(8.0)
    pool = drive.state.participants["pool-a"]
    assert (pool.group_s, pool.rate) == (8.0, 1.0)


def test_pause_and_resume() -> None:
    drive = Drive(make_config(policies=BOTH))
    for policy in BOTH:
        drive.join_trainer(policy)
    drive.say("operator-1", r.Wanted(what="pause"))
    drive.join_pool()
    assert not leased_groups(drive.step())
    drive.say("operator-1", r.Wanted(what="resume"), r.Wanted(what="pause", target="solver"))
    assert len(leased_groups(drive.step())) == 4  # the verifier still wants groups
    drive.say("operator-1", r.Wanted(what="pause", target="verifier"))
    drive.commit([0])
    assert not leased_groups(drive.step())
    drive.say("operator-1", r.Wanted(what="resume", target="solver"))
    drive.step()
    assert not drive.state.policies["solver"].paused and drive.state.policies["verifier"].paused


def test_an_epoch_starts_all_timers_again() -> None:
    drive = Drive(make_config(silence_s=10, group_timeout_s=20))
    drive.ready()
    drive.new_epoch()
    assert not of(drive.step(9.0), r.Expired)
    assert of(drive.step(2.0), r.Expired)[0].reason == "silent"


def test_an_epoch_starts_the_drain_again() -> None:
    drive = Drive(make_config(silence_s=60, drain_s=20))
    drive.ready()
    drive.say("operator-1", r.Wanted(what="stop"))
    drive.say("trainer-solver", r.Ended(policy="solver"), r.Left())
    drive.step(50.0)
    drive.new_epoch()
    drive.beat("pool-a")
    assert not of(drive.step(50.0), r.Stopped)
    drive.beat("pool-a")
    assert of(drive.step(31.0), r.Stopped)


# --- routing -------------------------------------------------------------------------------------


def _two_pools(slow_s: float) -> Drive:
    """A quick pool and one that takes ``slow_s`` a group, with room for all that is wanted in either."""
    drive = Drive(make_config(batch_size=12, max_staleness=1, steps=50))
    drive.join_trainer()
    for name in ("pool-a", "pool-b"):
        drive.join_pool(name, capacity=40)
    drive.step()
    return drive


def test_the_quick_pool_is_leased_more_and_the_slow_one_still_something() -> None:
    drive = _two_pools(8.0)
    first = {name: len(drive.open_groups(name)) for name in ("pool-a", "pool-b")}
    assert first == {"pool-a": 12, "pool-b": 12}, "as long as nobody is known, all are alike"
    drive.commit(drive.open_groups("pool-a"), name="pool-a")
    drive.step(1.0)
    drive.step(7.0)
    drive.commit(drive.open_groups("pool-b")[:12], name="pool-b")
    drive.step(1.0)
    quick, slow = (drive.state.participants[name].group_s for name in ("pool-a", "pool-b"))
    assert (quick, slow) == (1.0, 9.0)
    drive.train(0)
    for name in ("pool-a", "pool-b"):
        drive.say(name, drive.applied("solver", 1, 1))
    decisions = drive.step()
    counts = {name: len(leased_groups(decisions, name)) for name in ("pool-a", "pool-b")}
    assert counts["pool-a"] > 5 * counts["pool-b"] > 0


def test_a_late_attempt_says_nothing_of_a_pools_speed() -> None:
    drive = Drive(make_config(group_timeout_s=5, silence_s=60, max_attempts=3))
    drive.ready()
    drive.step(6.0)
    drive.commit([0], attempt=1)
    drive.step()
    pool = drive.state.participants["pool-a"]
    assert (pool.admitted, pool.group_s) == (1, 0.0)


def test_a_pool_that_brings_something_good_is_forgiven_its_rejects() -> None:
    drive = Drive(make_config())
    drive.ready()
    for _ in range(4):
        drive.garble("pool-a")
    drive.step()
    assert drive.state.participants["pool-a"].rejects == 4
    drive.commit([0])
    drive.step()
    drive.garble("pool-a")
    drive.step()
    assert not drive.state.participants["pool-a"].quarantined


def test_a_drain_is_answered_as_often_as_it_is_wanted() -> None:
    drive = Drive(make_config())
    drive.ready()
    for _ in range(2):
        drive.say("operator-1", r.Wanted(what="drain", target="pool-a", reason="x"))
        assert of(drive.step(), r.DrainRequested) == [r.DrainRequested(participants=["pool-a"], reason="x")]


def test_silences_do_not_take_a_pool_for_one_that_fails_again_and_again() -> None:
    drive = Drive(make_config(batch_size=20, silence_s=10, max_attempts=9))
    drive.join_trainer()
    drive.join_pool(capacity=2)
    drive.say("pool-a", r.LeasesWanted(ahead=2))
    assert len(leased_groups(drive.step())) == 4
    for _ in range(3):
        drive.beat("trainer-solver")
        (expired,) = of(drive.step(after_s=11.0), r.Expired)
        assert (expired.reason, len(expired.groups)) == ("silent", 4)
        drive.beat("pool-a", "trainer-solver")
        assert len(leased_groups(drive.step())) == 4
