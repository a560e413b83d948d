"""The trainer flow: one policy's trainer as a flow run and OS process of its own."""

from __future__ import annotations

from prefect import flow

from flows.lifecycle import begin_life


@flow(name="trainer", description="Trains one policy: batch, optimizer step, publish.", retries=0)
def trainer(run: str, store: str, policy: str) -> None:
    """Train ``policy`` of ``run`` until its steps are done; continues where an earlier life ended."""
    from astraflow.recipe import load_run_config
    from astraflow.trainer.loop import run_trainer
    from storage import open_store

    participant = begin_life("trainer", policy)
    opened = open_store(store)
    run_trainer(opened, load_run_config(opened, run), policy, participant=participant)
