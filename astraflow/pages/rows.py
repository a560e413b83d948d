"""The figures of a run as labelled text: the one place that says how a figure is called and written.

The live page, ``astraflow status --watch`` and the report all show these rows, so they cannot differ in anything but
the moment at which the store was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from astraflow.config import RunConfig
from astraflow.query.figures import PolicyFigures, RunFigures
from astraflow.report import size

NONE = "–"


def whole(value: float | None) -> str:
    """A number without decimals; a dash for one that is not known."""
    return NONE if value is None else f"{value:,.0f}"


@dataclass(frozen=True, slots=True)
class FigureRows:
    """``columns`` are policies, after the whole run where there are several; each row has a label and as many cells."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]


def figure_rows(figures: RunFigures, config: RunConfig) -> FigureRows:
    """What a person wants to know of a run, most important first."""
    own = _run_cells(figures, config)
    each = {policy: _policy_cells(values, config, policy) for policy, values in figures.policies.items()}
    labels = list(dict.fromkeys([*(label for cells in each.values() for label in cells), *own]))
    if len(each) == 1:
        (only,) = each.values()
        return FigureRows(tuple(each), tuple((label, (only.get(label) or own[label],)) for label in labels))
    columns = [own, *each.values()]
    rows = tuple((label, tuple(cells.get(label, "") for cells in columns)) for label in labels)
    return FigureRows(("whole run", *each), rows)


def counts(values: Mapping[str, int]) -> str:
    """``3 live, 1 lost``; none is a dash."""
    return ", ".join(f"{count:,} {name}" for name, count in values.items()) or NONE


def clock(seconds: float) -> str:
    """``1:02:03`` or ``02:03``."""
    hours, rest = divmod(int(seconds), 3600)
    return (f"{hours}:" if hours else "") + f"{rest // 60:02d}:{rest % 60:02d}"


def _run_cells(figures: RunFigures, config: RunConfig) -> dict[str, str]:
    total = sum(config.trainer_of(policy).steps for policy in figures.policies)
    return {
        **_shared_cells(figures, figures.steps, total),
        "pools": counts(figures.pools),
        "pools wanted": _wanted(figures),
        "errors": counts(figures.errors),
        "rejected records": counts(figures.rejected),
        "time worked": f"{clock(figures.seconds)} (managers: {figures.epochs})",
    }


def _policy_cells(values: PolicyFigures, config: RunConfig, policy: str) -> dict[str, str]:
    state = f"ended: {values.ended}" if values.ended else f"paused: {values.paused}" if values.paused else "live"
    return {
        "policy": state,
        **_shared_cells(values, values.steps, config.trainer_of(policy).steps),
        "parts open / ready / batched": " / ".join(f"{values.parts.get(s, 0):,}" for s in ("open", "ready", "batched")),
        "parts consumed": f"{values.parts.get('consumed', 0):,}",
    }


def _shared_cells(values: RunFigures | PolicyFigures, steps: int, total: int) -> dict[str, str]:
    """Figures that a policy and the whole run have alike."""
    return {
        "step": f"{steps:,} / {total:,}",
        "reward, last 20 batches": _number(values.reward_last20),
        "reward, first 20 batches": _number(values.reward_first20),
        "staleness, mean / max": f"{_number(values.lag_mean, 2)} / {_number(values.lag_max, 0)}",
        "wait ratio": _share(values.wait_ratio),
        "tokens/s trained": NONE if values.tokens_per_s is None else f"{values.tokens_per_s:,.0f}",
        "weights shipped": size(values.delta_bytes) if values.full_bytes else NONE,
        "against full copies": _of_full(values.delta_bytes, values.full_bytes),
        "parts dropped": counts(values.drops),
    }


def _of_full(delta_bytes: int, full_bytes: int) -> str:
    return f"{delta_bytes / full_bytes:.1%} of {size(full_bytes)}" if full_bytes else NONE


def _wanted(figures: RunFigures) -> str:
    """``local 2, west 3 (held, paused: too dear); load reports ask for 6``."""
    numbers = [f"{region} {n}{_marks(figures, region)}" for region, n in figures.pools_wanted.items()]
    asked = figures.pools_advised
    return ", ".join(numbers) + ("" if asked is None else f"; load reports ask for {asked}")


def _marks(figures: RunFigures, region: str) -> str:
    marks = ["held"] if region in figures.pools_held else []
    if region in figures.regions_paused:
        marks.append(f"paused: {figures.regions_paused[region]}")
    return f" ({', '.join(marks)})" if marks else ""


def _number(value: float | None, digits: int = 3) -> str:
    return NONE if value is None else f"{value:.{digits}f}"


def _share(value: float | None) -> str:
    return NONE if value is None else f"{value:.1%}"
