"""Evaluation beside training, and what Prefect is told of the run: whole, from the recipe to pages and events.

The figures are counted again here, from what the pools said, by formulas of the test's own.
"""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest
from prefect.events.filters import EventFilter, EventResourceFilter

from astraflow import records as r
from astraflow.participant import DecisionsReader
from astraflow.query.run import Run
from tasks.load_reports import EVENT
from tests.e2e.runs import RunUnderTest, until
from tests.e2e.stack import LocalStack

pytestmark = [pytest.mark.e2e, pytest.mark.parts]

STEPS, PROBLEMS, REPEATS = 8, 6, 2
HELD = (
    "evaluations.held.problems.source=addition",
    f"evaluations.held.problems.options={{digits=1, count={PROBLEMS}}}",
    f"evaluations.held.repeats={REPEATS}",
    "evaluations.held.every=3",
    "pools.local.capacity=30",  # one of ten places evaluates
    "evaluations.held.timeout_s=100",
    "dataflow.report_every=2",
    "dataflow.drain_s=10",
)


def test_a_run_is_evaluated_at_the_start_between_and_at_the_end(stack: LocalStack, started: list[RunUnderTest]) -> None:
    run = RunUnderTest(stack, "evaluated")
    started.append(run)
    run.start("small", f"trainer.steps={STEPS}", *HELD)
    for answer in run.answers():
        answer.ok()
    run.check_finished(steps=STEPS)
    opened = run.opened()
    decided = [d for _, record in DecisionsReader(run.store, run.keys).poll() for d in record.decisions]
    check_rounds(decided)
    rounds = stack.astraflow("eval", run.name, "--store", run.store_url, "--json").ok().json["evaluations"]
    check_scores(run, decided, rounds)
    check_what_is_shown(run, opened, rounds)
    check_load_reports(run, opened)


def check_rounds(decided: list[r.AnyDecision]) -> None:
    """At the start, at least every third version, with the last one; each reported before the run drains."""
    begun = [d for d in decided if isinstance(d, r.EvalStarted)]
    assert (begun[0].reason, begun[0].versions) == ("start", {"solver": 0})
    assert (begun[-1].reason, begun[-1].versions) == ("end", {"solver": STEPS})
    assert any(d.reason == "version" for d in begun)
    versions = [d.versions["solver"] for d in begun]
    assert all(after - before >= 3 for before, after in pairwise(versions[:-1]))  # the end waits for no more versions
    reported = [d for d in decided if isinstance(d, r.EvalReported)]
    assert [(d.round, d.reason, d.problems, d.missing) for d in reported] == [
        (n, "complete", PROBLEMS, 0) for n in range(len(begun))
    ]
    drained = next(n for n, d in enumerate(decided) if isinstance(d, r.DrainRequested) and not d.participants)
    assert decided.index(reported[-1]) < drained
    for low, high, start in ((d.low["solver"], d.high["solver"], begun[d.round]) for d in reported):
        assert start.versions["solver"] <= low <= high


def check_scores(run: RunUnderTest, decided: list[r.AnyDecision], rounds: list[dict[str, Any]]) -> None:
    """What the command says is what the pools' own words come to."""
    round_of = {item: d.round for d in decided if isinstance(d, r.EvalLeased) for item in d.items}
    plays: dict[int, dict[int, list[float]]] = defaultdict(dict)
    versions: dict[int, set[int]] = defaultdict(set)
    for info in run.store.list(run.keys.outboxes):
        for fact in r.decode(run.store.get(info.key), r.FactRecord, where=info.key).facts:
            if isinstance(fact, r.Evaluated):
                plays[round_of[fact.item]].setdefault(fact.item, fact.scores)
                versions[round_of[fact.item]] |= {fact.low["solver"], fact.high["solver"]}
    assert [len(found) for _, found in sorted(plays.items())] == [PROBLEMS] * len(rounds)
    for row in rounds:
        scores = list(plays[row["round"]].values())
        assert (row["low"]["solver"], row["high"]["solver"]) == (
            min(versions[row["round"]]),
            max(versions[row["round"]]),
        )
        figures = row["figures"]
        assert figures["avg@2"] == pytest.approx(sum(map(sum, scores)) / (PROBLEMS * REPEATS))
        assert figures["pass@1"] == pytest.approx(sum(s == 1.0 for play in scores for s in play) / (PROBLEMS * REPEATS))
        assert figures["pass@2"] == pytest.approx(sum(max(play) == 1.0 for play in scores) / PROBLEMS)
        for name in ("avg@2", "pass@1", "pass@2"):
            assert figures[f"{name}_low"] <= figures[name] <= figures[f"{name}_high"]
            if name != "avg@2":
                assert figures[f"{name}_low"] < figures[f"{name}_high"], "an interval without a width"


def check_what_is_shown(run: RunUnderTest, opened: Run, rounds: list[dict[str, Any]]) -> None:
    """Terminal, report and Prefect's page show the store's rounds; none of them is trained on."""
    from astraflow.pages.evaluations import evaluations

    rows = evaluations(opened)
    assert len(rows) == len(rounds)
    shown = run.stack.astraflow("eval", run.name, "--store", run.store_url).ok().out
    status = run.stack.astraflow("status", run.name, "--store", run.store_url).ok().out
    file = run.stack.folder / f"{run.name}.html"
    run.stack.astraflow("report", run.name, "--store", run.store_url, "--to", str(file)).ok()
    html, page = file.read_text(), str(run.artifact(f"run-{run.name}"))
    for row in rows:
        cells = list(row.values())
        for text in (shown, status):
            assert any(all(cell in line for cell in cells) for line in text.splitlines()), (cells, text)
        assert "</td><td>".join(cells[1:]) in html
        assert "| " + " | ".join(cells) + " |" in page


def check_load_reports(run: RunUnderTest, opened: Run) -> None:
    """Prefect's table has a row a report, and each report came as one event."""
    loads = opened.table("loads").to_pylist()
    assert [row["step"] for row in loads] == [2, 4, 6, 8]
    table = json.loads(str(run.artifact(f"load-{run.name}")))
    assert [row["step"] for row in table] == ["8", "6", "4", "2"]
    assert {row["pools, groups/s"].split()[0] for row in table} == {opened.table("pools").to_pylist()[0]["participant"]}

    def told() -> list[dict[str, Any]]:
        with run.prefect() as client:
            wanted = EventFilter(resource=EventResourceFilter(id=[f"astraflow.run.{run.name}"]))
            return [event.payload for event in client.read_events(wanted, limit=50).events if event.event == EVENT]

    until(lambda: len(told()) >= len(loads), "the events")
    assert sorted((found["step"], found["decision"], found["wait_ratio"]) for found in told()) == [
        (row["step"], row["decision"], row["wait_ratio"]) for row in loads
    ]
