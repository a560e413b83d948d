"""Decisions on the number of pools: by a person's word at once, by load reports within the bounds of the config.

A run needs the pools of its hungriest policy. So one report is enough to grow, while to shrink every live policy must
have reported since the last change that it needs fewer. After a change, nothing is changed for ``cool_down`` steps of
the policy that reports: its next report would still tell of the pools from before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from astraflow import records as r
from astraflow.dataflow.figures import able_pools, load_figures, pool_figures
from astraflow.dataflow.state import RunState
from astraflow.elastic import Bounds, Place, Zones, matched, spread, three_zone

LARGEST_REGION = 1000
"""Most pools that a person may want of one region."""


def advice(state: RunState, policy: str, figures: Mapping[str, float]) -> int | None:
    """How many pools should play by one policy's report; None if the config does not ask for advice.

    Those of paused regions are none of them, and stand in the way of others as far as ``scale.most`` goes.
    """
    scale = state.config.scale
    pools, book = len(able_pools(state)), state.ledger.scaling
    if scale.mode == "off" or pools == 0:
        return None
    paused = sum(book.counts(state.config).values()) - sum(book.playing(state.config).values())
    bounds = Bounds(scale.least, max(scale.least, scale.most - paused))
    if scale.rule == "three_zone":
        return three_zone(pools, figures, bounds, Zones(scale.low, scale.high, scale.headroom))
    return matched(pools, figures, bounds)


def load_report(state: RunState, policy: str) -> Iterator[r.AnyDecision]:
    """One policy's report, and behind it, once that is folded, the numbers of pools that follow from it."""
    state.mark()
    figures, pools = load_figures(state, policy), pool_figures(state, policy)
    advised = advice(state, policy, figures)
    if advised is not None:
        figures["pools_advised"] = float(advised)
    yield r.LoadReported(policy=policy, step=state.policies[policy].consumed, figures=figures, pools=pools)
    scaled = scaled_by_load(state, policy, advised) if advised is not None else None
    if scaled is not None:
        yield scaled


def scaled_by_load(state: RunState, policy: str, advised: int) -> r.Scaled | None:
    """What follows from a report, folded already, that asks for ``advised`` pools; None if nothing does."""
    book, scale = state.ledger.scaling, state.config.scale
    if scale.mode != "act" or state.draining:
        return None
    queue = state.policies[policy]
    if book.changed_at and queue.consumed - book.changed_at.get(policy, 0) < scale.cool_down:
        return None
    counts = book.playing(state.config)
    before, playing = sum(counts.values()), len(able_pools(state))
    target = _target(state, advised, before)
    if target == before or playing <= target < before:
        return None  # the others are still to come
    after = spread(counts, target, places(state))
    changed = {region: pools for region, pools in after.items() if pools != counts[region]}
    if not changed:
        return None
    return r.Scaled(
        pools=changed,
        held=list(book.held),
        reason=f"{policy} asks for {target} pools at step {queue.consumed}, there were to be {before}",
    )


def standstill(state: RunState) -> r.Paused | r.Resumed | None:
    """That no region plays any more because all are paused, or that one does again; None if that was said already."""
    book = state.ledger.scaling
    is_still = bool(book.regions_paused) and not any(book.playing(state.config).values())
    if is_still == (r.EVERYWHERE in book.paused):
        return None
    if not is_still:
        return r.Resumed(policy="", region=r.EVERYWHERE)
    regions = ", ".join(f"{region} ({reason})" for region, reason in book.regions_paused.items())
    return r.Paused(policy="", region=r.EVERYWHERE, reason=f"no region plays: {regions}")


def _target(state: RunState, advised: int, before: int) -> int:
    """The pools of the hungriest live policy, as far as each has said what it needs."""
    if advised >= before:
        return advised
    live = [policy for policy in state.batch_size if state.policies[policy].is_live]
    book = state.ledger.scaling
    return max((book.advised.get(policy, before) for policy in live), default=before)


def scaled_by_wish(state: RunState, wish: r.PoolsWanted) -> r.Scaled:
    """What a person's word comes to: said again even if nothing changes, since whoever wished waits for this."""
    book = state.ledger.scaling
    others = [region for region in book.held if region != wish.region]
    if wish.pools < 0:
        now = book.counts(state.config)[wish.region]
        return r.Scaled(pools={wish.region: now}, held=others, reason=wish.reason or "left to the load reports")
    return r.Scaled(pools={wish.region: wish.pools}, held=[*others, wish.region], reason=wish.reason or "wanted")


def spare_pools(state: RunState) -> list[str]:
    """Pools that have nothing to play and will get nothing more, because all that is still needed is under way.

    ``scale.least`` of all pools stay, for what may have to be played again.
    """
    if state.config.scale.mode != "act" or state.config.evaluations or state.draining or state.leases.waiting:
        return []
    for policy, size in state.batch_size.items():
        queue = state.policies[policy]
        if not queue.joined or (queue.is_live and size * (state.steps[policy] - queue.consumed) > state.load(policy)):
            return []
    able = able_pools(state)
    idle = [name for name, pool in able.items() if not (pool.held or pool.evals)]
    return idle[: max(0, len(able) - state.config.scale.least)]


def places(state: RunState) -> list[Place]:
    """The regions that play as places for pools: those that a person holds neither grow nor shrink."""
    config, book = state.config, state.ledger.scaling
    counts = book.playing(config)
    found = []
    for name in counts:
        region = config.regions.get(name)
        held = name in book.held
        most = region.most_pools if region is not None and region.most_pools is not None else config.scale.most
        found.append(
            Place(
                name=name,
                cost=region.cost if region is not None else 1.0,
                least=counts[name] if held else 0,
                most=counts[name] if held else most,
            )
        )
    return found
