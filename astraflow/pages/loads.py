"""A run's load reports as rows of text: the table that Prefect shows of them, and its newest rows on the run's page."""

from __future__ import annotations

from collections.abc import Iterable

from astraflow.pages.rows import NONE, whole
from astraflow.query.loads import LoadReport

COLUMNS = ("policy", "step", "load", "wait ratio", "pools", "asked for", "produced / consumed", "ready / batched")
"""Of the run's page, as many as are seen there at once; the table of its own has all."""
POOLS = 6
"""Pools that a row names; of a run with more, the quickest ones."""


def load_table(reports: Iterable[LoadReport]) -> list[dict[str, str]]:
    """A row a report, in the order that is given."""
    return [_row(report) for report in reports]


def _row(report: LoadReport) -> dict[str, str]:
    figures = report.figures
    wait = figures.get("wait_ratio")
    return {
        "policy": report.policy,
        "step": f"{report.step:,}",
        "load": report.load,
        "wait ratio": NONE if wait is None else f"{wait:.1%}",
        "pools": whole(figures.get("pools")),
        "asked for": whole(figures.get("pools_advised")),
        "produced / consumed": f"{figures.get('produced', 0):,.0f} / {figures.get('consumed', 0):,.0f}",
        "lag, mean / max": f"{figures.get('lag_mean', 0):.2f} / {figures.get('lag_max', 0):.0f}",
        "parts by lag": ", ".join(f"{lag}: {count:,}" for lag, count in report.lags.items()) or NONE,
        "ready / batched": f"{figures.get('ready', 0):,.0f} / {figures.get('batched', 0):,.0f}",
        "room / capacity": f"{report.room:,} / {figures.get('capacity', 0):,.0f}",
        "pools, groups/s": _pools(report.pools),
    }


def _pools(pools: dict[str, dict[str, float]]) -> str:
    """``pool-east-1 2.5/s v7, room 3``; the quickest first."""
    quickest = sorted(pools.items(), key=lambda item: (-item[1].get("rate", 0.0), item[0]))
    texts = [
        f"{name} {pool.get('rate', 0):.2f}/s v{pool.get('version', 0):.0f}, room {pool.get('room', 0):.0f}"
        for name, pool in quickest[:POOLS]
    ]
    more = len(pools) - len(texts)
    return "; ".join([*texts, f"and {more} more"] if more else texts) or NONE
