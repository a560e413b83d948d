"""Groups of two policies, one of which has ended, is slow or frozen: the other gets on, and every part is counted."""

from __future__ import annotations

import pytest

from astraflow import records as r
from astraflow.config import RunConfig
from tests.dataflow.drive import Drive, drops, make_config, make_parts, of

STEPS = 8
KINDS = ("ended", "slow", "frozen")


def config_of(kind: str) -> RunConfig:
    """``verifier`` is the one that does not get on."""
    verifier = {"frozen": True} if kind == "frozen" else {}
    return make_config(policies={"solver": {}, "verifier": verifier}, batch_size=2, steps=STEPS, max_staleness=2)


def begin(kind: str) -> Drive:
    """Trainers and pool are there, the first groups are leased, and an ended verifier has ended."""
    drive = Drive(config_of(kind))
    drive.ready()
    if kind == "ended":
        drive.say("trainer-verifier", r.Ended(policy="verifier", reason="done"), r.Left())
        drive.step()
    return drive


def play_to_the_end(drive: Drive) -> None:
    """All groups come in as they are leased, and the solver's trainer trains what it gets."""
    trained = 0
    for _ in range(10 * STEPS):
        drive.beat("pool-a", "trainer-solver", "trainer-verifier")
        if groups := drive.open_groups():
            version = drive.state.participants["pool-a"].applied["solver"].version
            objects = [make_parts("pool-a", groups, version=version)]
            objects.append(make_parts("pool-a", groups, policy="verifier"))
            attempts = [drive.state.participants["pool-a"].held[group] for group in groups]
            drive.say("pool-a", r.Committed(groups=groups, attempts=attempts, objects=objects))
        drive.step()
        if drive.state.policies["solver"].unconsumed:
            drive.train(trained)
            trained += 1
            drive.say("pool-a", drive.applied("solver", trained, trained))
            drive.step()
        if trained == STEPS:
            return


@pytest.mark.parametrize("kind", KINDS)
def test_the_other_trains_all_its_batches_of_whole_size(kind: str) -> None:
    drive = begin(kind)
    play_to_the_end(drive)
    solver = drive.state.policies["solver"]
    assert solver.consumed == STEPS
    assert [len(batch.groups) for batch in of(drive.log, r.Batched) if batch.policy == "solver"] == [2] * STEPS
    assert not [d for d in of(drive.log, r.Dropped) if d.policy == "solver"], "the solver paid for it"


@pytest.mark.parametrize("kind", KINDS)
def test_each_of_its_parts_is_kept_or_dropped_by_name_and_counted(kind: str) -> None:
    drive = begin(kind)
    play_to_the_end(drive)
    state, queue = drive.state, drive.state.policies["verifier"]
    named = {reason: groups for (policy, reason), groups in drops(drive.log).items() if policy == "verifier"}
    assert {reason: len(groups) for reason, groups in named.items()} == queue.dropped
    gone = [group for groups in named.values() for group in groups]
    assert len(gone) == len(set(gone)), "a part was dropped twice"
    batched = [part.group for parts in queue.batches.values() for part in parts]
    assert sorted([*gone, *queue.ready, *batched, *state.leases.open]) == list(range(state.leases.next_group))
    assert set(named) == {"ended": {"ended"}, "slow": {"surplus"}, "frozen": {"frozen"}}[kind]
    assert queue.dropped_tokens == {reason: 10 * len(groups) for reason, groups in named.items()}


def test_what_a_slow_policy_keeps_is_the_newest_that_it_can_use() -> None:
    drive = begin("slow")
    play_to_the_end(drive)
    queue = drive.state.policies["verifier"]
    (surplus,) = [groups for (policy, _), groups in drops(drive.log).items() if policy == "verifier"]
    assert len(queue.ready) == 6  # (max_staleness + 1) batches
    assert max(surplus) < min(queue.ready)
    drive.train(0, policy="verifier")  # it gets on after all: with what was kept
    drive.say("pool-a", drive.applied("verifier", 1, 1))
    (batch,) = of(drive.step(), r.Batched)
    assert (batch.policy, batch.n, batch.groups) == (
        "verifier",
        2,
        sorted(queue.ready | dict.fromkeys(batch.groups))[:2],
    )


def test_only_the_end_of_all_is_the_end_of_the_run() -> None:
    drive = begin("ended")
    assert not of(drive.log, r.DrainRequested)
    play_to_the_end(drive)
    assert not of(drive.log, r.DrainRequested)
    drive.say("trainer-solver", r.Ended(policy="solver", reason="done"), r.Left())
    assert [d.reason for d in of(drive.step(), r.DrainRequested)] == ["all policies have ended"]


# --- whose tokens are how old -------------------------------------------------------------------------


def mixed(group: int, low: int, high: int, *, policy: str = "solver") -> r.PartsObject:
    """A part of which only one token is as old as ``low``."""
    path = f"run/trajectories/policy={policy}/version={low}/pool-a-{group}.parquet"
    return make_parts("pool-a", [group], policy=policy, version_min=[high, low], version_max=[high, high], path=path)


def at_step_2(max_staleness: int) -> Drive:
    """A run whose next batch is trained at step 2, with groups under way."""
    drive = Drive(make_config(batch_size=1, max_staleness=max_staleness, prefetch=1))
    drive.ready()
    for n in range(2):
        drive.commit(drive.open_groups()[:1], version=n)
        drive.step()
        drive.train(n)
        drive.say("pool-a", drive.applied(version=n + 1, step=n + 1))
        drive.step()
    return drive


@pytest.mark.parametrize(("max_staleness", "is_used"), [(2, True), (1, False)])
def test_one_token_of_version_0_makes_a_part_as_old_as_it_is(max_staleness: int, is_used: bool) -> None:
    drive = at_step_2(max_staleness)
    group = drive.open_groups()[0]
    drive.say("pool-a", r.Committed(groups=[group], attempts=[1], objects=[mixed(group, 0, 2)]))
    decisions = drive.step()
    assert not of(decisions, r.Rejected), of(decisions, r.Rejected)
    batched = {batch.n: (batch.groups, batch.versions) for batch in of(decisions, r.Batched)}
    assert batched == ({2: ([group], [0])} if is_used else {})
    assert drops(decisions) == ({} if is_used else {("solver", "stale"): [group]})
    if is_used:
        window = drive.state.policies["solver"].window
        assert (window.lags[2], window.lag_max) == (1, 2), "its lag is not told"


def test_version_0_is_older_than_version_1_for_edf() -> None:
    drive = at_step_2(3)
    new, old = drive.open_groups()[:2]
    drive.say("pool-a", r.Committed(groups=[new], attempts=[1], objects=[mixed(new, 1, 2)]))
    drive.say("pool-a", r.Committed(groups=[old], attempts=[1], objects=[mixed(old, 0, 2)]))
    drive.step()
    assert [batch.groups for batch in of(drive.log, r.Batched)][-2:] == [[old], [new]]
