"""A region's mirror: whole versions, once, whoever races or dies; and pools that do not wait for it for ever."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from astraflow.config import Policy, Pool, Problems, Region, RunConfig
from astraflow.records import DecisionRecord, Stopped, encode
from astraflow.weights.merged import Merges
from astraflow.weights.mirror import Mirror, run_mirror
from astraflow.weights.region import RegionStore, weights_store
from astraflow.weights.subscriber import Subscriber
from storage.errors import ConfigError, DataError, NotFound, StoreError
from storage.local import LocalStore
from storage.memory import MemoryStore
from storage.store import Created
from tests.weights.chains import KEYS, chain, publisher, walk


def objects(store: MemoryStore) -> dict[str, bytes]:
    return {info.key: store.get(info.key) for info in store.list(KEYS.weights("solver"))}


def test_every_version_is_copied_once_with_its_merges() -> None:
    root, region = MemoryStore(), MemoryStore()
    versions = chain(root, 18)
    mirror = Mirror(root, region, KEYS, "solver")
    assert mirror.copy() == 18
    assert objects(region) == objects(root)
    copied = mirror.copied_bytes
    assert (mirror.copy(), mirror.copied_bytes, mirror.version, mirror.left_out) == (0, copied, 17, 0)
    assert Mirror(root, region, KEYS, "solver").copy() == 0
    assert torch.equal(Subscriber(region, KEYS, "solver").fetch(17).tensors["a"], versions[17])


def test_new_versions_and_late_merges_follow() -> None:
    root, region = MemoryStore(), MemoryStore()
    mirror, out = Mirror(root, region, KEYS, "solver"), publisher(root)
    assert mirror.copy() == 0
    for step, tensor in enumerate(walk(9)):
        out.publish({"a": tensor}, step=step, incarnation=0, batch=step - 1)
        assert mirror.copy() == 1
    out.settle(60)
    mirror.copy_merges()
    assert Merges(region, KEYS, "solver").spans() == Merges(root, KEYS, "solver").spans() == [(0, 4), (4, 8)]


class Crash(BaseException):
    """The process is gone."""


class Mortal(MemoryStore):
    left = 10**9

    def create(self, key: str, data: bytes) -> Created:
        self.left -= 1
        if self.left < 0:
            raise Crash
        return super().create(key, data)


def test_a_mirror_that_dies_anywhere_leaves_whole_versions_and_is_continued() -> None:
    root = MemoryStore()
    versions = chain(root, 9)
    for left in range(len(objects(root))):
        region = Mortal()
        region.left = left
        with pytest.raises(Crash):
            Mirror(root, region, KEYS, "solver").copy()
        reader = Subscriber(region, KEYS, "solver")
        if (newest := reader.newest()) >= 0:
            assert torch.equal(reader.fetch(newest).tensors["a"], versions[newest])
        region.left = 10**9
        Mirror(root, region, KEYS, "solver").copy()
        assert objects(region) == objects(root)


def test_mirrors_that_race_do_no_harm() -> None:
    root, region = MemoryStore(), MemoryStore()
    chain(root, 12)
    threads = [threading.Thread(target=Mirror(root, region, KEYS, "solver").copy) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert objects(region) == objects(root)


def test_what_is_damaged_at_the_source_is_left_out_and_gone_around() -> None:
    root, region = MemoryStore(), MemoryStore()
    versions = chain(root, 12, anchor_every=4)
    damaged = next(key for key in objects(root) if key.startswith(KEYS.version("solver", 7)) and "-delta-" in key)
    root.put(damaged, b"x")
    mirror = Mirror(root, region, KEYS, "solver")
    mirror.copy()
    assert mirror.left_out == 1
    assert damaged not in objects(region)
    reader = Subscriber(region, KEYS, "solver")
    for version in (6, 8, 11):
        assert torch.equal(reader.fetch(version).tensors["a"], versions[version])


def test_a_damaged_copy_is_written_again_and_a_foreign_one_refused() -> None:
    root, region = MemoryStore(), MemoryStore()
    chain(root, 3)
    blob = next(key for key in objects(root) if "-snapshot-" in key)
    region.put(blob, root.get(blob)[:-1] + b"?")
    Mirror(root, region, KEYS, "solver").copy()
    assert objects(region) == objects(root)
    other = MemoryStore()
    chain(other, 4)
    with pytest.raises(DataError) as caught:
        Mirror(other, _with_foreign(region), KEYS, "solver").copy()
    assert caught.value.kind == "foreign"


def _with_foreign(region: MemoryStore) -> Any:
    class Late(MemoryStore):
        """Somebody else creates the manifest while we copy."""

        def create(self, key: str, data: bytes) -> Created:
            if key.endswith("manifest.json"):
                super().put(key, b"{}")
            return super().create(key, data)

    late = Late()
    for key, data in objects(region).items():
        late.put(key, data)
    return late


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Counting(MemoryStore):
    gets = 0
    away = False

    def get(self, key: str) -> bytes:
        self.gets += 1
        if self.away:
            raise StoreError("away", where=key, kind="unreachable")
        return super().get(key)


def regional(length: int) -> tuple[Counting, Counting, Mirror, Subscriber, Clock, list[torch.Tensor]]:
    root, region, clock = Counting(), Counting(), Clock()
    versions = chain(root, length)
    store = RegionStore(root, region, timeout_s=30, clock=clock)
    mirror = Mirror(root.client(), region, KEYS, "solver")
    return root, region, mirror, Subscriber(store, KEYS, "solver", root=root), clock, versions


def test_a_pool_reads_in_its_region_and_leaves_the_root_alone() -> None:
    root, _, mirror, reader, clock, versions = regional(9)
    root.gets = 0
    assert reader.newest() == -1
    clock.now = 29
    assert reader.newest() == -1
    mirror.copy()
    root.gets = 0
    assert reader.newest() == 8
    assert torch.equal(reader.fetch(8).tensors["a"], versions[8])
    assert root.gets == 0


def test_a_mirror_that_is_silent_for_too_long_is_gone_around_until_it_is_back() -> None:
    root, _, mirror, reader, clock, versions = regional(9)
    clock.now = 31
    assert reader.newest() == 8
    assert torch.equal(reader.fetch(8).tensors["a"], versions[8])
    out = publisher(root)
    head = out.head()
    assert head is not None
    out.hold({"a": versions[8]}, head)
    out.publish({"a": versions[8]}, step=8, incarnation=1, batch=7)
    assert reader.newest() == 9  # still behind: the root is asked at each poll
    mirror.copy()
    assert reader.newest() == 9
    root.gets = 0
    assert (reader.newest(), root.gets) == (9, 0)  # it has caught up
    clock.now = 62
    assert (reader.newest(), root.gets) == (9, 1)  # nothing new for long: one look
    assert (reader.newest(), root.gets) == (9, 1)


def test_a_region_that_is_away_is_waited_for_and_then_gone_around() -> None:
    _, region, mirror, reader, clock, versions = regional(5)
    mirror.copy()
    region.away = True
    with pytest.raises(StoreError, match="away"):
        reader.newest()
    clock.now = 31
    assert reader.newest() == 4
    assert torch.equal(reader.fetch(4).tensors["a"], versions[4])


def test_what_is_damaged_in_the_region_is_read_from_the_root() -> None:
    _, region, mirror, reader, _, versions = regional(5)
    mirror.copy()
    for key in objects(region):
        if key.endswith(".safetensors"):
            region.put(key, b"x")
    assert torch.equal(reader.fetch(4).tensors["a"], versions[4])


def test_writes_and_ranges_go_where_they_belong() -> None:
    root, region = MemoryStore(), MemoryStore()
    store = RegionStore(root, region, timeout_s=1)
    store.put("a", b"1")
    assert store.create("b", b"234") is Created.CREATED
    assert (root.get("a"), store.get_range("b", 1, 1), store.url, store.root) == (b"1", b"3", region.url, root)
    assert list(store.list("")) == []
    store.delete("a")
    with pytest.raises(NotFound):
        root.get("a")


def config(store: str, region_store: str) -> RunConfig:
    return RunConfig(
        name="run",
        store=store,
        policies={"solver": Policy(model="tiny-qwen3")},
        problems=Problems(source="addition"),
        pools={"far": Pool(region="eu"), "near": Pool()},
        regions={"eu": Region(store=region_store)},
    )


def test_the_mirror_of_a_region_runs_until_it_is_told_to_end(tmp_path: Any) -> None:
    root = MemoryStore.at("memory://mirror-root")
    versions = chain(root, 6)
    settings = config("memory://mirror-root", str(tmp_path / "region"))
    stop = threading.Event()
    thread = threading.Thread(
        target=run_mirror, args=(root, settings, "eu"), kwargs={"participant": "mirror-eu-1", "stop": stop}
    )
    thread.start()
    far = Subscriber(weights_store(root, settings, settings.pools["far"]), KEYS, "solver", root=root)
    while far.newest() < 5:
        stop.wait(0.01)
    stop.set()
    thread.join(30)
    assert not thread.is_alive()
    assert torch.equal(far.fetch(5).tensors["a"], versions[5])
    assert b'"state":"left"' in root.get(KEYS.status("mirror-eu-1"))
    assert weights_store(root, settings, settings.pools["near"]) is root


def test_versions_are_copied_while_the_decisions_are_looked_at(tmp_path: Path) -> None:
    class Slow(MemoryStore):
        answers, asked = threading.Event(), threading.Event()

        def get(self, key: str) -> bytes:
            if "/decisions/" in key:
                self.asked.set()
                assert self.answers.wait(60)
            return super().get(key)

    root, region, stop = Slow(), LocalStore(tmp_path), threading.Event()
    record = DecisionRecord(
        id="end", epoch=1, now=0, cursors={}, observations={}, decisions=[Stopped(reason="all policies have ended")]
    )
    root.create(KEYS.decision(0), encode(record))
    settings = config("memory://unused", str(tmp_path))
    thread = threading.Thread(target=run_mirror, args=(root, settings, "eu"), kwargs={"stop": stop}, daemon=True)
    thread.start()
    assert root.asked.wait(30)
    chain(root, 6)  # after it began to look
    far = Subscriber(region, KEYS, "solver")
    deadline = time.monotonic() + 30
    while far.newest() < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    newest = far.newest()
    root.answers.set()  # and that was the run's end
    thread.join(30)
    stop.set()
    assert newest == 5
    assert not thread.is_alive()


def test_a_damaged_last_decision_ends_a_mirror(tmp_path: Path) -> None:
    root = MemoryStore()
    root.create(KEYS.decision(0), b"{}")
    with pytest.raises(DataError):
        run_mirror(root, config("memory://unused", str(tmp_path)), "eu")


def test_a_region_without_a_store_has_no_mirror() -> None:
    with pytest.raises(ConfigError, match="us"):
        run_mirror(MemoryStore(), config("memory://x", "memory://y"), "us")


def test_a_damaged_manifest_is_mirrored_as_it_is_and_gone_around() -> None:
    root, region = MemoryStore(), MemoryStore()
    versions = chain(root, 12, anchor_every=4)
    root.put(KEYS.manifest("solver", 7), b"{}")
    root.put(KEYS.merge("solver", 4, 8), b"{}")
    mirror = Mirror(root, region, KEYS, "solver")
    assert mirror.copy() == 12
    assert mirror.left_out == 2
    assert region.get(KEYS.manifest("solver", 7)) == b"{}"
    reader = Subscriber(region, KEYS, "solver")
    for version in (6, 8, 11):
        assert torch.equal(reader.fetch(version).tensors["a"], versions[version])
    assert (mirror.copy(), mirror.copy_merges(), mirror.left_out) == (0, 0, 2)


def test_new_merges_are_looked_for_where_they_may_turn_up() -> None:
    class Listing(MemoryStore):
        keys = 0

        def list(self, prefix: str, *, after: str | None = None, limit: int | None = None) -> Any:
            for info in super().list(prefix, after=after, limit=limit):
                self.keys += 1
                yield info

    root, region, most = Listing(), MemoryStore(), 0
    mirror, out = Mirror(root, region, KEYS, "solver"), publisher(root, merge_every=(2, 4))
    for step, tensor in enumerate(walk(80)):
        out.publish({"a": tensor}, step=step, incarnation=0, batch=step - 1)
        assert out.settle(60)
        root.keys = 0
        mirror.copy()
        most = max(most, root.keys)
    assert most <= 24  # records and blobs of the last 8 versions, however long the run is
    mirror.copy_merges()
    assert Merges(region, KEYS, "solver").spans() == Merges(root, KEYS, "solver").spans()


def test_a_region_that_is_away_at_the_start_is_waited_for(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    root = MemoryStore.at("memory://mirror-late")
    chain(root, 3)
    settings = config("memory://mirror-late", str(tmp_path / "region"))
    asked, stop = [], threading.Event()

    def check(store: Any) -> None:
        asked.append(store.url)
        if len(asked) < 3:
            raise StoreError("away", where=store.url, kind="unreachable")
        stop.set()

    monkeypatch.setattr("astraflow.weights.mirror.check_store", check)
    run_mirror(root, settings, "eu", participant="mirror-eu-2", stop=stop)
    assert len(asked) == 3
    assert b'"state":"left"' in root.get(KEYS.status("mirror-eu-2"))
