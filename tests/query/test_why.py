"""Why, load reports and stages, told of simulated runs: they agree with the reader's fold and with what was decided."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from itertools import islice

import pytest

from astraflow.query import Run
from astraflow.query.why import why
from storage.errors import ConfigError
from tests.simulation.world import recorded_run


@pytest.fixture(scope="module")
def runs() -> list[Run]:
    """Some runs with pools and trainers that die, and a bad network, long enough for load reports."""
    return list(islice((run for run in map(recorded_run, range(50)) if run.table("loads").num_rows), 3))


def test_every_group_has_a_life_that_ends_as_the_tables_say(runs: list[Run]) -> None:
    for run in runs:
        for (policy, group), part in run.fold.parts.items():
            story = why(run, str(group))
            texts = [event.text for event in story.events]
            assert texts[0].startswith("leased to ") and f"problem {part.problem}" in texts[0]
            assert [event.seq for event in story.events] == sorted(event.seq for event in story.events)
            if part.state == "dropped":
                assert f"{policy}: dropped as {part.reason}" in story.outcome
                assert any(text.startswith(f"{policy}'s part was dropped as {part.reason}: ") for text in texts)
            if part.state == "consumed":
                assert f"{policy}: trained on in batch {part.batch}" in story.outcome
                went = next(n for n, text in enumerate(texts) if f"into batch {part.batch} with lag" in text)
                trained = [n for n, text in enumerate(texts) if f"trained batch {part.batch} with {policy}'s" in text]
                assert trained and min(trained) > went
                assert f": step {run.fold.batches[policy, part.batch].step}" in texts[trained[0]]


def test_a_trajectory_is_found_by_its_id(runs: list[Run]) -> None:
    run = runs[0]
    part = next(p for p in run.fold.parts.values() if p.object is not None and p.state == "consumed")
    thing, row = part.object, part.rows.start
    assert thing is not None
    name = f"{part.group}-{part.attempt}-{thing.episodes[row]}-{thing.roles[row]}-{thing.slots[row]}"
    story = why(run, name)
    assert f"reward {thing.rewards[row]:g}" in story.outcome and thing.path in story.outcome
    assert json.loads(json.dumps(story.to_dict()))["subject"] == f"trajectory {name}"
    other = why(run, f"{part.group}-{part.attempt + 7}-0-{part.policy}-0")
    assert other.outcome.startswith(f"void: attempt {part.attempt} of its group was admitted")
    with pytest.raises(ConfigError, match="no trajectory"):
        why(run, f"{part.group}-{part.attempt}-99-{part.policy}-0")


def test_a_batch_names_its_parts_and_its_trainer(runs: list[Run]) -> None:
    for run in runs:
        for (policy, n), batch in run.fold.batches.items():
            story = why(run, f"{policy}/{n}")
            texts = [event.text for event in story.events]
            assert sum(text.startswith("group ") for text in texts) == len(batch.decision.groups)
            assert (f"trained at step {n + 1}" in story.outcome) == batch.consumed


@pytest.mark.parametrize("what", ["99999", "nobody/0", "solver/99", "some words", "1-2"])
def test_what_is_not_there_is_said(runs: list[Run], what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        why(runs[0], what)
    assert caught.value.kind == "why"


def test_load_reports_are_tables(runs: list[Run]) -> None:
    for run in runs:
        loads = run.table("loads").to_pylist()
        decided = [row for row in run.table("decisions").to_pylist() if row["type"] == "LoadReported"]
        assert len(loads) == len(decided) > 0
        for row in loads:
            assert sum(count for _, count in row["lags"]) >= 0 and row["pools"] >= 0
            assert 0 <= (row["wait_ratio"] or 0) <= 1
        pools = run.table("load_pools").to_pylist()
        assert {row["decision"] for row in pools} <= {row["decision"] for row in loads}
        counts = run.sql("SELECT policy, count(*) AS n FROM loads GROUP BY policy").to_pylist()
        assert sum(row["n"] for row in counts) == len(loads)


def test_each_stage_takes_what_the_one_before_kept(runs: list[Run]) -> None:
    for run in runs:
        rows = run.table("stages").to_pylist()
        for policy in run.config.trained:
            stages = {(row["stage"], row["name"]): row for row in rows if row["policy"] == policy}
            parts = [part for part in run.fold.parts.values() if part.policy == policy]
            reasons = Counter(part.reason for part in parts if part.state == "dropped")
            trained = sum(part.state == "consumed" for part in parts)
            assert next(row for key, row in stages.items() if key[0] == "trainer")["kept"] == trained
            for key, row in stages.items():
                if key[0] == "filter":
                    assert row["dropped"] == reasons[key[1]]
                    assert row["took"] == row["kept"] + row["dropped"]
            chain = [
                row for row in rows if row["policy"] == policy and row["stage"] in ("admission", "filter", "order")
            ]
            for before, after in itertools.pairwise(chain):
                assert after["took"] == before["kept"]
