"""What goes of a run that is over beside its rows: blobs, checkpoints, half uploads; and what never goes before."""

from __future__ import annotations

import uuid

import pytest

from astraflow.maintenance.maintain import maintain
from astraflow.query import Run
from storage import ObjectStore, open_store
from storage.errors import StoreError
from storage.keys import RunKeys
from storage.s3 import S3Store
from storage.uploads import abort, unfinished
from tests.maintenance.test_compaction import stop
from tests.query.conftest import RunWriter, write_run

KEYS = RunKeys("hand")


@pytest.fixture
def writer() -> RunWriter:
    made = RunWriter(open_store(f"memory://{uuid.uuid4().hex}"))
    write_run(made)
    return made


def fill(store: ObjectStore) -> set[str]:
    """Leftovers of every kind, beside what must stay; the leftovers' keys."""
    old, newest = (KEYS.checkpoint("solver", 1, step) for step in (2, 4))
    half = KEYS.checkpoint("solver", 2, 9)
    for folder in (old, newest):
        for name in ("__0_0.distcp", ".metadata", "complete.json"):
            store.put(folder + name, b"x")
    store.put(half + "__0_0.distcp", b"half")
    blob = KEYS.version("solver", 1) + "0-dead-1-delta-0000.safetensors"
    store.put(blob, b"12345")
    return {*(info.key for folder in (old, half) for info in store.list(folder)), blob}


def everything(store: ObjectStore) -> set[str]:
    return {info.key for info in store.list("")}


def test_while_the_run_goes_on_nothing_goes(writer: RunWriter) -> None:
    fill(writer.store)
    before = everything(writer.store)
    maintain(writer.store, "hand")
    maintain(writer.store, "hand")
    assert before <= everything(writer.store)


def test_after_the_end_leftovers_go_and_the_rest_stays(writer: RunWriter) -> None:
    store = writer.store
    stop(writer)
    garbage = fill(store)
    before = everything(store)
    kept = before - garbage - {info.key for info in store.list(KEYS.trajectories)}
    dry = maintain(store, "hand", dry_run=True)
    assert everything(store) == before
    done = maintain(store, "hand")
    assert dry.gone == done.gone
    assert done.gone["checkpoints"] == {"objects": 4, "bytes": 7}
    assert done.gone["weights"] == {"objects": 1, "bytes": 5}
    assert kept <= everything(store)
    assert not garbage & everything(store)
    figures = Run(store, "hand").figures()
    maintain(store, "hand")
    assert Run(store, "hand").figures() == figures


@pytest.mark.parametrize("fixture", ["moto_store_url", pytest.param("s3_store_url", marks=pytest.mark.s3)])
def test_half_uploads_are_found_and_given_up(request: pytest.FixtureRequest, fixture: str) -> None:
    import boto3

    store = open_store(request.getfixturevalue(fixture))
    assert isinstance(store, S3Store)
    bucket, _, prefix = store.url.removeprefix("s3://").partition("/")
    client = boto3.Session().client("s3")  # the module's own session keeps the credentials it saw first
    for key in ("hand/weights/p/0/blob", "other/blob"):
        client.create_multipart_upload(Bucket=bucket, Key=f"{prefix}/{key}")
    (found,) = unfinished(store, KEYS.root)
    assert found.key == "hand/weights/p/0/blob"
    abort(store, found)
    assert unfinished(store, KEYS.root) == []
    assert [upload.key for upload in unfinished(store, "other/")] == ["other/blob"]


def test_a_server_that_refuses_to_list_uploads_keeps_nothing_else_from_being_done(
    moto_store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = RunWriter(open_store(moto_store_url))
    write_run(writer)
    stop(writer)
    garbage = fill(writer.store)
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")  # nobody listens there; the store is open already
    with pytest.raises(StoreError) as caught:
        unfinished(writer.store, KEYS.root)
    assert caught.value.kind == "unreachable"
    report = maintain(writer.store, "hand")
    assert report.damaged == ["half uploads could not be listed"]
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3")
    assert not garbage & everything(writer.store)


@pytest.mark.parametrize("fixture", [pytest.param("s3_store_url", marks=pytest.mark.s3), "azure_store_url"])
def test_a_run_in_a_bucket_is_maintained(request: pytest.FixtureRequest, fixture: str) -> None:
    writer = RunWriter(open_store(request.getfixturevalue(fixture)))
    write_run(writer)
    stop(writer)
    run = Run(writer.store, "hand")
    before = run.trajectories().to_table().sort_by([("path", "ascending"), ("trajectory_id", "ascending")])
    maintain(writer.store, "hand")
    maintain(writer.store, "hand")
    assert list(writer.store.list(KEYS.trajectories)) == []
    after = Run(writer.store, "hand").trajectories().to_table()
    assert after.sort_by([("path", "ascending"), ("trajectory_id", "ascending")]).equals(before)
    reward = Run(writer.store, "hand").sql("select avg(reward) as r from trajectories")["r"].to_pylist()
    assert reward == [sum(before["reward"].to_pylist()) / before.num_rows]
