"""Who may be leased how much, and who is still waited for: questions about the state that change nothing.

A pool is leased more of a policy while what is under way (leased, ready, batched) is less than what the trainer
can still use: the fresh parts of its next ``max_staleness + 1 - behind`` batches, ``behind`` being how many steps
the pool's weights are old.
"""

from __future__ import annotations

from collections.abc import Sequence

from astraflow.dataflow.participants import Participant
from astraflow.dataflow.state import RunState


def pools_with_room(state: RunState) -> list[tuple[str, Participant]]:
    """Pools that can play the workflow now and have room: the quickest first, then those with most room."""
    able = [
        (name, participant)
        for name, participant in sorted(state.participants.items())
        if participant.room > 0 and may_play(state, participant)
    ]
    return sorted(able, key=lambda pool: (pool[1].group_s, -pool[1].room))


def weights(pools: Sequence[tuple[str, Participant]]) -> list[float]:
    """Each pool's share of what is leased: its room by the speed of its places, so that a slow pool gets less.

    A pool whose speed is not known yet counts as quick as the quickest: it is found out at once, and before anybody
    is known all are alike.
    """
    quickest = min((pool.group_s for _, pool in pools if pool.group_s > 0), default=1.0)
    return [pool.room / (pool.group_s or quickest) for _, pool in pools]


def may_play(state: RunState, participant: Participant) -> bool:
    """Whether it is a pool that can play the workflow now, if it has room, in a region that is not paused."""
    return (
        participant.is_able(state.names, state.now, state.flow.silence_s)
        and participant.serves(state.names)
        and participant.region not in state.ledger.scaling.paused
    )


def lease_need(state: RunState, pool: Participant) -> int:
    """How many more groups this pool may be leased now."""
    gaps = [_gap(state, policy, pool) for policy in state.batch_size if state.policies[policy].is_live]
    if not gaps:
        return 0
    return max(0, min(gaps) if state.flow.coupling == "slowest" else max(gaps))


def _gap(state: RunState, policy: str, pool: Participant) -> int:
    """Fresh parts of the policy's next batches that this pool could still reach, less what is under way."""
    queue = state.policies[policy]
    if queue.paused:
        return 0
    behind = max(0, queue.newest_step - pool.applied[policy].step)
    last = min(queue.consumed + state.flow.max_staleness + 1 - behind, state.steps[policy])
    replay = state.algorithms.replays[policy]
    formed = sum(len(queue.batches[n]) for n in range(queue.consumed, min(last, queue.formed)))
    coming = sum(state.batch_size[policy] - replay.supply(n) for n in range(queue.formed, last))
    return formed + coming - state.load(policy)


def is_told(state: RunState, participant: Participant) -> bool:
    """It has read that it shall drain, or will never read anything again."""
    return participant.draining or participant.is_gone(state.now, state.flow.silence_s)


def is_awaited(state: RunState, participant: Participant) -> bool:
    """Its last word is worth waiting for: pools hand back quickly, a trainer has a batch in hand."""
    if not participant.role or participant.is_gone(state.now, state.flow.silence_s):
        return False
    patience_s = state.flow.drain_s + state.flow.silence_s
    if participant.role == "trainer" and not state.policies[participant.name].ended:
        patience_s += state.config.trainer_of(participant.name).batch_timeout_s
    return state.now - (state.ledger.draining_since or 0.0) <= patience_s
