"""The trainer flow: one policy's trainer as a flow run and OS process of its own; of several ranks, their watcher."""

from __future__ import annotations

from prefect import flow
from prefect.client.schemas.objects import State

from flows.lifecycle import begin_life, enter_run
from tasks.prefect_api import last_state


@flow(name="trainer", description="Trains one policy: batch, optimizer step, publish.", retries=0)
def trainer(run: str, store: str, policy: str, ranks: int = 0) -> State | None:
    """Train ``policy`` of ``run`` until its steps are done; continues where an earlier life ended.

    ``ranks`` processes share the model, however many an earlier life had; 0: as many as the config says.
    """
    participant = begin_life("trainer", policy)
    opened, config = enter_run(run, store)
    settings = config.trainer_of(policy)
    ranks = ranks or settings.ranks
    if ranks > 1 and not config.policies[policy].frozen:
        from astraflow.trainer.torchrun import run_ranks

        run_ranks(run, store, policy, participant=participant, ranks=ranks, threads=settings.threads)
        return last_state()
    from astraflow.trainer.loop import run_trainer

    run_trainer(opened, config, policy, participant=participant)
    return last_state()
