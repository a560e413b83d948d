"""The tables of a run: what its fold holds, as Arrow tables with fixed columns.

Units stand in the column names. A value that is not known yet is null, never 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from astraflow.query import reports
from astraflow.query.fold import BatchView, PartView, RunFold, VersionView
from astraflow.query.reports import schema as _schema
from astraflow.weights.manifest import Manifest, decode_manifest
from storage.fetch import fetch_all
from storage.keys import RunKeys
from storage.store import ObjectStore

SCHEMAS: dict[str, pa.Schema] = {
    "parts": _schema(
        "policy:s group_id:i problem:i pool:s participant:s attempt:i state:s reason:s version_min:i version_max:i "
        "rows:i prompt_tokens:i response_tokens:i reward_mean:f batch:i uses:i path:s"
    ),
    "batches": _schema(
        "policy:s n:i parts:i rows:i skipped:i consumed:b step:i reward_mean:f lag_mean:f lag_max:i version_min:i "
        "version_max:i response_tokens:i wait_s:f step_s:f decision:i epoch:i decided_s:f"
    ),
    "steps": _schema("policy:s step:i"),
    "versions": _schema("policy:s version:i step:i incarnation:i kind:s delta_bytes:i full_bytes:i digest:s"),
    "decisions": _schema("seq:i epoch:i now:f position:i type:s policy:s count:i detail:s"),
    "pools": _schema(
        "participant:s pool:s region:s engine:s state:s capacity:i ahead:i leased:i committed:i admitted:i failed:i "
        "expired:i rows:i applies:i"
    ).append(pa.field("applied", pa.map_(pa.string(), pa.int64()))),
    **reports.SCHEMAS,
}
"""Columns of each table. ``steps`` has what its trainers wrote beside these two."""


def build(name: str, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Rows as the table ``name``."""
    return pa.Table.from_pylist([dict(row) for row in rows], schema=SCHEMAS[name])


def part_rows(fold: RunFold) -> Iterator[dict[str, Any]]:
    """One row a part, by policy and group."""
    for _, part in sorted(fold.parts.items()):
        pool = fold.pools.get(part.participant)
        yield {
            "policy": part.policy,
            "group_id": part.group,
            "problem": part.problem if part.problem >= 0 else None,
            "pool": pool.joined.pool if pool else None,
            "participant": part.participant or None,
            "attempt": part.attempt if part.attempt >= 0 else None,
            "state": part.state,
            "reason": part.reason or None,
            "batch": part.batch if part.batch >= 0 else None,
            "uses": part.uses,
        } | _part_contents(part)


def _part_contents(part: PartView) -> dict[str, Any]:
    if part.object is None:
        return {"rows": 0}
    rewards = part.object.rewards[part.rows]
    return {
        "rows": len(rewards),
        "version_min": min(part.object.version_min[part.rows], default=None),
        "version_max": max(part.object.version_max[part.rows], default=None),
        "prompt_tokens": sum(part.object.prompt_tokens[part.rows]),
        "response_tokens": sum(part.object.response_tokens[part.rows]),
        "reward_mean": sum(rewards) / len(rewards) if rewards else None,
        "path": part.object.path,
    }


def trained_parts(fold: RunFold, batch: BatchView) -> list[PartView]:
    """The parts of a batch that its trainer trains on: all but those it skipped."""
    policy = batch.decision.policy
    found = (fold.parts.get((policy, group)) for group in batch.decision.groups if group not in batch.skipped)
    return [part for part in found if part is not None and part.object is not None and part.state != "dropped"]


def batch_row(fold: RunFold, batch: BatchView) -> dict[str, Any]:
    """A batch with the figures of the rows it trains on; a row's lag is that of its oldest token, in steps."""
    decision = batch.decision
    rewards: list[float] = []
    lags: list[int] = []
    oldest: list[int] = []
    newest: list[int] = []
    tokens = 0
    for part in trained_parts(fold, batch):
        assert part.object is not None
        rewards += part.object.rewards[part.rows]
        oldest += part.object.version_min[part.rows]
        newest += part.object.version_max[part.rows]
        tokens += sum(part.object.response_tokens[part.rows])
    for version in oldest:
        known = fold.versions.get((decision.policy, version))
        if known is not None:
            lags.append(decision.n - known.step)
    return {
        "policy": decision.policy,
        "n": decision.n,
        "parts": len(decision.groups),
        "rows": len(rewards),
        "skipped": len(batch.skipped),
        "consumed": batch.consumed,
        "step": batch.step if batch.consumed else None,
        "reward_mean": sum(rewards) / len(rewards) if rewards else None,
        "lag_mean": sum(lags) / len(lags) if lags else None,
        "lag_max": max(lags, default=None),
        "version_min": min(oldest, default=None),
        "version_max": max(newest, default=None),
        "response_tokens": tokens,
        "wait_s": batch.metrics.get("wait_s"),
        "step_s": batch.metrics.get("step_s"),
        "decision": batch.seq,
        "epoch": batch.epoch,
        "decided_s": batch.now,
    }


def consumed_row(fold: RunFold, policy: str, n: int) -> dict[str, Any]:
    """The row of a consumed batch. Nothing of it changes any more, so it is worked out once a fold."""
    row = fold.consumed_rows.get((policy, n))
    if row is None:
        row = fold.consumed_rows[policy, n] = batch_row(fold, fold.batches[policy, n])
    return row


def batch_rows(fold: RunFold) -> Iterator[dict[str, Any]]:
    """One row a batch, by policy and number."""
    return (batch_row(fold, batch) for _, batch in sorted(fold.batches.items()))


def read_manifests(store: ObjectStore, keys: RunKeys, wanted: Sequence[tuple[str, int]]) -> list[Manifest]:
    """The manifests of the wanted (policy, version) pairs, in order. Raises ``DataError`` at a damaged one."""
    names = [keys.manifest(policy, version) for policy, version in wanted]
    return [
        decode_manifest(data, where=name, policy=policy, version=version)
        for data, name, (policy, version) in zip(fetch_all(store, store.get, names), names, wanted, strict=True)
    ]


def known_versions(fold: RunFold) -> list[tuple[str, int]]:
    """All versions up to the newest of each policy that the run's facts speak of: versions are gapless."""
    newest: dict[str, int] = {}
    for policy, version in fold.versions:
        newest[policy] = max(version, newest.get(policy, -1))
    return [(policy, version) for policy in sorted(newest) for version in range(newest[policy] + 1)]


def version_rows(store: ObjectStore, keys: RunKeys, fold: RunFold) -> Iterator[dict[str, Any]]:
    """One row a version: what its manifest says; sizes as its trainer said them, if it came to say them."""
    for head in read_manifests(store, keys, known_versions(fold)):
        said = fold.versions.get((head.policy, head.version)) or VersionView(head.step, head.digest)
        yield {
            "policy": head.policy,
            "version": head.version,
            "step": head.step,
            "incarnation": head.incarnation,
            "kind": head.kind,
            "delta_bytes": head.size_bytes if said.delta_bytes is None else said.delta_bytes,
            "full_bytes": head.full_bytes if said.full_bytes is None else said.full_bytes,
            "digest": head.digest,
        }


def decision_rows(fold: RunFold) -> Iterator[dict[str, Any]]:
    """One row a decision, in order; ``count`` is how many groups (or participants) it speaks of."""
    for seq, record in fold.decisions:
        for position, decision in enumerate(record.decisions):
            named = getattr(decision, "groups", None) or getattr(decision, "participants", None)
            yield {
                "seq": seq,
                "epoch": record.epoch,
                "now": record.now,
                "position": position,
                "type": type(decision).__name__,
                "policy": getattr(decision, "policy", None) or None,
                "count": len(named) if named else 1,
                "detail": msgspec.json.encode(decision).decode(),
            }


def pool_rows(fold: RunFold) -> Iterator[dict[str, Any]]:
    """One row a life of a pool, in the order they joined; counts are groups, ``applies`` changes of weights."""
    for participant, pool in fold.pools.items():
        yield {
            "participant": participant,
            "pool": pool.joined.pool,
            "region": pool.joined.region,
            "engine": pool.joined.engine,
            "state": pool.state,
            "capacity": pool.joined.capacity,
            "ahead": pool.ahead,
            "leased": pool.leased,
            "committed": pool.committed,
            "admitted": pool.admitted,
            "failed": pool.failed,
            "expired": pool.expired,
            "rows": pool.rows,
            "applies": pool.applies,
            "applied": sorted(pool.applied.items()),
        }


def steps_table(store: ObjectStore, keys: RunKeys, fold: RunFold, policies: Iterable[str]) -> pa.Table:
    """The trainers' metrics, one row a step, of steps whose ``Consumed`` is part of the run."""
    tables = [SCHEMAS["steps"].empty_table()]
    for policy in sorted(policies):
        prefix = keys.steps(policy)
        names = [info.key for info in store.list(prefix) if info.key.endswith(".parquet")]
        for data in fetch_all(store, store.get, names):
            table = pq.read_table(pa.BufferReader(data))
            if "policy" not in table.column_names:
                table = table.add_column(0, "policy", pa.array([policy] * table.num_rows, pa.string()))
            tables.append(table)
    steps = pa.concat_tables(tables, promote_options="permissive")
    done = {policy: batch + 1 for policy, batch in fold.consumed.items()}
    keep = [row["step"] <= done.get(row["policy"], 0) for row in steps.select(["policy", "step"]).to_pylist()]
    steps = steps.filter(pa.array(keep, pa.bool_()))
    return steps.sort_by([("policy", "ascending"), ("step", "ascending")])
