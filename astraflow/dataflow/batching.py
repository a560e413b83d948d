"""Which parts can be trained on, and what the next batch is made of: questions about the state that change nothing."""

from __future__ import annotations

from collections.abc import Sequence

from astraflow import records as r
from astraflow.dataflow.algorithms import FILTER_ERROR
from astraflow.dataflow.parts import Arrival
from astraflow.dataflow.policy_queue import PolicyQueue
from astraflow.dataflow.state import RunState


def kept_groups(queue: PolicyQueue) -> list[int]:
    """Groups whose part is ready, or batched and not consumed."""
    return [*queue.ready, *(part.group for n in sorted(queue.batches) for part in queue.batches[n])]


def stale_groups(state: RunState, policy: str) -> list[int]:
    """Ready parts that not even the next batch may use."""
    queue = state.policies[policy]
    if state.sifted.get(policy) == queue.formed:
        return []  # what came since was judged when it was admitted
    state.sifted[policy] = queue.formed
    oldest = oldest_step(queue.formed, state.flow.max_staleness)
    return [group for group, part in queue.ready.items() if part.step < oldest]


def surplus_groups(state: RunState, policy: str) -> list[int]:
    """The oldest ready parts, where there are more than staleness lets anyone use."""
    ready = state.policies[policy].ready
    excess = len(ready) - (state.flow.max_staleness + 1) * state.batch_size[policy]
    if excess <= 0:
        return []
    oldest = sorted(ready.values(), key=lambda part: (part.step, part.arrival))
    return [part.group for part in oldest[:excess]]


def oldest_step(n: int, max_staleness: int) -> int:
    """The oldest step of which batch ``n`` may hold tokens; it is trained at step ``n``."""
    return max(0, n - max_staleness)


def unfit_groups(state: RunState, policy: str, won: Sequence[tuple[int, Arrival]]) -> dict[str, list[int]]:
    """Newly admitted parts that will never be trained on, by the reason why."""
    queue, drops = state.policies[policy], dict[str, list[int]]()
    ready, oldest = queue.ready, oldest_step(queue.formed, state.flow.max_staleness)
    filters = [(name, filter_.keep) for name, filter_ in state.algorithms.filters.items()]
    always = "frozen" if queue.frozen else "ended" if queue.ended else ""
    for group, arrival in won:
        rows, reason = arrival.parts.get(policy), ""
        if rows is None or always:
            reason = always if queue.frozen or rows is not None else "absent"
        elif ready[group].step < oldest:
            reason = "stale"
        else:
            for name, keep in filters:
                try:
                    reason = "" if keep(rows) else name
                except Exception:  # noqa: BLE001 - the boundary to own code; recorded as the reason: nobody asks again
                    reason = FILTER_ERROR
                if reason:
                    break
        if reason:
            drops.setdefault(reason, []).append(group)
    return drops


def fresh_wanted(state: RunState, policy: str, size: int) -> int:
    """Fresh parts of the next batch; 0 if it cannot be formed now."""
    queue = state.policies[policy]
    wanted = size - state.algorithms.replays[policy].supply(queue.formed)
    if len(queue.ready) >= wanted:
        return wanted
    is_barren = queue.filtered >= state.flow.max_redraw * size
    return len(queue.ready) if is_barren else 0


def make_batch(state: RunState, policy: str, fresh: int) -> r.Batched:
    """Batch ``formed``: the first ``fresh`` ready parts by rank, then what replay adds."""
    queue = state.policies[policy]
    rank = state.algorithms.order.rank
    parts = sorted(queue.ready.values(), key=rank)[:fresh]
    parts += state.algorithms.replays[policy].mix(queue.formed)
    where: dict[tuple[str, str, str], int] = {}
    objects = [where.setdefault((part.path, part.store, part.hash), len(where)) for part in parts]
    return r.Batched(
        policy=policy,
        n=queue.formed,
        paths=[path for path, _, _ in where],
        stores=[store for _, store, _ in where],
        hashes=[digest for _, _, digest in where],
        groups=[part.group for part in parts],
        objects=objects,
        row_starts=[part.row_start for part in parts],
        row_counts=[part.row_count for part in parts],
        versions=[part.version for part in parts],
    )
