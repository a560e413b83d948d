"""A run reads the same from S3 as from a disk."""

from __future__ import annotations

import pytest

from astraflow.query import Run, open_run, runs
from storage.errors import ConfigError

pytestmark = pytest.mark.s3


def test_tables_figures_and_trajectories_are_those_of_a_local_run(s3_run: Run, run: Run) -> None:
    assert s3_run.figures() == run.figures()
    for name in ("batches", "steps", "versions", "pools"):
        assert s3_run.table(name).equals(run.table(name))
    columns = ["policy", "version", "trajectory_id", "reward", "response_ids"]
    keys = [("policy", "ascending"), ("trajectory_id", "ascending")]
    tables = [each.trajectories().to_table(columns=columns).sort_by(keys) for each in (s3_run, run)]
    assert tables[0].equals(tables[1])
    query = """
        select p.policy, p.state, avg(t.reward) as reward
        from trajectories t join parts p on t.path = p.path and t.group_id = p.group_id
        group by all order by all
    """
    assert s3_run.sql(query).equals(run.sql(query))


def test_runs_of_a_bucket_are_listed(s3_run: Run) -> None:
    (entry,) = runs(s3_run.store)
    assert (entry.run, entry.state, entry.steps) == ("hand", "running", {"solver": 2, "verifier": 0})
    assert entry.created_s is not None


def test_a_run_that_is_not_in_the_bucket_is_refused(s3_store_url: str) -> None:
    with pytest.raises(ConfigError) as caught:
        open_run(f"{s3_store_url}/hand")
    assert caught.value.kind == "no_run"
