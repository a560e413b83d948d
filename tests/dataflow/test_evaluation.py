"""Evaluation beside training: when rounds begin, who plays them in which places, and what ends them."""

from __future__ import annotations

from typing import Any

from astraflow import records as r
from astraflow.config import Evaluation, Problems
from astraflow.dataflow.figures import wait_reason
from tests.dataflow.drive import Drive, leased_groups, make_config, of


def _drive(*, capacity: int = 8, flow: dict[str, Any] | None = None, **evaluation: Any) -> Drive:
    fields = {"problems": Problems(source="none"), "problem_count": 3, "repeats": 2, **evaluation}
    config = make_config(batch_size=1, **{"steps": 3, **(flow or {})})
    drive = Drive(config.model_copy(update={"evaluations": {"held": Evaluation(**fields)}}))
    drive.ready(capacity)
    return drive


def _result(item: int, attempt: int = 1, version: int = 0, scores: tuple[float, ...] = (1.0, 0.0)) -> r.Evaluated:
    span = {"solver": version}
    return r.Evaluated(evaluation="held", item=item, attempt=attempt, scores=list(scores), low=span, high=span)


def _train(drive: Drive, batch: int) -> None:
    """One batch, and the pool's new version."""
    drive.commit(drive.open_groups()[:1])
    drive.step()
    drive.train(batch)
    drive.say("pool-a", drive.applied("solver", batch + 1, batch + 1))
    drive.step()


def test_a_round_begins_at_the_start_in_few_places_and_is_no_load() -> None:
    drive = _drive(capacity=40, problem_count=30)
    assert of(drive.log, r.EvalStarted) == [
        r.EvalStarted(evaluation="held", round=0, versions={"solver": 0}, reason="start")
    ]
    (leased,) = of(drive.log, r.EvalLeased)
    assert (leased.items, leased.problems, leased.attempts) == ([0, 1, 2, 3], [0, 1, 2, 3], [1] * 4)
    assert drive.state.load("solver") == len(drive.open_groups()) == 2


def test_one_place_at_least_and_the_rest_is_for_training() -> None:
    drive = _drive(capacity=2)
    assert of(drive.log, r.EvalLeased)[0].items == [0]
    assert len(leased_groups(drive.log)) == 1


def test_a_round_is_reported_when_every_problem_is_scored() -> None:
    drive = _drive()
    for item in range(3):
        drive.say("pool-a", _result(item))
        decisions = drive.step()
    (report,) = of(decisions, r.EvalReported)
    assert (report.reason, report.problems, report.missing) == ("complete", 3, 0)
    assert (report.low, report.high, report.figures["avg@2"]) == ({"solver": 0}, {"solver": 0}, 0.5)
    assert report.figures["pass@2"] == 1.0
    assert not drive.state.participants["pool-a"].evals and not drive.state.ledger.evaluations.rounds
    assert not of(drive.step(), r.EvalStarted)


def test_rounds_come_every_n_versions_on_pools_that_have_applied_them() -> None:
    drive = _drive(at_start=False, every=2, flow={"steps": 9})
    assert not of(drive.log, r.EvalStarted)
    _train(drive, 0)
    assert not of(drive.log, r.EvalStarted)
    drive.commit(drive.open_groups()[:1])
    drive.step()
    drive.train(1)
    decisions = drive.step()
    assert of(decisions, r.EvalStarted)[0].versions == {"solver": 2}
    assert not of(decisions, r.EvalLeased), "its pool still samples from version 1"
    drive.say("pool-a", drive.applied("solver", 2, 2))
    assert of(drive.step(), r.EvalLeased)[0].items == [0]
    drive.say("pool-a", _result(0, version=1))
    assert "older versions" in of(drive.step(), r.Rejected)[0].reason
    drive.say("pool-a", _result(0, version=2))
    drive.step()
    assert drive.state.ledger.evaluations.rounds["held"].scores == {0: [1.0, 0.0]}


def test_what_failed_is_leased_again_and_then_missing() -> None:
    drive = _drive(problem_count=1)
    drive.say("pool-a", r.EvalFailed(item=0, attempt=1, kind="environment"))
    decisions = drive.step()
    assert of(decisions, r.EvalExpired)[0].reason == "environment"
    assert of(decisions, r.EvalLeased)[0].attempts == [2]
    drive.say("pool-a", r.EvalFailed(item=0, attempt=1, kind="again"))
    assert not of(drive.step(), r.EvalExpired), "that attempt is over"
    drive.say("pool-a", r.EvalFailed(item=0, attempt=2, kind="environment"))
    decisions = drive.step()
    (report,) = of(decisions, r.EvalReported)
    assert (report.problems, report.missing, report.figures) == (0, 1, {})


def test_a_lost_pools_items_go_to_another_and_the_first_result_counts() -> None:
    drive = _drive(problem_count=1)
    drive.join_pool("pool-b")
    drive.step()
    drive.say("experiment-1", r.Wanted(what="lost", target="pool-a"))
    decisions = drive.step()
    assert of(decisions, r.EvalExpired)[0].reason == "lost"
    assert of(decisions, r.EvalLeased)[0].pool == "pool-b"
    drive.say("pool-a", _result(0, attempt=1, scores=(1.0, 1.0)))
    drive.beat("pool-a")
    decisions = drive.step()
    assert of(decisions, r.EvalReported)[0].figures["avg@2"] == 1.0
    assert not drive.state.participants["pool-b"].evals
    drive.say("pool-b", _result(0, attempt=2, scores=(0.0, 0.0)))
    assert not drive.step(), "too late: it has no effect"


def test_a_round_has_a_deadline() -> None:
    drive = _drive(timeout_s=5)
    drive.say("pool-a", _result(0))
    drive.step()
    drive.beat("pool-a")
    (report,) = of(drive.step(6.0), r.EvalReported)
    assert (report.reason, report.problems, report.missing) == ("deadline", 1, 2)
    assert not drive.state.participants["pool-a"].evals


def test_a_lease_has_a_deadline_too() -> None:
    drive = _drive(flow={"group_timeout_s": 5})
    drive.beat("pool-a")
    decisions = drive.step(6.0)
    assert of(decisions, r.EvalExpired)[0].reason == "timeout"


def test_the_last_versions_are_evaluated_before_the_run_ends() -> None:
    drive = _drive(problem_count=1, at_start=False, flow={"steps": 1})
    _train(drive, 0)
    drive.say("trainer-solver", r.Ended(policy="solver"), r.Left())
    decisions = drive.step()
    assert of(decisions, r.EvalStarted)[0].reason == "end" and not of(decisions, r.DrainRequested)
    assert wait_reason(drive.state, "solver") == "final evaluation: 0 problems of held are scored"
    drive.say("pool-a", _result(0, version=1))
    decisions = drive.step()
    assert of(decisions, r.EvalReported) and of(decisions, r.DrainRequested)
    drive.say("pool-a", r.Left())
    assert of(drive.step(), r.Stopped)


def test_the_end_does_not_wait_longer_than_a_round_may_take() -> None:
    drive = _drive(problem_count=1, at_start=False, timeout_s=5, flow={"steps": 1})
    _train(drive, 0)
    drive.say("trainer-solver", r.Ended(policy="solver"), r.Left())
    drive.step()
    drive.beat("pool-a")
    decisions = drive.step(6.0)
    assert of(decisions, r.EvalReported)[0].reason == "deadline"
    assert of(decisions, r.DrainRequested)


def test_a_stop_does_not_wait_for_a_round() -> None:
    drive = _drive()
    drive.say("pool-a", _result(0))
    drive.say("operator-1", r.Wanted(what="stop", reason="enough"))
    drive.step()
    drive.say("pool-a", r.Left())
    drive.say("trainer-solver", r.Ended(policy="solver"), r.Left())
    decisions = drive.step()
    (report,) = of(decisions, r.EvalReported)
    assert (report.reason, report.problems) == ("stopped", 1)
    assert isinstance(decisions[-1], r.Stopped)


def test_a_new_epoch_keeps_rounds_and_starts_their_timers_again() -> None:
    drive = _drive(timeout_s=50)
    drive.step(40.0)
    drive.new_epoch()
    drive.beat("pool-a", "trainer-solver")
    assert not of(drive.step(20.0), r.EvalReported)
    assert drive.state.ledger.evaluations.rounds["held"].leased


def test_a_wrong_number_of_scores_is_refused() -> None:
    drive = _drive()
    drive.say("pool-a", _result(0, scores=(1.0,)))
    assert "1 scores of 2 plays" in of(drive.step(), r.Rejected)[0].reason
    drive.say("pool-a", _result(7))
    assert "not its lease" in of(drive.step(), r.Rejected)[0].reason
