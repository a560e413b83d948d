"""Figures and words about the state: load reports for autoscaling, and why a policy waits.

Pure functions of the state; nothing here decides.
"""

from __future__ import annotations

from astraflow.dataflow.admission import may_play
from astraflow.dataflow.participants import Participant
from astraflow.dataflow.policy_queue import PolicyQueue
from astraflow.dataflow.state import RunState
from astraflow.records import EVERYWHERE


def load_figures(state: RunState, policy: str) -> dict[str, float]:
    """What a ``LoadReported`` says: counts since the last one, and sizes now. Metrics are means over the steps."""
    queue = state.policies[policy]
    window = queue.window
    figures = {
        "produced": float(window.produced),
        "consumed": float(window.consumed),
        "steps": float(queue.consumed - window.step),
        "lag_mean": window.lag_sum / window.lag_parts if window.lag_parts else 0.0,
        "lag_max": float(window.lag_max),
        **{f"lag_{lag}": float(count) for lag, count in sorted(window.lags.items())},
        **queue_figures(state, queue),
        "pools": float(len(able_pools(state))),
        "capacity": float(sum(pool.capacity for pool in able_pools(state).values())),
    }
    time_s = state.leases.time_s - window.from_s
    if time_s > 0:
        figures["leased_mean"] = (state.leases.played_s - window.played_from_s) / time_s
    for name in sorted(window.metrics):
        figures.setdefault(name, window.metrics[name] / max(1, window.steps))
    spent_s = window.metrics.get("wait_s", 0.0) + window.metrics.get("step_s", 0.0)
    if spent_s > 0:
        figures["wait_ratio"] = window.metrics.get("wait_s", 0.0) / spent_s
    figures |= {f"curator_{name}": float(count) for name, count in state.curator.counts().items()}
    return figures


def pool_figures(state: RunState, policy: str) -> dict[str, dict[str, float]]:
    """Each able pool's rate (groups a second with all places taken), room, and how old its weights are."""
    queue = state.policies[policy]
    return {
        name: {
            "capacity": float(pool.capacity),
            **({"ahead": float(pool.ahead)} if pool.ahead else {}),
            "room": float(pool.room),
            "held": float(len(pool.held)),
            "admitted": float(pool.admitted),
            "group_s": pool.group_s,
            "rate": pool.rate,
            "version": float(pool.applied[policy].version),
            "behind": float(max(0, queue.newest_step - pool.applied[policy].step)),
        }
        for name, pool in sorted(able_pools(state).items())
    }


def queue_figures(state: RunState, queue: PolicyQueue) -> dict[str, float]:
    """Sizes of one policy's queue now, and all its drops by reason."""
    drops = {f"dropped_{reason}": float(count) for reason, count in queue.dropped.items()}
    return {
        "leased": float(len(state.leases.leased)),
        "ready": float(len(queue.ready)),
        "batched": float(queue.batched),
        **drops,
    }


def status_figures(state: RunState) -> dict[str, float]:
    """What the manager's status object shows."""
    figures = {
        "records": float(state.ledger.seq + 1),
        "epoch": float(state.ledger.epoch),
        "groups": float(state.leases.next_group),
        "pools": float(len(able_pools(state))),
        "curator_errors": float(state.curator.faults),
    }
    for policy, queue in state.policies.items():
        figures[f"{policy}.step"] = float(queue.consumed)
        figures[f"{policy}.version"] = float(queue.newest)
        figures |= {f"{policy}.{name}": value for name, value in queue_figures(state, queue).items()}
    return figures


def able_pools(state: RunState) -> dict[str, Participant]:
    """Pools that could take a lease if they had room."""
    return {name: pool for name, pool in state.participants.items() if may_play(state, pool)}


def wait_reasons(state: RunState) -> dict[str, str]:
    """Why each live or expected policy's trainer has no batch; policies that do not wait are left out."""
    reasons = {policy: wait_reason(state, policy) for policy in state.batch_size}
    return {policy: reason for policy, reason in reasons.items() if reason}


def wait_reason(state: RunState, policy: str) -> str:
    """Why the trainer of ``policy`` has no batch; empty if it has one, or needs none."""
    queue = state.policies[policy]
    if queue.ended:
        rounds = state.ledger.evaluations.rounds
        waits = [f"{len(found.scores)} problems of {name}" for name, found in rounds.items()]
        return f"final evaluation: {', '.join(waits)} are scored" if waits and state.all_ended else ""
    if queue.joined and not state.draining and not _has_trainer(state, policy):
        return "its trainer is silent, lost or quarantined"
    if queue.unconsumed > 0:
        return ""
    return _why_no_batch_is_wanted(state, policy) or _why_no_groups(state) or _why_not_full(state, policy)


def _why_no_batch_is_wanted(state: RunState, policy: str) -> str:
    queue = state.policies[policy]
    if queue.consumed >= state.steps[policy]:
        return "waiting for the trainer to end"
    if state.draining:
        return f"draining: {state.ledger.drain_reason}"
    if not queue.joined:
        return "waiting for its trainer"
    if queue.paused or state.ledger.paused:
        return f"paused: {queue.pause_reason or 'pause was wanted'}"
    still = state.ledger.scaling.paused.get(EVERYWHERE)
    return f"paused: {still}" if still else ""


def _has_trainer(state: RunState, policy: str) -> bool:
    return any(
        participant.role == "trainer" and participant.name == policy
        for participant in state.participants.values()
        if not participant.is_gone(state.now, state.flow.silence_s)
    )


def _why_no_groups(state: RunState) -> str:
    """What keeps pools from playing, in the order in which it has to be mended."""
    silence_s = state.flow.silence_s
    pools = [p for p in state.participants.values() if p.role == "pool" and not p.is_gone(state.now, silence_s)]
    if not pools:
        return "waiting for a pool"
    staying = [pool for pool in pools if not pool.draining]
    if not staying and not state.leases.leased:
        return "all pools are draining"
    paused = state.ledger.scaling.regions_paused
    playing = [pool for pool in staying if pool.region not in paused]
    if staying and not playing and not state.leases.leased:
        return f"waiting for a pool elsewhere: {', '.join(paused)} {'is' if len(paused) == 1 else 'are'} paused"
    if playing and not any(pool.serves(state.names) for pool in playing):
        return _unserved(state, playing)
    if playing and not able_pools(state):
        return "waiting for a pool to load its first version of every policy"
    return ""


def _unserved(state: RunState, pools: list[Participant]) -> str:
    workflow = state.config.workflow
    for policy in state.names:
        if not any(policy in pool.policies for pool in pools):
            role = next((role for role, name in workflow.roles.items() if name == policy), policy)
            return f"no pool serves role {role} of workflow {workflow.name}"
    return f"no pool serves all of {', '.join(state.names)}, as workflow {workflow.name} needs"


def _why_not_full(state: RunState, policy: str) -> str:
    queue = state.policies[policy]
    parts = (
        f"{len(queue.ready)} of {state.batch_size[policy]} parts are ready, {len(state.leases.leased)} groups played"
    )
    if queue.filtered:
        parts += f"; dynamic sampling filtered {queue.filtered} of {queue.drawn}"
    if queue.dropped.get("failed"):
        parts += f"; {queue.dropped['failed']} groups failed so far"
    behind = [pool for pool in able_pools(state).values() if pool.applied[policy].step < queue.newest_step]
    if behind and not state.leases.leased:
        return f"waiting for pools to load version {queue.newest}: {parts}"
    return f"waiting for pools: {parts}"
