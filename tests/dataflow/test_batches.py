"""From committed groups to batches: filters, staleness at the step of use, order, surplus, short batches, the end."""

from __future__ import annotations

import json

import pytest

from astraflow import records as r
from astraflow.config import Component
from astraflow.dataflow.guarded_curator import GuardedCurator
from astraflow.dataflow.parts import PartRows
from tests.dataflow.drive import Drive, drops, leased_groups, make_config, make_parts, of

BOTH = {"solver": {}, "verifier": {}}
SAMPLING = {"filters": [Component(name="zero_advantage")]}


def test_a_batch_names_whole_parts_where_they_lie() -> None:
    drive = Drive(make_config())
    drive.ready()
    drive.commit([1, 0])
    drive.commit([2])
    (batch,) = of(drive.step(), r.Batched)
    assert batch == r.Batched(
        policy="solver",
        n=0,
        paths=["run/trajectories/policy=solver/version=0/pool-a-0.parquet"],
        stores=[""],
        hashes=["hash-solver-0"],
        groups=[1, 0],
        objects=[0, 0],
        row_starts=[0, 2],
        row_counts=[2, 2],
        versions=[0, 0],
    )


def test_one_batch_trains_while_prefetch_more_are_ready() -> None:
    drive = Drive(make_config(batch_size=1, max_staleness=3, prefetch=2))
    drive.ready()
    drive.commit([0, 1, 2, 3])
    assert [batch.n for batch in of(drive.step(), r.Batched)] == [0, 1, 2]
    drive.train(0)
    assert [batch.n for batch in of(drive.step(), r.Batched)] == [3]


def test_without_staleness_a_batch_waits_for_the_one_before() -> None:
    drive = Drive(make_config(batch_size=1, max_staleness=0))
    drive.ready()
    drive.commit([0])
    assert [batch.n for batch in of(drive.step(), r.Batched)] == [0]
    drive.train(0)
    drive.say("pool-a", drive.applied(version=1, step=1))
    assert leased_groups(drive.step()) == [1]
    drive.commit([1], version=1)
    assert [batch.n for batch in of(drive.step(), r.Batched)] == [1]


def test_staleness_is_judged_at_the_step_of_use() -> None:
    drive = Drive(make_config(batch_size=2, max_staleness=1))
    drive.ready()
    drive.commit([0, 1, 2])
    drive.step()  # batch 0 is formed, group 2 waits for batch 1
    drive.train(0)
    drive.say("pool-a", drive.applied(version=1, step=1))
    drive.step()
    drive.commit([3, 4], version=[0, 1])
    decisions = drive.step()
    assert [batch.groups for batch in of(decisions, r.Batched)] == [[2, 3]]  # batch 1: lag 1, lag 1
    drive.train(1)
    drive.say("pool-a", drive.applied(version=2, step=2))
    drive.commit([5], version=0)
    decisions = drive.step()  # batch 2 would use group 5 at lag 2
    assert drops(decisions) == {("solver", "stale"): [5]}
    assert drive.state.leases.returned == [] and drive.state.policies["solver"].dropped_tokens == {"stale": 10}
    problem = 5
    assert problem in [p for d in of(decisions, r.Leased) for p in d.problems]  # it is leased again, in a new group


def test_ready_parts_go_stale_when_batches_move_on() -> None:
    drive = Drive(make_config(batch_size=1, max_staleness=1, order=Component(name="lifo")))
    drive.ready()
    drive.commit([0, 1])
    drive.step()  # lifo: batch 0 is group 1, batch 1 is group 0
    drive.train(0)
    drive.say("pool-a", drive.applied(version=1, step=1))
    drive.step()
    for group in drive.open_groups():
        drive.commit([group], version=1)
    drive.step()
    drive.train(1)
    drive.say("pool-a", drive.applied(version=2, step=2))
    drive.step()
    assert not [d for d in of(drive.log, r.Dropped) if d.reason == "surplus"]
    assert [batch.n for batch in of(drive.log, r.Batched)] == [0, 1, 2]


def test_edf_takes_the_oldest_version_first() -> None:
    drive = Drive(make_config(batch_size=2, max_staleness=2, prefetch=1))
    drive.ready(6)
    drive.commit([0, 1, 2, 3])
    drive.step()
    drive.train(0)
    drive.say("pool-a", drive.applied(version=1, step=1))
    drive.step()
    new, old = [group for group in drive.open_groups() if group > 3][:2]
    drive.commit([new], version=1)
    drive.commit([old], version=0)
    assert [batch.groups for batch in of(drive.step(), r.Batched)] == [[old, new]]


def test_filters_drop_by_name_and_policy() -> None:
    drive = Drive(make_config(policies=BOTH, **SAMPLING))
    drive.ready()
    solver = make_parts("pool-a", [0], rewards=(1.0, 1.0 + 1e-9))
    verifier = make_parts("pool-a", [0], policy="verifier", rewards=(0.0, 1.0))
    drive.say("pool-a", r.Committed(groups=[0], attempts=[1], objects=[solver, verifier]))
    decisions = drive.step()
    assert drops(decisions) == {("solver", "zero_advantage"): [0]}
    assert list(drive.state.policies["verifier"].ready) == [0]


def test_a_policy_without_rows_in_a_group_has_no_part() -> None:
    drive = Drive(make_config(policies=BOTH))
    drive.ready()
    drive.say("pool-a", r.Committed(groups=[0], attempts=[1], objects=[make_parts("pool-a", [0])]))
    assert drops(drive.step()) == {("verifier", "absent"): [0]}


def test_a_short_batch_is_formed_after_many_redraws() -> None:
    drive = Drive(make_config(batch_size=2, max_staleness=3, max_redraw=1, **SAMPLING))
    drive.ready()
    drive.commit([0])
    drive.step()
    drive.commit([1], rewards=(1.0, 1.0))
    assert not of(drive.step(), r.Batched)
    drive.commit([2], rewards=(1.0, 1.0))
    assert of(drive.step(), r.Batched)[0].groups == [0]


def test_a_run_without_any_useful_part_pauses_until_a_late_one_comes() -> None:
    drive = Drive(make_config(batch_size=2, max_staleness=3, max_redraw=1, **SAMPLING))
    drive.ready()
    drive.commit([0, 1], rewards=(1.0, 1.0))
    decisions = drive.step()
    assert of(decisions, r.Paused)[0].reason == "dynamic sampling filtered 2 of 2 parts"
    assert not leased_groups(decisions)
    drive.commit([2])
    decisions = drive.step()
    assert of(decisions, r.Batched)[0].groups == [2] and of(decisions, r.Resumed)
    assert leased_groups(decisions)


def test_a_pause_by_dynamic_sampling_ends_when_somebody_resumes() -> None:
    drive = Drive(make_config(batch_size=1, max_staleness=0, max_redraw=1, **SAMPLING))
    drive.ready()
    drive.commit([0], rewards=(1.0, 1.0))
    assert of(drive.step(), r.Paused)
    assert not drive.step()
    drive.say("operator-1", r.Wanted(what="resume", target="solver"))
    assert leased_groups(drive.step()) == [1]


def test_the_oldest_parts_of_a_full_queue_are_surplus() -> None:
    drive = Drive(make_config(policies=BOTH, batch_size=1, max_staleness=2))
    drive.ready()
    for n in range(6):  # the verifier's trainer never gets on
        group = drive.open_groups()[0]
        solver = make_parts("pool-a", [group], version=n)
        verifier = make_parts("pool-a", [group], policy="verifier")
        drive.say("pool-a", r.Committed(groups=[group], attempts=[1], objects=[solver, verifier]))
        drive.step()
        drive.train(n)
        drive.say("pool-a", drive.applied(version=n + 1, step=n + 1))
        drive.step()
    queue = drive.state.policies["verifier"]
    assert drive.state.policies["solver"].consumed == 6  # and nobody waits for it
    assert (queue.consumed, queue.formed, list(queue.ready)) == (0, 2, [3, 4, 5])
    assert drops(drive.log) == {("verifier", "surplus"): [2]}


def test_skipped_parts_are_dropped_and_their_problems_come_again() -> None:
    drive = Drive(make_config())
    drive.ready()
    drive.commit([0, 1])
    drive.step()
    drive.train(0, skipped=[1])
    drive.say("pool-a", drive.applied(version=1, step=1))
    decisions = drive.step()
    assert drops(decisions) == {("solver", "skipped"): [1]}
    assert of(decisions, r.Leased)[0].problems[0] == 1
    assert drive.state.policies["solver"].trained == 1


def test_consumed_is_cumulative_and_repeats_are_ignored() -> None:
    drive = Drive(make_config(batch_size=1))
    drive.ready()
    drive.commit([0, 1])
    drive.step()
    drive.train(1, version=1)
    drive.step()
    drive.train(1, version=1)
    drive.say("trainer-solver", r.Consumed(policy="solver", batch=0, step=1, incarnation=0))
    assert not of(drive.step(), r.Rejected)
    assert drive.state.policies["solver"].consumed == 2 and drive.state.policies["solver"].trained == 2


def test_old_versions_are_forgotten_and_their_parts_are_stale() -> None:
    drive = Drive(make_config(batch_size=1, max_staleness=0))
    drive.ready()
    for n in range(3):
        drive.commit(drive.open_groups(), version=n)
        drive.step()
        drive.train(n)
        drive.say("pool-a", drive.applied(version=n + 1, step=n + 1))
        drive.step()
    queue = drive.state.policies["solver"]
    assert sorted(queue.versions) == [3] and queue.floor == 3
    drive.commit(drive.open_groups(), version=0)
    drive.say("pool-a", drive.applied(version=0, step=0))  # forgotten: no error, no effect on what is known
    assert drops(drive.step()) == {("solver", "stale"): [3]}


def test_load_is_reported_every_few_steps() -> None:
    drive = Drive(make_config(batch_size=1, report_every=2))
    drive.ready()
    drive.commit([0, 1])
    drive.step()
    drive.train(0)
    assert not of(drive.step(), r.LoadReported)
    drive.train(1)
    (report,) = of(drive.step(), r.LoadReported)
    assert (report.policy, report.step) == ("solver", 2)
    wanted = {"produced": 2, "consumed": 2, "steps": 2, "lag_mean": 0.5, "lag_max": 1, "step_s": 2.0, "pools": 1}
    assert wanted.items() <= report.figures.items()


# --- the end -----------------------------------------------------------------------------------


def _play_to_the_end(drive: Drive, policy: str = "solver") -> None:
    drive.say(f"trainer-{policy}", r.Ended(policy=policy, reason="done"), r.Left())


def test_a_run_ends_when_all_policies_have() -> None:
    drive = Drive(make_config(policies=BOTH))
    drive.ready()
    _play_to_the_end(drive, "solver")
    drive.commit([0])
    decisions = drive.step()
    assert drops(decisions) == {("solver", "ended"): [0]} and not of(decisions, r.DrainRequested)
    _play_to_the_end(drive, "verifier")
    decisions = drive.step()
    assert of(decisions, r.DrainRequested) == [r.DrainRequested(participants=[], reason="all policies have ended")]
    assert drops(decisions) == {("verifier", "ended"): [0]} and not of(decisions, r.Stopped)
    drive.commit([1])
    assert drops(drive.step()) == {("solver", "ended"): [1], ("verifier", "ended"): [1]}
    drive.say("pool-a", r.Failed(group=2, attempt=1, kind="drained"), r.Left())
    decisions = drive.step()
    assert drops(decisions) == {("solver", "ended"): [2, 3], ("verifier", "ended"): [2, 3]}
    assert decisions[-1] == r.Stopped(reason="all policies have ended")


def test_batches_of_an_ended_policy_are_dropped() -> None:
    drive = Drive(make_config())
    drive.ready()
    drive.commit([0, 1, 2])
    drive.step()
    _play_to_the_end(drive)
    assert drops(drive.step()) == {("solver", "ended"): [2, 0, 1]}


def test_a_stop_is_a_drain_of_everyone_and_ends_when_they_left() -> None:
    drive = Drive(make_config())
    drive.ready()
    drive.commit([0, 1])
    drive.say("operator-1", r.Wanted(what="stop", reason="enough"), r.Wanted(what="stop"))
    decisions = drive.step()
    assert of(decisions, r.DrainRequested) == [r.DrainRequested(participants=[], reason="enough")]
    drive.say("pool-a", r.Left())
    assert not of(drive.step(), r.Stopped | r.Batched)
    drive.say("trainer-solver", r.Ended(policy="solver"), r.Left())
    assert of(drive.step(), r.Stopped) == [r.Stopped(reason="enough")]


def test_who_joins_late_is_told_to_go() -> None:
    drive = Drive(make_config())
    drive.ready()
    drive.say("operator-1", r.Wanted(what="stop"))
    drive.step()
    drive.join_pool("pool-b")
    decisions = drive.step()
    assert of(decisions, r.DrainRequested)[0].participants == ["pool-b"] and not leased_groups(decisions)
    assert not of(drive.step(), r.DrainRequested)


@pytest.mark.parametrize(("who", "after_s", "is_over"), [("pool", 79, False), ("pool", 82, True), ("all", 82, False)])
def test_nobody_is_waited_for_for_ever(who: str, after_s: float, is_over: bool) -> None:
    drive = Drive(make_config(silence_s=60, drain_s=20))
    drive.ready()
    drive.say("operator-1", r.Wanted(what="stop"))
    if who == "pool":
        drive.say("trainer-solver", r.Ended(policy="solver"), r.Left())
    drive.step()
    for _ in range(2):
        drive.beat("pool-a", "trainer-solver")
        decisions = drive.step(after_s / 2)
    assert bool(of(decisions, r.Stopped)) is is_over
    if who == "all":
        drive.beat("trainer-solver")
        drive.step(3600)
        assert of(drive.log, r.Stopped)


def test_a_silent_participant_is_not_waited_for() -> None:
    drive = Drive(make_config(silence_s=10))
    drive.ready()
    drive.say("operator-1", r.Wanted(what="stop"))
    drive.step()
    assert of(drive.step(11), r.Stopped)


# --- filters -------------------------------------------------------------------------------------


class Breaks:
    """An own filter with a bug."""

    def keep(self, rows: PartRows) -> bool:
        return 1 / (rows.rewards[0] - 1.0) != 0


def test_given_up_groups_are_not_taken_for_filtered_ones() -> None:
    drive = Drive(make_config(filters=[Component(name="failed")], max_redraw=1, batch_size=2, max_attempts=1))
    drive.ready()
    for group in (0, 1, 2):
        drive.say("pool-a", r.Failed(group=group, attempt=1, kind="environment"))
    decisions = drive.step()
    assert drops(decisions)[("solver", "failed")] == [0, 1, 2]
    assert not of(decisions, r.Paused) and leased_groups(decisions)
    assert drive.state.policies["solver"].filtered == 0
    drive.commit([3], response_tokens=[0, 5])
    assert drops(drive.step()) == {("solver", "filter_failed"): [3]}
    assert drive.state.policies["solver"].filtered == 1


def test_a_filter_that_raises_costs_the_part_and_no_manager() -> None:
    drive = Drive(make_config(filters=[Component(name=f"{__name__}:Breaks")]))
    drive.ready()
    drive.commit([0], rewards=(1.0, 0.0))
    drive.commit([1], rewards=(0.0, 1.0), name="pool-a")
    decisions = drive.step()
    assert drops(decisions) == {("solver", "filter_error"): [0]}
    assert list(drive.state.policies["solver"].ready) == [1]
    assert drive.state.policies["solver"].filtered == 1


class Moody:
    """An own curator that raises whatever it is asked."""

    def __init__(self, *, problem_count: int, seed: int) -> None:
        self.count = problem_count

    def select(self) -> int:
        raise ZeroDivisionError

    def leased(self, problem: int) -> None:
        raise ZeroDivisionError

    def observe(self, problem: int, rows: PartRows) -> None:
        raise ZeroDivisionError

    def state(self) -> dict[str, object]:
        return {}

    def restore(self, state: dict[str, object]) -> None:
        pass


def test_a_curator_that_raises_is_passed_over() -> None:
    drive = Drive(make_config(curator=Component(name=f"{__name__}:Moody"), problem_count=3))
    drive.ready()
    assert of(drive.log, r.Leased)[0].problems == [0, 1, 2, 0]
    drive.commit([0, 1])
    assert of(drive.step(), r.Batched)
    assert drive.state.curator.faults >= 6


@pytest.mark.parametrize("named", [-1, 3, 10**30, None, 1.0, "1"])
def test_a_curator_that_names_no_problem_is_passed_over(named: object) -> None:
    class Lost(Moody):
        def select(self) -> int:
            return named  # type: ignore[return-value]

    curator = GuardedCurator(Lost(problem_count=3, seed=0), 3)
    assert [curator.select(group) for group in range(4)] == [0, 1, 2, 0]
    assert curator.faults == 4


def test_counts_that_raise_are_none() -> None:
    class Uncounted(Moody):
        def counts(self) -> dict[str, int]:
            raise ZeroDivisionError

    assert GuardedCurator(Uncounted(problem_count=3, seed=0), 3).counts() == {}


def test_the_spread_of_what_is_admitted_is_a_number_in_every_snapshot() -> None:
    drive = Drive(make_config(batch_size=8))
    drive.ready()
    drive.commit([0], rewards=(1e30, -1e30))
    drive.step()
    assert drive.state.policies["solver"].ready[0].spread == 2e30
    assert b"null" not in json.dumps(json.loads(drive.state.snapshot())["policies"]["solver"]["ready"]).encode()
