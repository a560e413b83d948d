"""Single things that must be so: a stalled policy blocks nobody, a pool's death costs only its leases."""

from __future__ import annotations

from astraflow import records as r
from astraflow.config import Dataflow, Policy, RunConfig
from astraflow.dataflow.figures import wait_reasons
from tests.simulation.invariants import check_run
from tests.simulation.world import World, draw_config


def _config(seed: int, **flow: object) -> RunConfig:
    base = draw_config(seed)
    policies = {"solver": Policy(model="none"), "verifier": Policy(model="none")}
    # Without replay: a part is in one batch, so what was leased says how many batches there can be.
    plain = {"filters": [], "coupling": "none", "replay": Dataflow().replay}
    dataflow = base.dataflow.model_copy(update={**plain, **flow})
    return base.model_copy(update={"policies": policies, "dataflow": dataflow})


def _stalled(seed: int, coupling: str) -> tuple[World, int]:
    """A run whose verifier's trainer takes for ever over its first step; how far the solver came."""
    world = World(seed, _config(seed, coupling=coupling), stalled="verifier")
    world.stop_at = None
    world.at(400.0, lambda: world._wish(r.Wanted(what="stop")))
    world.run()
    return world, check_run(world.base.client(), world.config)["consumed"]


def test_one_policys_stall_never_blocks_another() -> None:
    for seed in range(6):
        world, consumed = _stalled(seed, "none")
        assert consumed == world.config.trainer.steps


def test_coupled_policies_wait_for_each_other() -> None:
    waited = 0
    for seed in range(6):
        world, consumed = _stalled(seed, "slowest")
        flow = world.config.dataflow
        assert consumed <= flow.max_staleness + 1 + flow.prefetch
        waited += consumed < world.config.trainer.steps
    assert waited > 0


def test_a_live_policy_without_a_batch_always_has_a_reason() -> None:
    for seed in range(20):
        world = World(seed, draw_config(seed))

        def look(world: World = world) -> float:
            for manager in world.managers:
                state = manager.state
                for policy in state.batch_size:
                    queue = state.policies[policy]
                    if not queue.ended and not queue.unconsumed:
                        assert wait_reasons(state)[policy]
            return 0.5

        world.at(1.0, look)
        world.run()
