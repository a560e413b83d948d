"""The filesystems see what the stores wrote, fresh, and serve the libraries they are for."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from storage import ObjectStore, open_store
from storage.filesystem import open_filesystem
from storage.tables import write_table


@pytest.fixture(params=["memory", "local", "moto", pytest.param("s3", marks=pytest.mark.s3), "azure"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    url: Callable[[], str] = {
        "memory": lambda: f"memory://{uuid.uuid4().hex}",
        "local": lambda: str(tmp_path / "a store"),
        "moto": lambda: request.getfixturevalue("moto_store_url"),
        "s3": lambda: request.getfixturevalue("s3_store_url"),
        "azure": lambda: request.getfixturevalue("azure_store_url"),
    }[request.param]
    return open_store(url())


def test_a_dataset_over_hive_folders(store: ObjectStore) -> None:
    for version in range(3):
        table = pa.table({"reward": [0.5, float(version)]})
        write_table(store, f"run/trajectories/policy=p/version={version}/x-{version}.parquet", table)
    filesystem, root = open_filesystem(store.url)
    table = ds.dataset(
        f"{root}/run/trajectories" if root else "run/trajectories",
        format="parquet",
        partitioning="hive",
        filesystem=filesystem,
    ).to_table(filter=ds.field("version") > 0)
    assert sorted(table["version"].to_pylist()) == [1, 1, 2, 2]
    assert set(table["policy"].to_pylist()) == {"p"}


def test_what_the_filesystem_writes_the_store_reads(store: ObjectStore) -> None:
    filesystem, root = open_filesystem(store.url)
    path = f"{root}/checkpoints/p/file.bin" if root else "checkpoints/p/file.bin"
    with filesystem.open(path, "wb") as file:
        file.write(b"0123")
        file.write(b"4567")
    assert store.get("checkpoints/p/file.bin") == b"01234567"
    with filesystem.open(path, "rb") as file:
        file.seek(2)
        assert file.read(3) == b"234"
    assert filesystem.exists(path)
    filesystem.rm(path)
    assert [info.key for info in store.list("")] == []


def test_listings_are_fresh(store: ObjectStore) -> None:
    filesystem, root = open_filesystem(store.url)
    folder = f"{root}/folder" if root else "folder"
    for count in range(3):
        store.put(f"folder/{count}", b"x")
        assert len(filesystem.ls(folder)) == count + 1


@pytest.mark.parametrize("store", ["local", "moto", pytest.param("s3", marks=pytest.mark.s3)], indirect=True)
def test_distributed_checkpoints(store: ObjectStore) -> None:
    """Not over memory: torch opens filesystems by URL, and a memory store's is opened by the store."""
    torch = pytest.importorskip("torch")
    checkpoint = pytest.importorskip("torch.distributed.checkpoint")
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter

    filesystem, root = open_filesystem(store.url)
    options = {} if store.url.startswith("file:") else dict(filesystem.storage_options)
    place = f"file://{root}/ckpt" if store.url.startswith("file:") else f"s3://{root}/ckpt"
    if store.url.startswith("file:"):
        store.put("ckpt/marker", b"")
    saved = {"weight": torch.arange(10.0)}
    checkpoint.save(saved, storage_writer=FsspecWriter(place, single_file_per_rank=True, **options), no_dist=True)
    loaded = {"weight": torch.zeros(10)}
    checkpoint.load(loaded, storage_reader=FsspecReader(place, **options), no_dist=True)
    assert torch.equal(loaded["weight"], saved["weight"])


def test_the_memory_filesystem_is_complete() -> None:
    store = open_store(f"memory://{uuid.uuid4().hex}")
    filesystem, root = open_filesystem(store.url)
    assert root == ""
    filesystem.makedirs("a/b")
    filesystem.mkdir("c")
    filesystem.pipe_file("a/b/x", b"0123")
    assert filesystem.info("a/b")["type"] == "directory"
    assert filesystem.info("")["type"] == "directory"
    assert filesystem.info("a/b/x")["size"] == 4
    assert filesystem.ls("a", detail=False) == ["a/b"]
    assert filesystem.ls("a/b/x", detail=False) == ["a/b/x"]
    assert filesystem.find("") == ["a/b/x"]
    assert filesystem.cat_file("a/b/x", 1, 3) == b"12"
    with filesystem.open("a/b/x", "ab") as file:
        file.write(b"45")
    with filesystem.open("new", "ab") as file:
        file.write(b"n")
    filesystem.mv("a/b/x", "a/y")
    assert filesystem.find("") == ["a/y", "new"]
    assert store.get("a/y") == b"012345"
    filesystem.copy("a", "z", recursive=True)
    assert store.get("z/y") == b"012345"
    filesystem.rm("a", recursive=True)
    filesystem.rmdir("a")
    assert not filesystem.exists("a")
    with pytest.raises(FileNotFoundError):
        filesystem.info("a")
    with pytest.raises(FileNotFoundError):
        filesystem.ls("a")
    filesystem.pipe_file("f/g/x", b"1")
    filesystem.cp_file("f/g", "nowhere")
    assert not filesystem.exists("nowhere")
    with filesystem.open("twice", "wb") as file:
        file.write(b"1")
        file.close()
    file.close()
    assert store.get("twice") == b"1"
    with pytest.raises(FileNotFoundError):
        filesystem.open("a/y")


def test_a_write_whose_block_fails_is_left_out() -> None:
    store = open_store(f"memory://{uuid.uuid4().hex}")
    filesystem, _ = open_filesystem(store.url)
    with pytest.raises(RuntimeError), filesystem.open("x", "wb") as file:
        file.write(b"half")
        raise RuntimeError
    assert list(store.list("")) == []


def test_other_urls_are_left_to_fsspec() -> None:
    filesystem, root = open_filesystem("data://text/plain,hello")
    assert filesystem.protocol == "data"
    assert root
