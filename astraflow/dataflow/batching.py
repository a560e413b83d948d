"""Which parts can be trained on, and what the next batch is made of: questions about the state that change nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from astraflow import records as r
from astraflow.dataflow.algorithms import FILTER_ERROR
from astraflow.dataflow.parts import Arrival, Part, PartRows
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
    oldest = max(0, queue.formed - state.flow.max_staleness)
    return [group for group, part in queue.ready.items() if part.step < oldest]


def surplus_groups(state: RunState, policy: str) -> list[int]:
    """The oldest ready parts, where there are more than staleness lets anyone use."""
    ready = state.policies[policy].ready
    excess = len(ready) - (state.flow.max_staleness + 1) * state.batch_size[policy]
    if excess <= 0:
        return []
    oldest = sorted(ready.values(), key=lambda part: (part.step, part.arrival))
    return [part.group for part in oldest[:excess]]


def is_stale(part: Part, n: int, max_staleness: int) -> bool:
    """Batch ``n`` is trained at step ``n``."""
    return part.step < max(0, n - max_staleness)


def unfit_groups(state: RunState, policy: str, won: Sequence[tuple[int, Arrival]]) -> dict[str, list[int]]:
    """Newly admitted parts that will never be trained on, by the reason why."""
    queue, drops = state.policies[policy], dict[str, list[int]]()
    ready, formed, max_staleness = queue.ready, queue.formed, state.flow.max_staleness
    filters = [(reason, filter_.keep) for reason, filter_ in state.algorithms.filters.items()]
    always = "frozen" if queue.frozen else "ended" if queue.ended else ""
    for group, arrival in won:
        rows = arrival.parts.get(policy)
        if rows is None or always:
            reason = always if queue.frozen or rows is not None else "absent"
        elif is_stale(ready[group], formed, max_staleness):
            reason = "stale"
        else:
            reason = _first_refusal(filters, rows) if filters else ""
        if reason:
            drops.setdefault(reason, []).append(group)
    return drops


def _first_refusal(filters: Sequence[tuple[str, Callable[[PartRows], bool]]], rows: PartRows) -> str:
    """The first filter that does not keep the part; empty if all do."""
    for reason, keep in filters:
        try:
            is_kept = keep(rows)
        except Exception:  # noqa: BLE001 - the boundary to own code; recorded as the reason, so nobody asks again
            return FILTER_ERROR
        if not is_kept:
            return reason
    return ""


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
