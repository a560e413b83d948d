"""Workloads: what a model is asked to do, and how the outcome is judged. ``docs/workloads.md`` is their guide.

Each workload is problems (``data``), a reward or an environment, and a scripted player of known reward. The system
around them knows none of it: a run names them in its recipe, nothing else changes. What needs an optional package
imports it when it is used, and its absence is an error that names the extra.
"""
