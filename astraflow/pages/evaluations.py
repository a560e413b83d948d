"""What a run's evaluations came to, as rows of text: the same on the live page, in the report and in the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from astraflow.pages.rows import NONE
from astraflow.query.run import Run

BEGUN_FOR = {"start": "version 0", "version": "newer versions", "end": "last versions"}
"""Why a round began, in words."""


def rounds(run: Run) -> list[dict[str, Any]]:
    """The table ``evaluations`` as plain values: versions by policy, figures by name."""
    rows: list[dict[str, Any]] = run.table("evaluations").to_pylist()
    return [row | {name: dict(row[name]) for name in ("low", "high", "figures")} for row in rows]


def evaluations(run: Run, *, newest: int | None = None) -> list[dict[str, str]]:
    """One row a round that was reported, in that order, of ``newest`` at most; every row has the same columns."""
    rows = rounds(run)[-newest if newest else 0 :]
    names = list(dict.fromkeys(name for row in rows for name in _figures(row)))
    return [_row(row, names) for row in rows]


def _row(row: Mapping[str, Any], names: list[str]) -> dict[str, str]:
    found = _figures(row)
    return {
        "evaluation": row["evaluation"],
        "round": f"{row['round']}: {BEGUN_FOR.get(row['begun_for'], NONE)}",
        "played by": _versions(row["low"], row["high"]),
        "problems": _problems(row),
    } | {name: found.get(name, NONE) for name in names}


def _figures(row: Mapping[str, Any]) -> dict[str, str]:
    """``avg@4`` and its like, each with its interval."""
    values: dict[str, float] = row["figures"]
    return {
        name: f"{value:.3f} [{values[f'{name}_low']:.3f}, {values[f'{name}_high']:.3f}]"
        for name, value in values.items()
        if f"{name}_low" in values
    }


def _versions(low: Mapping[str, int], high: Mapping[str, int]) -> str:
    spans = (
        f"{policy} v{first}" if first == high[policy] else f"{policy} v{first}–v{high[policy]}"
        for policy, first in low.items()
    )
    return ", ".join(spans) or NONE


def _problems(row: Mapping[str, Any]) -> str:
    whole = row["problems"] + row["missing"]
    said = "" if row["reason"] == "complete" else f" ({row['reason']})"
    return f"{row['problems']:,} of {whole:,}{said}"
