"""What the decisions log makes of a pool's leases."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from astraflow.raas.leases import Lease, Leases
from astraflow.records import Admitted, AnyDecision, DrainRequested, Dropped, Expired, Leased, Paused, Stopped

ME, OTHER = "pool-a-1", "pool-b-2"


def leased(pool: str, *groups: int, attempt: int = 1) -> Leased:
    return Leased(pool=pool, groups=list(groups), problems=[9] * len(groups), attempts=[attempt] * len(groups))


def test_leases_are_taken_in_order_and_forgotten_when_done() -> None:
    leases = Leases(ME)
    assert leases.fold([leased(ME, 4, 2), leased(OTHER, 3), leased(ME, 5)]) == []
    taken = [leases.next() for _ in range(2)]
    assert taken == [Lease(4, 9, 1), Lease(2, 9, 1)]
    leases.done(taken[0])
    assert list(leases.playing.values()) == [taken[1]] and list(leases.waiting) == [Lease(5, 9, 1)]


def test_waiting_leases_go_without_a_word_and_playing_ones_are_named() -> None:
    leases = Leases(ME)
    leases.fold([leased(ME, 1, 2, 3)])
    playing = leases.next()
    assert leases.fold([Admitted(groups=[1, 2], attempts=[2, 2], participant=OTHER)]) == [playing]
    assert [lease.group for lease in leases.waiting] == [3]
    assert leases.fold([Expired(pool=ME, groups=[3], attempts=[1], reason="silent")]) == []
    assert not leases.waiting and not leases.playing


def test_a_second_attempt_of_the_same_pool() -> None:
    leases = Leases(ME)
    leases.fold([leased(ME, 1, attempt=2)])
    second = leases.next()
    assert leases.fold([Expired(pool=ME, groups=[1], attempts=[1], reason="old")]) == []
    assert leases.fold([Admitted(groups=[1], attempts=[2], participant=ME)]) == []
    assert leases.playing == {1: second}
    assert leases.fold([Admitted(groups=[1], attempts=[1], participant=ME)]) == [second]


def test_orders() -> None:
    leases = Leases(ME)
    leases.fold(
        [
            DrainRequested(participants=[OTHER], reason="x"),
            Paused(policy=""),
            Dropped(policy="p", groups=[1], reason="r"),
        ]
    )
    assert leases.drain is None
    leases.fold([DrainRequested(participants=[], reason="")])
    assert leases.drain == "drained"
    leases.fold([Stopped(reason="")])
    assert leases.stopped == "stopped"


groups, attempts, pools = st.integers(0, 3), st.integers(1, 3), st.sampled_from([ME, OTHER])
decisions = st.one_of(
    st.builds(lambda p, g, a: leased(p, g, attempt=a), pools, groups, attempts),
    st.builds(lambda p, g, a: Admitted(groups=[g], attempts=[a], participant=p), pools, groups, attempts),
    st.builds(lambda p, g, a: Expired(pool=p, groups=[g], attempts=[a], reason=""), pools, groups, attempts),
)


@given(st.lists(st.one_of(decisions, st.just("next")), max_size=30))
def test_a_lease_is_in_one_place_and_only_playing_ones_are_void(steps: list[AnyDecision | str]) -> None:
    leases = Leases(ME)
    given_to_me = set()
    for step in steps:
        before = dict(leases.playing)
        if isinstance(step, str):
            if leases.waiting and leases.waiting[0].group not in leases.playing:
                leases.next()
            continue
        if isinstance(step, Leased) and step.pool == ME:
            given_to_me.add((step.groups[0], step.attempts[0]))
        void = leases.fold([step])
        assert all(before.get(lease.group) == lease and lease not in leases.playing.values() for lease in void)
        assert {(lease.group, lease.attempt) for lease in [*leases.waiting, *leases.playing.values()]} <= given_to_me
        if isinstance(step, Admitted) and step.participant == OTHER:
            assert all(lease.group != step.groups[0] for lease in [*leases.waiting, *leases.playing.values()])
