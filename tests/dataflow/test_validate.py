"""Bad records have no effect, are named, and quarantine who sends too many."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from astraflow import records as r
from astraflow.config import Region
from tests.dataflow.drive import Drive, leased_groups, make_config, make_parts, of


def _drive() -> Drive:
    drive = Drive(make_config(policies={"solver": {}, "judge": {"frozen": True}}))
    drive.ready()
    drive.commit([3])
    drive.step()
    return drive


def _committed(**columns: Any) -> r.Committed:
    return r.Committed(groups=[0, 1], attempts=[1, 1], objects=[make_parts("pool-a", [0, 1], **columns)])


def _object(**fields: Any) -> r.Committed:
    thing = msgspec.structs.replace(make_parts("pool-a", [0, 1]), **fields)
    return r.Committed(groups=[0, 1], attempts=[1, 1], objects=[thing])


COLUMNS = ["groups", "row_starts", "row_counts", "episodes", "roles", "slots", "version_min", "version_max"]
COLUMNS += ["rewards", "prompt_tokens", "response_tokens"]
POOL = {
    "an unknown group": (r.Committed(groups=[99], attempts=[1], objects=[]), "never leased"),
    "a negative group": (r.Committed(groups=[-1], attempts=[1], objects=[]), "never leased"),
    "another attempt": (r.Committed(groups=[0], attempts=[2], objects=[]), "is not its lease"),
    "attempt zero": (r.Committed(groups=[0], attempts=[0], objects=[]), "is not its lease"),
    "attempts missing": (r.Committed(groups=[0], attempts=[], objects=[]), "differ in number"),
    "a group twice": (r.Committed(groups=[0, 0], attempts=[1, 1], objects=[]), "named twice"),
    "no episodes": (r.Committed(groups=[0], attempts=[1], objects=[]), "0 of 2 episodes"),
    "too few episodes": (_committed(rewards=(1.0,)), "1 of 2 episodes"),
    "too many episodes": (_committed(rewards=(1.0, 0.0, 1.0)), "3 of 2 episodes"),
    "an episode out of range": (_object(episodes=[0, 7, 0, 1]), "of 2 episodes"),
    "a part twice": (
        r.Committed(groups=[0], attempts=[1], objects=[make_parts("pool-a", [0]), make_parts("pool-a", [0])]),
        "two parts",
    ),
    "a foreign part": (r.Committed(groups=[0], attempts=[1], objects=[make_parts("pool-a", [0, 1])]), "not committed"),
    "an unknown policy": (_committed(policy="nobody"), "no policy"),
    "rows of unequal length": (_object(rewards=[1.0]), "row columns"),
    "parts of unequal length": (_object(row_counts=[4]), "part columns"),
    "an empty part": (_object(row_counts=[4, 0]), "empty part"),
    "an empty object": (_object(**{column: [] for column in COLUMNS}), "empty part"),
    "overlapping parts": (_object(row_starts=[0, 1]), "do not cover"),
    "rows left over": (_object(row_counts=[2, 1]), "do not cover"),
    "parts before the object": (_object(row_starts=[-2, 0]), "do not cover"),
    "versions that cross": (_object(version_max=[0, 0, 0, -1]), "version_min above"),
    "a negative length": (_object(prompt_tokens=[3, 3, 3, -1]), "length that is not possible"),
    "a huge length": (_object(response_tokens=[3, 3, 3, 2**40]), "length that is not possible"),
    "a store that is not the run's": (_object(store="s3://elsewhere"), "neither the run's store nor"),
    "a reward too large for its column": (_committed(rewards=(1e39, 0.0)), "reward beyond"),
    "rewards whose spread is no number": (_committed(rewards=(1.5e308, -1.5e308)), "reward beyond"),
    "a length that no column holds": (_object(response_tokens=[5, 5, 5, 2**63]), "not possible"),
    "a prompt that no column holds": (_object(prompt_tokens=[2**70, 1, 1, 1]), "not possible"),
    "a reward that is no number": (_committed(rewards=(float("nan"), 0.0)), "not finite"),
    "an endless reward": (_committed(rewards=(0.0, float("-inf"))), "not finite"),
    "an item that was never leased": (
        r.Evaluated(evaluation="held", item=0, attempt=1, scores=[1.0], low={}, high={}),
        "no evaluation 'held'",
    ),
    "an item that failed and was never leased": (r.EvalFailed(item=0, attempt=1, kind="x"), "not its lease"),
    "an unpublished version": (_committed(version=1), "is not published"),
    "a path elsewhere": (_object(path="other/trajectories/policy=solver/version=0/pool-a-1.parquet"), "no trajectory"),
    "a path up": (_object(path="run/../secret"), "no trajectory"),
    "another's prefix": (_object(path="run/trajectories/policy=solver/version=0/pool-b-1.parquet"), "outside"),
    "another policy's path": (
        _object(path="run/trajectories/policy=judge/version=0/pool-a-1.parquet"),
        "not a path of",
    ),
    "another version's path": (_object(path="run/trajectories/policy=solver/version=1/pool-a-1.parquet"), "oldest"),
    "a failure of another's lease": (r.Failed(group=0, attempt=2, kind="x"), "is not its lease"),
    "a failure of nothing": (r.Failed(group=77, attempt=1, kind="x"), "never leased"),
    "another digest": (r.Applied(policy="solver", version=0, step=0, digest="other"), "another step or digest"),
    "another step": (r.Applied(policy="solver", version=0, step=1, digest="solver0"), "another step or digest"),
    "a step of the future": (r.Applied(policy="solver", version=1, step=9, digest="x"), "not possible yet"),
    "a moving frozen policy": (r.Applied(policy="judge", version=1, step=1, digest="x"), "not possible yet"),
    "a huge version": (r.Applied(policy="solver", version=2**31, step=0, digest="x"), "is not possible"),
    "a negative version": (r.Applied(policy="solver", version=-1, step=0, digest="x"), "is not possible"),
    "an unknown policy's version": (r.Applied(policy="no", version=1, step=0, digest="x"), "no policy"),
    "a trainer's word": (r.Published(policy="solver", version=1, step=0, incarnation=0, digest="x"), "not a trainer"),
    "the end of a policy": (r.Ended(policy="solver"), "not a trainer"),
    "fewer leases than places": (r.LeasesWanted(ahead=-1), "not possible"),
    "more leases ahead than places": (r.LeasesWanted(ahead=9), "9 leases ahead of 8 places"),
    "an unknown wish": (r.Wanted(what="dance"), "not a wish"),
    "a wish about nobody": (r.Wanted(what="drain", target="../x"), "no participant"),
    "a pause of an unknown policy": (r.Wanted(what="pause", target="no"), "no policy"),
    "a pause of an unknown region": (r.Wanted(what="pause", region="moon"), "no region of a pool; there are: local"),
    "a pause of all regions at once": (r.Wanted(what="pause", region=r.EVERYWHERE), "no region"),
    "a pause of a policy in a region": (r.Wanted(what="resume", target="solver", region="local"), "not of both"),
    "a region that is to stop": (r.Wanted(what="stop", region="local"), "no wish about a region"),
}


@pytest.mark.parametrize("name", POOL)
def test_a_bad_record_of_a_pool_has_no_effect(name: str) -> None:
    fact, reason = POOL[name]
    drive = _drive()
    drive.say("pool-a", r.Applied(policy="solver", version=5, step=0, digest="not learned"), fact)
    before = drive.state.policies["solver"].newest
    rejected = of(drive.step(), r.Rejected)
    assert len(rejected) == 1 and reason in rejected[0].reason
    assert (rejected[0].participant, rejected[0].seq, rejected[0].quarantined) == ("pool-a", 2, False)
    assert drive.state.policies["solver"].newest == before
    assert drive.state.participants["pool-a"].cursor == 3


TRAINER = {
    "a batch that does not exist": (r.Consumed(policy="solver", batch=5, step=6, incarnation=0), "does not exist"),
    "a batch before the first": (r.Consumed(policy="solver", batch=-1, step=0, incarnation=0), "does not exist"),
    "another step": (r.Consumed(policy="solver", batch=0, step=3, incarnation=0), "cannot be step"),
    "an endless metric": (
        r.Consumed(policy="solver", batch=0, step=1, incarnation=0, metrics={"loss": float("inf")}),
        "not finite",
    ),
    "a missing metric": (
        r.Consumed(policy="solver", batch=0, step=1, incarnation=0, metrics={"loss": float("nan")}),
        "not finite",
    ),
    "a huge incarnation": (r.TrainerJoined(policy="solver", incarnation=2**40), "incarnation"),
    "a frozen policy": (r.TrainerJoined(policy="judge", incarnation=0), "frozen"),
    "another protocol": (r.TrainerJoined(policy="solver", incarnation=1, protocol=99), "protocol"),
    "a pool's word": (r.Committed(groups=[], attempts=[], objects=[]), "only a pool"),
    "a pool's leases": (r.LeasesWanted(ahead=1), "only a pool"),
    "a pool's version": (r.Applied(policy="solver", version=1, step=0, digest="x"), "only a pool"),
    "a pool's arrival": (
        r.PoolJoined(pool="p", region="r", policies=[], capacity=1, engine="x", data_hash="abc"),
        "cannot join as a pool",
    ),
}


@pytest.mark.parametrize("name", TRAINER)
def test_a_bad_record_of_a_trainer_has_no_effect(name: str) -> None:
    fact, reason = TRAINER[name]
    drive = _drive()
    drive.commit([0])
    drive.step()
    drive.say("trainer-solver", fact)
    (rejected,) = of(drive.step(), r.Rejected)
    assert reason in rejected.reason
    assert drive.state.policies["solver"].consumed == 0


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"data_hash": "other"}, "another data set"),
        ({"protocol": 7}, "protocol"),
        ({"capacity": 0}, "capacity"),
        ({"policies": ["nobody"]}, "no policy"),
    ],
)
def test_a_pool_that_does_not_fit_is_not_let_in(fields: dict[str, Any], reason: str) -> None:
    joined = r.PoolJoined(pool="p", region="r", policies=["solver"], capacity=1, engine="x", data_hash="abc")
    drive = _drive()
    drive.say("pool-b", msgspec.structs.replace(joined, **fields))
    assert reason in of(drive.step(), r.Rejected)[0].reason
    assert drive.state.participants["pool-b"].role == ""


def test_a_pool_may_only_apply_what_it_serves() -> None:
    drive = _drive()
    drive.join_pool("pool-b", policies=["judge"])
    drive.say("pool-b", drive.applied("solver"))
    assert "does not serve" in of(drive.step(), r.Rejected)[0].reason


def test_versions_and_steps_rise_together() -> None:
    drive = Drive(make_config(batch_size=1))
    drive.ready()
    drive.commit([0, 1])
    drive.step()
    drive.train(0)
    drive.say("trainer-solver", drive.published("solver", 5, 1))
    drive.step()
    drive.say("trainer-solver", drive.published("solver", 7, 0))
    assert "falls" in of(drive.step(), r.Rejected)[0].reason
    drive.say("trainer-solver", drive.published("solver", 3, 2))
    assert "above a later" in of(drive.step(), r.Rejected)[0].reason
    drive.say("trainer-solver", drive.published("solver", 3, 1))
    assert not of(drive.step(), r.Rejected)


def test_a_record_may_use_what_its_own_earlier_facts_say() -> None:
    drive = Drive(make_config(batch_size=1))
    drive.ready()
    drive.commit([0])
    drive.step()
    applied = drive.applied(version=1, step=1)
    commit = r.Committed(groups=[1], attempts=[1], objects=[make_parts("pool-a", [1], version=1)])
    drive.say("pool-a", applied, commit)
    assert of(drive.step(), r.Admitted)[0].groups == [1]


def test_parts_may_stand_in_any_order() -> None:
    drive = Drive(make_config())
    drive.ready()
    thing = msgspec.structs.replace(make_parts("pool-a", [0, 1]), row_starts=[2, 0])
    drive.say("pool-a", r.Committed(groups=[0, 1], attempts=[1, 1], objects=[thing]))
    assert of(drive.step(), r.Batched)[0].row_starts == [2, 0]


def test_a_wrong_commit_ends_its_leases_at_once() -> None:
    drive = _drive()
    drive.say("pool-a", _committed(rewards=(1.0,)))
    decisions = drive.step()
    assert of(decisions, r.Expired)[0] == r.Expired(pool="pool-a", groups=[0, 1], attempts=[1, 1], reason="rejected")
    assert leased_groups(decisions)[:2] == [0, 1]


def test_a_record_in_anothers_name_is_refused() -> None:
    drive = _drive()
    drive._inbox.append(("pool-a", r.FactRecord(id="x", participant="pool-b", facts=[r.Left()])))
    assert "pool-b" in of(drive.step(), r.Rejected)[0].reason
    assert not drive.state.participants["pool-a"].left


def test_repeats_quarantine() -> None:
    drive = _drive()
    for _ in range(6):
        drive.garble("pool-a")
    decisions = drive.step()
    rejected = of(decisions, r.Rejected)
    assert [d.quarantined for d in rejected] == [False, False, False, False, True]
    assert rejected[0].reason == "not a FactRecord"
    assert of(decisions, r.Expired)[0].reason == "quarantined"
    assert drive.state.participants["pool-a"].cursor == rejected[-1].seq + 1
    assert not leased_groups(decisions)


def test_nobody_is_heard_after_leaving() -> None:
    drive = _drive()
    drive.say("pool-a", r.Left())
    drive.commit([0])
    decisions = drive.step()
    assert not of(decisions, r.Admitted)
    assert drive.state.participants["pool-a"].cursor == 3


@pytest.mark.parametrize(
    ("store", "is_in"),
    [("", True), ("s3://root", True), ("s3://here", True), ("s3://there", False), ("s3://here/", False)],
)
@pytest.mark.parametrize("joins_with_it", [False, True])
def test_a_pool_may_name_the_runs_store_and_its_own_regions(store: str, is_in: bool, joins_with_it: bool) -> None:
    regions = {"bare": Region(), "there": Region(store="s3://there"), "here": Region(store="s3://here")}
    drive = Drive(make_config().model_copy(update={"store": "s3://root", "regions": regions}))
    drive.ready()
    said: list[r.AnyFact] = [msgspec.structs.replace(_object(store=store))]
    if joins_with_it:  # in a record that says the region anew
        joined = r.PoolJoined(pool="local", region="here", policies=["solver"], capacity=8, engine="x", data_hash="abc")
        drive.state.participants["pool-a"].region = drive.mirror.participants["pool-a"].region = "bare"
        said.insert(0, joined)
    drive.say("pool-a", *said)
    decisions = drive.step()
    assert bool(of(decisions, r.Admitted)) is is_in
    assert [d.reason.endswith("of its region") for d in of(decisions, r.Rejected)] == [True] * (not is_in)


def test_a_trainer_needs_no_introduction() -> None:
    drive = Drive(make_config())
    drive.say("trainer-solver", drive.published("solver", 0, 0))
    assert not of(drive.step(), r.Rejected)
    assert drive.state.policies["solver"].newest == 0
