"""Coarse Prefect tasks and artifacts: never one a rollout."""
