"""Rollout as a service: take leases, play them with a workflow, refresh weights, commit trajectories."""
