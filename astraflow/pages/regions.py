"""A run's pools by region and one by one, as rows of text: who joins, plays, lags, drains and has gone.

What is counted comes from the run's decisions and facts. What a pool does at this moment (groups, tokens a second, that
it is about to join) is its own word, of its last beat.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from astraflow.follow import RunFollower
from astraflow.pages.rows import NONE, counts, whole
from astraflow.query.run import Run
from astraflow.records import Status

REGION_COLUMNS = ("region", "wanted", "live", "joining", "draining", "gone", "groups", "tokens/s", "behind", "paused")
POOL_COLUMNS = ("pool", "region", "state", "groups", "tokens/s", "weights", "behind", "admitted", "failed")
JOINING = ("starting", "waiting")  # states that a pool says of itself before it joins
ORDER = ("live", "joining", "draining")  # of the rows of pools: those that have gone come last


def regions(run: Run, view: RunFollower) -> list[dict[str, str]]:
    """One row a region: pools by state, and what those that live do now. ``behind`` is the most of them, in steps."""
    book, lives = run.fold.scaling, list(_lives(run, view))
    wanted = book.counts(run.config)
    rows = []
    for region in dict.fromkeys([*wanted, *(life["region"] for life in lives)]):
        here = [life for life in lives if life["region"] == region]
        states = Counter(life["state"] for life in here)
        live = [life for life in here if life["state"] == "live"]
        gone = {state: count for state, count in sorted(states.items()) if state not in ORDER}
        rows.append(
            {
                "region": region,
                "wanted": f"{wanted.get(region, 0):,}" + (" (held)" if region in book.held else ""),
                **{state: f"{states[state]:,}" for state in ORDER},
                "gone": counts(gone),
                "groups": whole(_sum(life["groups"] for life in here)),
                "tokens/s": whole(_sum(life["tokens_per_s"] for life in live)),
                "behind": whole(max((life["behind"] for life in live), default=None)),
                "paused": book.regions_paused.get(region, NONE),
            }
        )
    return rows


def pools(run: Run, view: RunFollower) -> list[dict[str, str]]:
    """One row a life of a pool: those that live first, then who joins, drains, has gone.

    Groups are those it plays now of those it can; then those that were admitted of all that it was leased.
    """
    paused, rows = run.fold.scaling.regions_paused, []
    for life in sorted(_lives(run, view), key=lambda life: (*ORDER, life["state"]).index(life["state"])):
        is_paused = life["state"] == "live" and life["region"] in paused
        rows.append(
            {
                "pool": life["participant"],
                "region": life["region"],
                "state": life["state"] + (", paused" if is_paused else ""),
                "groups": _of(life["groups"], life.get("capacity")),
                "tokens/s": whole(life["tokens_per_s"]),
                "weights": ", ".join(f"{policy} v{version}" for policy, version in life["applied"]) or NONE,
                "behind": whole(life["behind"]),
                "admitted": _of(life.get("admitted"), life.get("leased")),
                "failed": counts({name: life[name] for name in ("failed", "expired") if life.get(name)}),
            }
        )
    return rows


def _lives(run: Run, view: RunFollower) -> Iterator[dict[str, Any]]:
    """The table ``pools``, and who is about to join, each with what it says of itself as long as it is there."""
    newest = newest_steps(run)
    for row in run.table("pools").to_pylist():
        is_there = row["state"] in ORDER
        said = _figures(view.statuses.get(row["participant"])) if is_there else {}
        yield row | {
            "groups": said.get("groups"),
            "tokens_per_s": said.get("tokens_per_s"),
            "behind": _behind(run, newest, row["applied"]) if is_there else None,
        }
    if view.is_over:
        return
    for name, status in sorted(view.statuses.items()):
        if status.role == "pool" and status.state in JOINING and not run.fold.has_come(name):
            own = {"participant": name, "region": status.region, "state": "joining", "applied": []}
            yield own | dict.fromkeys(("groups", "tokens_per_s", "behind"))


def newest_steps(run: Run) -> dict[str, int]:
    """The step of the newest version of each policy that was published."""
    newest: dict[str, tuple[int, int]] = {}
    for (policy, version), told in run.fold.versions.items():
        newest[policy] = max((version, told.step), newest.get(policy, (-1, 0)))
    return {policy: step for policy, (_, step) in newest.items()}


def _behind(run: Run, newest: Mapping[str, int], applied: list[tuple[str, int]]) -> int | None:
    """Trainer steps from the oldest weights that a pool samples from to the newest there are."""
    steps = [newest[policy] - run.fold.versions[policy, version].step for policy, version in applied]
    return max(0, *steps) if steps else None


def _figures(status: Status | None) -> Mapping[str, float]:
    return status.figures if status is not None else {}


def _sum(values: Iterator[float | None]) -> float | None:
    """None if nobody says anything."""
    said = [value for value in values if value is not None]
    return sum(said) if said else None


def _of(part: float | None, all_of_it: float | None) -> str:
    return NONE if part is None or all_of_it is None else f"{whole(part)} of {whole(all_of_it)}"
