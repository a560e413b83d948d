"""Trajectories as Parquet rows: whole parts of one policy, row after row, and their columns in the log.

Invariant: the columns of a ``PartsObject`` say of each row exactly what the object's row says; rows are in the order
part, episode, role, slot, so a part's rows are contiguous.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from astraflow.raas.group import PlayedGroup
from astraflow.raas.leases import Lease
from astraflow.records import PartsObject
from astraflow.trajectory import SCHEMA, Trajectory, flag_lists, id_lists, number_lists, to_runs
from storage.tables import Written


@dataclass(frozen=True, slots=True)
class Origin:
    """What all rows of a pool have in common."""

    run: str
    pool: str  # the participant
    region: str
    engine: str
    engines: Mapping[str, str] = field(default_factory=dict)  # of policies that another one plays


class Row(NamedTuple):
    """A trajectory and where it belongs."""

    lease: Lease
    problem_id: str
    episode: int
    trajectory: Trajectory


@dataclass(frozen=True, slots=True)
class Bundle:
    """The rows of one object: parts of ``policy`` whose oldest version is ``version``."""

    policy: str
    version: int
    rows: list[Row]


def bundle(groups: Iterable[PlayedGroup]) -> list[Bundle]:
    """Sort the parts of groups into objects by policy and oldest version."""
    bundles: dict[tuple[str, int], list[Row]] = {}
    for group in groups:
        parts: dict[str, list[Row]] = {}
        for episode, trajectories in enumerate(group.episodes):
            for trajectory in trajectories:
                row = Row(group.lease, group.problem_id, episode, trajectory)
                parts.setdefault(trajectory.policy, []).append(row)
        for policy, rows in parts.items():
            oldest = min(row.trajectory.version_min for row in rows)
            bundles.setdefault((policy, oldest), []).extend(rows)
    return [Bundle(policy, version, rows) for (policy, version), rows in sorted(bundles.items())]


def to_table(rows: Sequence[Row], origin: Origin) -> pa.Table:
    """The rows as a table of ``trajectory.SCHEMA``."""
    now = datetime.datetime.now(datetime.UTC)
    played = [row.trajectory for row in rows]
    runs = [to_runs(t.versions) for t in played]
    columns = {
        "trajectory_id": [trajectory_id(row) for row in rows],
        "group_id": [row.lease.group for row in rows],
        "problem_id": [row.problem_id for row in rows],
        "episode": [row.episode for row in rows],
        "attempt": [row.lease.attempt for row in rows],
        "run": [origin.run] * len(rows),
        "pool": [origin.pool] * len(rows),
        "region": [origin.region] * len(rows),
        "engine": [origin.engines.get(t.policy, origin.engine) for t in played],
        "role": [t.role for t in played],
        "slot": [t.slot for t in played],
        "turns": [[(u.role, u.start, u.end, u.finish_reason, u.tool, u.error) for u in t.turns] for t in played],
        "prompt_ids": id_lists(t.prompt_ids for t in played),
        "response_ids": number_lists([t.response_ids for t in played], np.int32),
        "logprobs": number_lists([t.logprobs for t in played], np.float32),
        "loss_mask": flag_lists([t.loss_mask for t in played]),
        "version_start": number_lists([starts for starts, _ in runs], np.int32),
        "version_id": number_lists([ids for _, ids in runs], np.int32),
        "version_min": [min(ids) for _, ids in runs],
        "version_max": [max(ids) for _, ids in runs],
        "reward": [t.reward for t in played],
        "reward_parts": [list(t.reward_parts.items()) for t in played],
        "temperature": [t.temperature for t in played],
        "sampler": [(t.sampler.top_p, t.sampler.top_k, t.sampler.min_p, t.sampler.stop, t.seeds) for t in played],
        "queue_s": [t.queue_s for t in played],
        "prefill_s": [t.prefill_s for t in played],
        "decode_s": [t.decode_s for t in played],
        "environment_s": [t.environment_s for t in played],
        "created_at": [now] * len(rows),
        "error_kind": [""] * len(rows),
        "error_message": [""] * len(rows),
        "meta": [list(t.meta.items()) for t in played],
    }
    return pa.table(columns, schema=SCHEMA)


def trajectory_id(row: Row) -> str:
    """``group-attempt-episode-role-slot``: unique in a run."""
    return f"{row.lease.group}-{row.lease.attempt}-{row.episode}-{row.trajectory.role}-{row.trajectory.slot}"


def describe(item: Bundle, path: str, written: Written, store: str = "") -> PartsObject:
    """What the log says about an object that holds a bundle and lies in ``store`` (empty: the run's)."""
    groups: list[int] = []
    starts: list[int] = []
    counts: list[int] = []
    for number, row in enumerate(item.rows):
        if not groups or groups[-1] != row.lease.group:
            groups.append(row.lease.group)
            starts.append(number)
            counts.append(0)
        counts[-1] += 1
    played = [row.trajectory for row in item.rows]
    return PartsObject(
        policy=item.policy,
        path=path,
        store=store,
        size_bytes=written.size_bytes,
        hash=written.hash,
        groups=groups,
        row_starts=starts,
        row_counts=counts,
        episodes=[row.episode for row in item.rows],
        roles=[t.role for t in played],
        slots=[t.slot for t in played],
        version_min=[t.version_min for t in played],
        version_max=[t.version_max for t in played],
        rewards=[t.reward for t in played],
        prompt_tokens=[len(t.prompt_ids) for t in played],
        response_tokens=[len(t.response_ids) for t in played],
    )
