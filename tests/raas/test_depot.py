"""Objects lie in the region's store while it answers, and in the run's while it does not: as their names say."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest

from astraflow.config import RunConfig
from astraflow.raas.contact import Contact
from astraflow.raas.depot import Depot
from storage.errors import NotFound, StoreError
from storage.memory import MemoryStore
from storage.store import Created

pytestmark = pytest.mark.anyio

NEAR = "memory://depot-near"


class Region(MemoryStore):
    """A store that can be away: cut off (every request fails), silent (none returns), or refusing writes."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        self.fault = fault
        self.may_go = threading.Event()

    def put(self, key: str, data: bytes) -> None:
        self._meet(key)
        super().put(key, data)

    def create(self, key: str, data: bytes) -> Created:
        self._meet(key)
        return super().create(key, data)

    def _meet(self, key: str) -> None:
        if self.fault == "silent":
            assert self.may_go.wait(30)
        elif self.fault:
            raise StoreError("it said so", where=f"region/{key}", remedy="Mend it", kind=self.fault)


class Clock:
    """Waits of a depot that looks for its region's store again: they end when the test says so."""

    def __init__(self) -> None:
        self.waits: list[float] = []
        self.over = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        await self.over.wait()
        self.over.clear()


def depot_of(near: Region | None, *, timeout_s: float = 0.2) -> tuple[Depot, MemoryStore, Clock]:
    root, clock = MemoryStore(), Clock()
    return Depot(root, near, Contact(), timeout_s=timeout_s, sleep=clock.sleep), root, clock


def lies_in(store: MemoryStore, key: str) -> bool:
    try:
        return store.get(key) == b"rows"
    except NotFound:
        return False


async def until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not done():
            await asyncio.sleep(0.001)


async def test_objects_lie_in_the_regions_store_and_say_so() -> None:
    near = Region()
    depot, root, _ = depot_of(near)
    await depot.begin()
    assert await depot.put("run/a", b"rows") == near.url
    assert lies_in(near, "run/a") and not lies_in(root, "run/a")
    assert [info.key for info in near.list("")] == ["run/a"], "the probe leaves nothing"
    assert depot.figures == {"region_store_faults": 0, "far_objects": 0}
    await depot.close()


async def test_without_a_store_of_the_region_objects_lie_in_the_runs() -> None:
    depot, root, _ = depot_of(None)
    await depot.begin()
    assert await depot.put("run/a", b"rows") == ""
    assert lies_in(root, "run/a")
    assert depot.figures == {}
    await depot.close()


@pytest.mark.parametrize("fault", ["unreachable", "silent"])
async def test_a_store_that_goes_away_costs_nothing_and_is_used_again_when_it_is_back(fault: str) -> None:
    near = Region()
    depot, root, clock = depot_of(near)
    await depot.begin()
    near.fault = fault
    stores = await asyncio.gather(depot.put("run/a", b"rows"), depot.put("run/b", b"rows"))
    assert stores == ["", ""] and depot.is_away
    faults = depot.figures["region_store_faults"]
    assert (faults > 0) is (fault == "unreachable")
    assert await depot.put("run/c", b"rows") == "", "while it is away it is not waited for"
    assert depot.figures["region_store_faults"] == faults
    assert all(lies_in(root, f"run/{name}") for name in "abc") and not lies_in(near, "run/c")
    assert depot.figures["far_objects"] == 3
    near.fault = ""
    near.may_go.set()
    clock.over.set()
    await until(lambda: not depot.is_away)
    assert await depot.put("run/d", b"rows") == near.url
    assert clock.waits == [0.2]
    await depot.close()


async def test_a_short_fault_is_waited_out() -> None:
    near = Region("unreachable")
    depot, root, _ = depot_of(near, timeout_s=30.0)
    writing = asyncio.create_task(depot.put("run/a", b"rows"))
    await until(lambda: depot.figures["region_store_faults"] > 0)
    near.fault = ""
    assert await writing == near.url
    assert not lies_in(root, "run/a") and not depot.is_away
    await depot.close()


async def test_who_leaves_does_not_wait_for_the_region() -> None:
    near = Region("silent")
    depot, root, _ = depot_of(near, timeout_s=600.0)
    first = asyncio.create_task(depot.put("run/a", b"rows"))
    await asyncio.sleep(0.01)
    depot.hurry()
    async with asyncio.timeout(20):
        assert await first == ""
        assert await depot.put("run/b", b"rows") == ""
    assert lies_in(root, "run/a") and lies_in(root, "run/b")
    near.may_go.set()
    await depot.close()


async def test_who_leaves_still_writes_to_a_store_that_answers() -> None:
    near = Region("silent")
    depot, _, _ = depot_of(near, timeout_s=600.0)
    depot.hurry()
    asyncio.get_running_loop().call_later(0.05, near.may_go.set)
    assert await depot.put("run/a", b"rows") == near.url
    await depot.close()


async def test_a_store_that_is_away_at_the_start_is_passed_by() -> None:
    near = Region("unreachable")
    depot, root, _ = depot_of(near)
    await depot.begin()
    assert await depot.put("run/a", b"rows") == ""
    assert lies_in(root, "run/a")
    await depot.close()


@pytest.mark.parametrize("kind", ["denied", "no_bucket", "unsafe"])
async def test_a_store_that_refuses_is_an_error_that_says_where_and_what_helps(kind: str) -> None:
    near = Region(kind)
    depot, root, _ = depot_of(near, timeout_s=60.0)
    work = depot.put("run/a", b"rows") if kind != "unsafe" else depot.begin()
    with pytest.raises(StoreError) as caught:
        await work
    error = caught.value
    assert (error.kind, error.remedy) == (kind, "Mend it")
    assert error.where.startswith("region/") and "trajectories cannot be written to the region's store" in error.what
    assert not lies_in(root, "run/a")
    await depot.close()


async def test_a_store_that_comes_back_refusing_stays_away() -> None:
    near = Region("unreachable")
    depot, _, clock = depot_of(near)
    await depot.begin()
    near.fault = "denied"
    clock.over.set()
    await until(lambda: len(clock.waits) == 2)
    assert depot.is_away and await depot.put("run/a", b"rows") == ""
    await depot.close()


async def test_the_depot_of_a_pool_is_its_regions() -> None:
    root, near = MemoryStore(), MemoryStore.at(NEAR)
    config = RunConfig.model_validate(
        {
            "name": "run",
            "policies": {"solver": {"model": "none"}},
            "problems": {"source": "none"},
            "regions": {"west": {"store": NEAR}, "home": {"store": root.url}, "bare": {}},
            "pools": {name: {"region": name} for name in ("west", "home", "bare", "nowhere")},
        }
    )
    stores = {}
    for name, pool in config.pools.items():
        depot = Depot.of(root, config, pool, Contact())
        stores[name] = await depot.put("run/a", b"rows")
        await depot.close()
    assert stores == {"west": near.url, "home": "", "bare": "", "nowhere": ""}
