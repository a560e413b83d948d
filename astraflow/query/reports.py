"""What the manager reported of a run, as tables: loads, evaluations, and what each stage of the dataflow did.

``loads`` has a row a load report, ``load_pools`` one for each pool in it, ``evaluations`` one a round, ``stages`` one
for each stage of each policy: what it took, kept and dropped, counted from the decisions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from astraflow import records as r
from astraflow.config import RunConfig
from astraflow.dataflow.algorithms import filter_reasons
from astraflow.query.fold import RunFold


def schema(columns: str) -> pa.Schema:
    """Columns written as ``name:type``: text, integer, real, boolean, or a map from text to integer or real."""
    kinds: dict[str, pa.DataType] = {
        "s": pa.string(),
        "i": pa.int64(),
        "f": pa.float64(),
        "b": pa.bool_(),
        "si": pa.map_(pa.string(), pa.int64()),
        "sf": pa.map_(pa.string(), pa.float64()),
    }
    return pa.schema([(name, kinds[kind]) for name, _, kind in (column.partition(":") for column in columns.split())])


SCHEMAS: dict[str, pa.Schema] = {
    "loads": schema(
        "policy:s step:i decision:i epoch:i decided_s:f wait_ratio:f produced:f consumed:f steps:f pools:f capacity:f "
        "leased:f ready:f batched:f lag_mean:f lag_max:f lags:si figures:sf"
    ),
    "load_pools": schema(
        "policy:s step:i decision:i participant:s capacity:f ahead:f room:f held:f admitted:f group_s:f "
        "rate:f version:f behind:f"
    ),
    "evaluations": schema(
        "evaluation:s round:i reason:s begun_for:s decision:i decided_s:f problems:i missing:i low:si high:si "
        "figures:sf"
    ),
    "stages": schema("policy:s position:i stage:s name:s took:i kept:i dropped:i"),
}


def load_rows(fold: RunFold) -> Iterator[dict[str, Any]]:
    """One row a load report, in order; ``lags`` counts the parts batched since the report before by their lag."""
    plain = {field.name for field in SCHEMAS["loads"]} - {"lags", "figures", "step", "steps"}
    for seq, record, report in _of(fold, r.LoadReported):
        figures = report.figures
        lags = {name[4:]: int(count) for name, count in figures.items() if name[:4] == "lag_" and name[4:].isdecimal()}
        yield {name: value for name, value in figures.items() if name in plain} | {
            "policy": report.policy,
            "step": report.step,
            "steps": figures.get("steps"),
            "decision": seq,
            "epoch": record.epoch,
            "decided_s": record.now,
            "lags": sorted(lags.items(), key=lambda item: int(item[0])),
            "figures": sorted(figures.items()),
        }


def load_pool_rows(fold: RunFold) -> Iterator[dict[str, Any]]:
    """One row for each pool of each load report; ``rate`` is groups a second with all places taken."""
    for seq, _, report in _of(fold, r.LoadReported):
        for name, figures in sorted(report.pools.items()):
            yield {"policy": report.policy, "step": report.step, "decision": seq, "participant": name, **figures}


def evaluation_rows(fold: RunFold) -> Iterator[dict[str, Any]]:
    """One row a round that was reported; ``low`` and ``high`` are the versions that played, by policy."""
    begun = {(start.evaluation, start.round): start.reason for _, _, start in _of(fold, r.EvalStarted)}
    for seq, record, report in _of(fold, r.EvalReported):
        yield {
            "evaluation": report.evaluation,
            "round": report.round,
            "reason": report.reason,
            "begun_for": begun.get((report.evaluation, report.round)),
            "decision": seq,
            "decided_s": record.now,
            "problems": report.problems,
            "missing": report.missing,
            "low": sorted(report.low.items()),
            "high": sorted(report.high.items()),
            "figures": sorted(report.figures.items()),
        }


def _of(fold: RunFold, kind: type[Any]) -> Iterator[tuple[int, r.DecisionRecord, Any]]:
    """Decisions of one kind, with their records."""
    for seq, record in fold.decisions:
        for decision in record.decisions:
            if isinstance(decision, kind):
                yield seq, record, decision


def stage_rows(fold: RunFold, config: RunConfig) -> Iterator[dict[str, Any]]:
    """What each stage did with the parts of each policy, in the order in which a part meets them."""
    filters = filter_reasons(config)
    for policy in sorted(config.policies):
        for position, row in enumerate(_stages(fold, config, policy, filters)):
            yield {"policy": policy, "position": position, **row}


def _stages(fold: RunFold, config: RunConfig, policy: str, filters: list[str]) -> Iterator[dict[str, Any]]:
    counts, flow = _count(fold, policy), config.dataflow
    dropped = counts.dropped
    yield _row("curator", flow.curator.name, counts.leased, 0)
    yield _row("play", config.workflow.name, counts.leased, dropped["failed"], kept=counts.admitted)
    unfit = sum(count for reason, count in counts.sifted.items() if reason not in (*filters, "filter_error"))
    yield _row("admission", "", counts.admitted, unfit)
    left = counts.admitted - unfit
    for reason in filters:
        yield _row("filter", reason, left, counts.sifted[reason])
        left -= counts.sifted[reason]
    broken = counts.sifted["filter_error"]
    if broken:
        yield _row("filter", "filter_error", left, broken)
        left -= broken
    waste = sum(dropped[reason] - counts.sifted[reason] for reason in ("stale", "surplus", "ended"))
    yield _row("order", flow.order.name, left, waste, kept=counts.batched)
    yield _row("trainer", "", counts.batched, dropped["skipped"], kept=counts.trained)
    yield _row("replay", flow.replay.name, counts.trained, 0, kept=counts.replayed)


def _row(stage: str, name: str, took: int, dropped: int, *, kept: int | None = None) -> dict[str, Any]:
    return {
        "stage": stage,
        "name": name,
        "took": took,
        "kept": took - dropped if kept is None else kept,
        "dropped": dropped,
    }


class _Counts:
    """Parts of one policy; ``sifted`` are the drops at admission, ``dropped`` all of them."""

    def __init__(self) -> None:
        self.leased = self.admitted = self.batched = self.replayed = self.trained = 0
        self.sifted: Counter[str] = Counter()
        self.dropped: Counter[str] = Counter()


def _count(fold: RunFold, policy: str) -> _Counts:
    counts = _Counts()
    for _, record in fold.decisions:
        admitted: set[int] = set()
        for decision in record.decisions:
            match decision:
                case r.Leased():
                    counts.leased += decision.attempts.count(1)
                case r.Admitted():
                    admitted = set(decision.groups)
                    counts.admitted += len(admitted)
                    continue
                case r.Dropped(policy=named) if named == policy:
                    counts.dropped[decision.reason] += len(decision.groups)
                    if decision.reason != "skipped":
                        counts.sifted[decision.reason] += sum(group in admitted for group in decision.groups)
                case r.Batched(policy=named) if named == policy:
                    _count_batch(counts, fold, decision)
            if not isinstance(decision, r.Dropped) or decision.reason == "skipped":
                admitted = set()  # drops at admission stand right behind it
    parts = (part for part in fold.parts.values() if part.policy == policy)
    counts.trained = sum(part.state == "consumed" for part in parts)
    return counts


def _count_batch(counts: _Counts, fold: RunFold, decision: r.Batched) -> None:
    for group in decision.groups:
        part = fold.parts.get((decision.policy, group))
        is_replay = part is not None and part.batch != decision.n
        counts.replayed += is_replay
        counts.batched += not is_replay
