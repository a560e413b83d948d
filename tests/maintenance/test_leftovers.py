"""What goes of a run that is over beside its rows: blobs, checkpoints, half uploads; and what never goes before."""

from __future__ import annotations

import uuid

import pytest

from astraflow import records as r
from astraflow.compacted import read_compacted
from astraflow.config import Region
from astraflow.maintenance import leftovers
from astraflow.maintenance.maintain import maintain
from astraflow.query import Run
from astraflow.recipe import dump_toml, load_run_config
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


def with_region(writer: RunWriter) -> tuple[str, ObjectStore]:
    """A pool that joined a region with a store of its own, and that store."""
    far = open_store(f"memory://{uuid.uuid4().hex}")
    config = load_run_config(writer.store, "hand").model_copy(update={"regions": {"far": Region(store=far.url)}})
    writer.store.put(writer.keys.config, dump_toml(config).encode())
    pool = "pool-f-00000010"
    writer.decide(2, 2.2, {pool: writer.say(pool, writer.joined("f", "far"), writer.applied("solver", 0, 0))})
    return pool, far


def test_what_a_regions_pools_wrote_and_nobody_committed_goes_from_its_store(writer: RunWriter) -> None:
    pool, far = with_region(writer)
    here = next(view.parts.path for view in Run(writer.store, "hand").fold.objects.values())
    orphan = writer.parts(pool, "solver", 0, {77: [0.0]}, {77: 0}, elsewhere=far).path
    another = writer.parts("pool-f-99999999", "solver", 0, {78: [0.0]}, {78: 0}, elsewhere=far).path
    given_up = KEYS.trajectory("solver", 0, pool, "both")  # went to the run's store when the region's was slow
    far.put(given_up, b"late")
    parts = r.PartsObject(
        **{f: getattr(writer.objects["solver", 77], f) for f in r.PartsObject.__struct_fields__}
        | {"path": given_up, "store": "", "groups": [79]}
    )
    writer.store.put(given_up, far.get(orphan))
    cursor = writer.say(pool, r.Committed(groups=[79], attempts=[0], objects=[parts]))
    writer.decide(2, 2.4, {pool: cursor}, writer.leased(pool, [79], [0]))
    writer.decide(2, 2.5, {}, r.Admitted(groups=[79], attempts=[0], participant=pool))
    maintain(writer.store, "hand")
    assert everything(far) == {orphan, another, given_up}, "the run goes on"
    stop(writer)
    assert given_up in Run(writer.store, "hand").fold.objects
    report = maintain(writer.store, "hand")
    assert everything(far) == {another}, "it may be another run's of this name"
    assert report.gone["orphans"]["objects"] >= 2 and not report.damaged
    assert {here, given_up} <= everything(writer.store)


@pytest.mark.parametrize("is_over", [False, True])
def test_a_region_that_is_away_is_maintained_the_next_time(
    writer: RunWriter, monkeypatch: pytest.MonkeyPatch, *, is_over: bool
) -> None:
    pool, far = with_region(writer)
    parts = [writer.parts(pool, "solver", 0, {group: [0, 1]}, {group: 0}, elsewhere=far) for group in (20, 21)]
    writer.decide(2, 2.3, {}, writer.leased(pool, [20, 21], [0, 0]))
    cursor = writer.say(pool, r.Committed(groups=[20, 21], attempts=[0, 0], objects=parts))
    writer.decide(2, 2.4, {pool: cursor}, r.Admitted(groups=[20, 21], attempts=[0, 0], participant=pool))
    garbage = fill(writer.store)
    if is_over:
        stop(writer)

    def silent(*_: object, **__: object) -> object:
        raise StoreError("no answer", kind="unreachable")

    with monkeypatch.context() as away:
        for verb in ("get", "list"):
            away.setattr(far, verb, silent)
        report = maintain(writer.store, "hand")
    assert report.damaged == [f"{far.url}, a region's store: no answer"]
    assert garbage.isdisjoint(everything(writer.store)) is is_over, "the rest is done all the same"
    assert not maintain(writer.store, "hand").damaged
    assert (len(read_compacted(far, KEYS).keys) == 1) is is_over


def mirrored(writer: RunWriter, far: ObjectStore, versions: int) -> set[str]:
    """Copies of the run's first versions in a region's store, and a merge; their keys."""
    keys = [KEYS.manifest("solver", version) for version in range(versions)]
    copied = {key: writer.store.get(key) for key in keys}
    copied[KEYS.version("solver", 1) + "0-a-1-delta-0000.safetensors"] = b"blob"
    copied[KEYS.merged("solver") + "merge.json"] = b"merge"
    for key, data in copied.items():
        far.put(key, data)
    return set(copied)


def test_the_copies_of_weights_in_a_regions_store_go_with_the_run(
    writer: RunWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, far = with_region(writer)
    copies = mirrored(writer, far, 2)
    maintain(writer.store, "hand")
    assert everything(far) == copies, "the run goes on"
    stop(writer)
    weights = {info.key for info in writer.store.list(KEYS.weights("solver"))}
    dry = maintain(writer.store, "hand", dry_run=True)
    assert dry.gone["mirrored"]["objects"] == len(copies) and everything(far) == copies
    for left in range(len(copies) - 1, 0, -1):  # broken off after each object: the next time goes on
        with monkeypatch.context() as broken:
            broken.setattr(leftovers, "delete", lambda store, keys: [store.delete(key) for key in keys[:1]])
            maintain(writer.store, "hand")
        assert len(everything(far)) == left
    assert everything(far) == {KEYS.manifest("solver", 0)}
    assert not maintain(writer.store, "hand").damaged
    assert not everything(far)
    assert weights == {info.key for info in writer.store.list(KEYS.weights("solver"))}


def test_a_region_whose_log_of_copies_is_damaged_keeps_nothing_else_from_being_done(writer: RunWriter) -> None:
    _, far = with_region(writer)
    garbage = fill(writer.store)
    stop(writer)
    far.put(KEYS.compact_entry(0), b"nonsense")
    (said,) = maintain(writer.store, "hand").damaged
    assert said.startswith(f"{far.url}, a region's store: ")
    assert garbage.isdisjoint(everything(writer.store))


def test_what_is_wrong_with_the_runs_store_is_not_said_of_a_regions(
    writer: RunWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, far = with_region(writer)
    mirrored(writer, far, 2)
    stop(writer)
    oldest, get = KEYS.manifest("solver", 0), writer.store.get

    def silent(key: str) -> bytes:
        if key == oldest:
            raise StoreError("no answer", where=key, kind="unreachable")
        return get(key)

    monkeypatch.setattr(writer.store, "get", silent)
    with pytest.raises(StoreError, match="no answer"):
        maintain(writer.store, "hand")


def test_weights_of_another_run_of_the_name_in_a_regions_store_stay(writer: RunWriter) -> None:
    _, far = with_region(writer)
    stop(writer)
    far.put(KEYS.manifest("solver", 0), b"another run's")
    assert maintain(writer.store, "hand").damaged == [f"{far.url}/{KEYS.manifest('solver', 0)}: another run's weights"]
    far.delete(KEYS.manifest("solver", 0))
    far.put(KEYS.version("solver", 0) + "0-a-1-snapshot-0000.safetensors", b"being published")
    assert not maintain(writer.store, "hand").damaged
    assert len(everything(far)) == 1


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
    abort(store, found)  # a second maintenance found it, too


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
    assert report.damaged == ["half uploads could not be listed or given up"]
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
