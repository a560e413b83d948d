"""Compaction: queries give the same rows before, while and after, whatever is killed when, and whoever else does it."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from astraflow import records as r
from astraflow.compacted import Compacted, Copied, GivenUp, append_entry, compact_log, read_compacted
from astraflow.maintenance import compaction, leftovers
from astraflow.maintenance.maintain import maintain
from astraflow.query import Run
from storage import ObjectStore, commit_points, open_store
from storage.errors import DataError
from storage.keys import RunKeys
from tests.query.conftest import RunWriter, write_run

KEYS = RunKeys("hand")
POINTS = [name for name in commit_points.COMMIT_POINTS if name.startswith("maintenance.")]


class Killed(BaseException):
    """Stands for SIGKILL: nothing handles it."""


@pytest.fixture(params=["memory", "local"])
def writer(request: pytest.FixtureRequest, tmp_path: Path) -> RunWriter:
    url = f"memory://{uuid.uuid4().hex}" if request.param == "memory" else str(tmp_path / "store")
    made = RunWriter(open_store(url))
    write_run(made)
    return made


def stop(writer: RunWriter) -> None:
    writer.decide(2, 3.0, {}, r.Stopped(reason="done"))


def rows(store: ObjectStore) -> list[dict[str, object]]:
    found = Run(store, "hand").trajectories().to_table().to_pylist()
    return sorted(found, key=lambda row: (row["path"], row["trajectory_id"]))


def objects(store: ObjectStore, prefix: str = KEYS.trajectories) -> set[str]:
    return {info.key for info in store.list(prefix)}


def killed_at(point: str, count: int, work: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Run ``work`` and kill it the ``count``-th time it passes ``point``; whether it came so far."""
    passed = 0

    def hook(name: str) -> None:
        nonlocal passed
        passed += name == point
        if name == point and passed == count:
            raise Killed

    monkeypatch.setattr(commit_points, "hook", hook)
    try:
        work()
    except Killed:
        return True
    finally:
        monkeypatch.setattr(commit_points, "hook", None)
    return False


def test_only_closed_versions_of_a_run_that_goes_on_and_nothing_goes(writer: RunWriter) -> None:
    store = writer.store
    before, there = rows(store), objects(store)
    report = maintain(store, "hand")
    # solver 0 is consumed or dropped and its pool is at version 3; parts of verifier 0 wait.
    assert [(entry["policy"], entry["version"], entry["objects"]) for entry in report.copied] == [("solver", 0, 3)]
    assert report.copied[0]["rows"] == 4 + 4 + 4  # the rows of the attempt that lost are in the copy too
    assert rows(store) == before
    assert objects(store) == there
    assert report.gone["copies"]["objects"] == 0 and not report.is_over
    assert maintain(store, "hand").is_idle


def test_the_copy_is_what_is_read(writer: RunWriter) -> None:
    store = writer.store
    before = rows(store)
    maintain(store, "hand")
    for path in read_compacted(store, KEYS).copies:
        store.delete(path)  # as no maintenance would do now
    assert rows(store) == before


def test_a_live_pool_that_is_behind_keeps_its_version_open(writer: RunWriter) -> None:
    late = "pool-c-00000009"
    cursor = writer.say(late, writer.joined("c", "eu"), writer.applied("solver", 0, 0))
    writer.decide(2, 2.5, {late: cursor})
    assert maintain(writer.store, "hand").copied == []


def test_after_the_end_many_become_few_and_originals_go_one_maintenance_later(writer: RunWriter) -> None:
    store = writer.store
    stop(writer)
    before, there = rows(store), objects(store)
    dry = maintain(store, "hand", dry_run=True)
    assert objects(store, "hand/compact/") == set()
    first = maintain(store, "hand")
    assert [(e["policy"], e["objects"]) for e in first.copied] == [("solver", 3), ("verifier", 2)]
    assert [(e["policy"], e["objects"], e["rows"]) for e in dry.copied] == [
        (e["policy"], e["objects"], e["rows"]) for e in first.copied
    ]
    # Four objects hold no admitted group: a repeat, a refused one, one beyond the cursors, one never committed.
    assert dry.gone["orphans"] == first.gone["orphans"]
    assert (first.gone["orphans"]["objects"], first.gone["originals"]["objects"]) == (4, 0)
    assert len(there - objects(store)) == 4
    assert rows(store) == before
    second = maintain(store, "hand")
    assert second.gone["originals"]["objects"] == 5 and second.copied == []
    assert objects(store) == set()
    assert rows(store) == before
    assert len(objects(store, "hand/compact/policy=")) == 2
    assert maintain(store, "hand").is_idle


@pytest.mark.parametrize("point", POINTS)
def test_killed_anywhere_it_loses_and_doubles_nothing(
    writer: RunWriter, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = writer.store
    stop(writer)
    before = rows(store)
    for count in range(1, 5):
        killed_at(point, count, lambda: maintain(store, "hand"), monkeypatch)
        assert rows(store) == before
    while not maintain(store, "hand").is_idle:
        assert rows(store) == before
    assert rows(store) == before
    assert objects(store) == set()
    assert objects(store, "hand/compact/policy=") == read_compacted(store, KEYS).keys


@pytest.mark.parametrize("point", POINTS)
def test_two_at_once_do_no_harm(writer: RunWriter, point: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one stands at a point, another one does all of it, twice."""
    store = writer.store
    stop(writer)
    before = rows(store)
    seen = 0

    def hook(name: str) -> None:
        nonlocal seen
        if name == point and not seen:
            seen += 1
            maintain(store, "hand")
            maintain(store, "hand")
            assert rows(store) == before

    monkeypatch.setattr(commit_points, "hook", hook)
    for _ in range(3):
        maintain(store, "hand")
        assert rows(store) == before
    assert seen == 1
    assert objects(store) == set()
    assert objects(store, "hand/compact/policy=") == read_compacted(store, KEYS).keys


def test_a_damaged_original_is_not_copied_and_stays(writer: RunWriter) -> None:
    store = writer.store
    stop(writer)
    damaged = min(path for path, view in Run(store, "hand").fold.objects.items() if view.parts.policy == "solver")
    store.put(damaged, store.get(damaged)[:-1] + b"?")
    report = maintain(store, "hand")
    assert damaged in report.damaged
    maintain(store, "hand")
    assert objects(store) == {damaged}


def test_a_copy_that_was_damaged_keeps_its_originals(writer: RunWriter) -> None:
    store = writer.store
    stop(writer)
    maintain(store, "hand")
    copies = sorted(read_compacted(store, KEYS).keys)
    store.put(copies[0], b"no parquet")
    store.delete(copies[1])
    there = objects(store)
    report = maintain(store, "hand")
    assert sorted(report.damaged) == copies
    assert objects(store) == there


def test_bundles_are_bounded(writer: RunWriter) -> None:
    stop(writer)
    run = Run(writer.store, "hand").refresh()
    url = writer.store.url
    assert len(compaction.find_bundles(run.fold, KEYS, url, url, Compacted())) == 2
    assert compaction.find_bundles(run.fold, KEYS, url, url, Compacted(), most_bytes=1) == []
    assert compaction.find_bundles(run.fold, KEYS, "memory://elsewhere", url, Compacted()) == []


def test_rows_in_a_store_of_their_own_are_copied_there(writer: RunWriter) -> None:
    far = open_store(f"memory://{uuid.uuid4().hex}")
    pool, w = "pool-f-00000010", writer
    cursor = w.say(pool, w.joined("f", "far"), w.applied("solver", 0, 0))
    w.decide(2, 2.2, {pool: cursor}, w.leased(pool, [20, 21], [0, 0]))
    parts = [w.parts(pool, "solver", 0, {group: [0, 1]}, {group: 0}, elsewhere=far) for group in (20, 21)]
    cursor = w.say(pool, r.Committed(groups=[20, 21], attempts=[0, 0], objects=parts))
    w.decide(2, 2.4, {pool: cursor}, r.Admitted(groups=[20, 21], attempts=[0, 0], participant=pool))
    stop(writer)
    before = rows(w.store)
    report = maintain(w.store, "hand")
    assert [entry["objects"] for entry in report.copied].count(2) == 2
    maintain(w.store, "hand")
    assert objects(far) == set() and len(read_compacted(far, KEYS).keys) == 1
    assert rows(w.store) == before


# --- the log of copies ----------------------------------------------------------------------------


def copied(key: str, *paths: str) -> Copied:
    return Copied(
        id=uuid.uuid4().hex,
        key=key,
        policy="p",
        version=0,
        size_bytes=1,
        hash="h",
        rows=1,
        paths=list(paths),
        paths_bytes=2,
    )


def test_the_first_copy_of_a_path_counts_for_ever() -> None:
    store = open_store(f"memory://{uuid.uuid4().hex}")
    known = append_entry(store, KEYS, copied("one", "a", "b"), Compacted())
    known = append_entry(store, KEYS, copied("two", "b", "c"), known)
    known = append_entry(store, KEYS, copied("three", "c", "d"), known)
    assert {path: copy.key for path, copy in known.copies.items()} == {
        "a": "one",
        "b": "one",
        "c": "three",
        "d": "three",
    }
    assert read_compacted(store, KEYS) == known


def test_what_was_given_up_never_counts_and_what_counts_is_not_given_up() -> None:
    store = open_store(f"memory://{uuid.uuid4().hex}")
    early = Compacted()  # of somebody who read the log when it was empty
    known = append_entry(store, KEYS, copied("counts", "a"), Compacted())
    known = append_entry(store, KEYS, GivenUp(id="1", keys=["counts", "late"]), early)
    assert known.keys == {"counts"} and known.given_up == {"late"}
    assert append_entry(store, KEYS, copied("late", "b"), known).keys == {"counts"}


def test_a_copy_whose_maintainer_says_so_meanwhile_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_store(f"memory://{uuid.uuid4().hex}")
    key = KEYS.compacted("p", 0, "x")
    store.put(key, b"rows")
    found = leftovers.find_copies(store, KEYS, Compacted())
    assert found.keys == (key,)
    append_entry(store, KEYS, copied(key, "a"), Compacted())
    leftovers.drop_copies(store, KEYS, found, Compacted())
    assert store.get(key) == b"rows"


def test_an_unreadable_entry_is_said_and_not_passed_over(writer: RunWriter) -> None:
    compact_log(writer.store, KEYS).append(b"{}")
    with pytest.raises(DataError, match="log of copies"):
        rows(writer.store)
    with pytest.raises(DataError, match="log of copies"):
        maintain(writer.store, "hand")


def test_entries_are_stored_as_they_were_first_written() -> None:
    data = (
        b'{"type":"Copied","id":"1","key":"k","policy":"p","version":3,"size_bytes":5,"hash":"h","rows":2,'
        b'"paths":["a"],"paths_bytes":7}'
    )
    known = Compacted()
    known.take(data, "x")
    assert known.copies["a"].version == 3
    assert msgspec.json.encode(known.copies["a"]) == data
