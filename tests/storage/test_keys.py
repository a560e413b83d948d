"""Keys are built and parsed alike, sort as they should and stay inside their run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.keys import NAME, RunKeys, TrajectoryPath
from storage.store import check_key

names = st.from_regex(NAME, fullmatch=True)
numbers = st.integers(0, 10**10 - 1)


@given(run=names, policy=names, version=st.integers(0, 10**7), participant=names, unique=st.uuids())
def test_trajectory_round_trip(run: str, policy: str, version: int, participant: str, unique: object) -> None:
    keys = RunKeys(run)
    key = keys.trajectory(policy, version, participant, str(unique))
    assert keys.parse_trajectory(key) == TrajectoryPath(policy, version, f"{participant}-{unique}")
    assert key.startswith(keys.trajectories)
    assert f"version={version}/" in key
    assert RunKeys(f"{run}-other").parse_trajectory(key) is None


@pytest.mark.parametrize(
    "key",
    [
        "run/trajectories/policy=p/version=x/a.parquet",
        "run/trajectories/policy=p/version=1/a.json",
        "run/trajectories/policy=p/version=1/../a.parquet",
        "run/trajectories/policy=/version=1/a.parquet",
        "run/weights/p/00000001/manifest.json",
        "run/trajectories/policy=p/version=1/a.parquet/b.parquet",
    ],
)
def test_what_is_no_trajectory(key: str) -> None:
    assert RunKeys("run").parse_trajectory(key) is None


@given(run=names, one=numbers, other=numbers)
def test_snapshots_sort_newest_first(run: str, one: int, other: int) -> None:
    keys = RunKeys(run)
    assert keys.snapshot_seq(keys.snapshot(one)) == one
    assert (keys.snapshot(one) < keys.snapshot(other)) == (one > other)
    assert keys.snapshot(one).startswith(keys.snapshots)


@given(run=names, name=names, one=numbers, other=numbers)
def test_log_numbers_sort_as_numbers(run: str, name: str, one: int, other: int) -> None:
    keys = RunKeys(run)
    assert (keys.decision(one) < keys.decision(other)) == (one < other)
    assert (keys.outbox(name, one) < keys.outbox(name, other)) == (one < other)
    assert keys.outbox(name, one).startswith(keys.outboxes)


@given(run=names, name=names)
def test_status_round_trip(run: str, name: str) -> None:
    keys = RunKeys(run)
    assert keys.status(name).startswith(keys.statuses)
    assert keys.status_participant(keys.status(name)) == name


@given(run=names, policy=names, number=st.integers(0, 10**8 - 1), incarnation=st.integers(0, 10**4))
def test_every_key_is_one_that_stores_take_and_is_below_the_root(
    run: str, policy: str, number: int, incarnation: int
) -> None:
    keys = RunKeys(run)
    objects = [
        keys.config,
        keys.decision(number),
        keys.snapshot(number),
        keys.outbox(policy, number),
        keys.status(policy),
        keys.problems("0123abcd"),
        keys.trajectory(policy, number, policy, "u"),
        keys.step(policy, number),
        keys.manifest(policy, number),
    ]
    folders = [
        keys.snapshots,
        keys.outboxes,
        keys.statuses,
        keys.trajectories,
        keys.steps(policy),
        keys.weights(policy),
        keys.version(policy, number),
        keys.model_files(policy),
        keys.checkpoints(policy),
        keys.checkpoint(policy, incarnation, number),
    ]
    assert len(set(objects + folders)) == len(objects + folders)
    for key in objects:
        assert check_key(key).startswith(keys.root)
    for folder in folders:
        assert folder.endswith("/")
        assert check_key(folder[:-1]).startswith(keys.root)
    assert keys.manifest(policy, number).startswith(keys.version(policy, number))
    assert keys.version(policy, number).startswith(keys.weights(policy))
    assert keys.checkpoint(policy, incarnation, number).startswith(keys.checkpoints(policy))
    assert keys.step(policy, number).startswith(keys.steps(policy))


@pytest.mark.parametrize("name", ["", "A", "-a", "_a", "a/b", "a.b", "a b", "a" * 64, "ä", "a\n"])
def test_what_is_no_name(name: str) -> None:
    assert NAME.fullmatch(name) is None
