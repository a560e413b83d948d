"""Wishes against a real manager: each is answered, whoever it is about, and what cannot be is said at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from astraflow import wishes
from astraflow.config import Pool, RunConfig, Scale
from astraflow.dataflow.manager import Manager
from astraflow.participant import Outbox
from astraflow.recipe import dump_toml
from astraflow.records import EVERYWHERE, Left, PoolJoined, Status, encode
from storage.errors import AstraFlowError, ConfigError, DeadlineError
from storage.keys import RunKeys
from storage.memory import MemoryStore
from tests.dataflow.drive import make_config

KEYS = RunKeys("run")
CONFIG = make_config(drain_s=0.1, silence_s=0.4)


class Place:
    """A run with a manager that ticks on a thread of its own, and a pool."""

    def __init__(self, config: RunConfig = CONFIG) -> None:
        self.store = MemoryStore()
        self.store.put(KEYS.config, dump_toml(config).encode())
        self.manager = Manager(self.store, config, holder="m")
        self.manager.start()
        self.outbox = Outbox(self.store, KEYS, "pool-local-1")
        self.say("playing")
        joined = PoolJoined(pool="local", region="r", policies=["solver"], capacity=2, engine="x", data_hash="abc")
        self.outbox.append([joined])
        self.manager.tick()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def say(self, state: str, beat: int = 1) -> None:
        status = Status(participant="pool-local-1", role="pool", state=state, beat=beat)
        self.store.put(KEYS.status("pool-local-1"), encode(status))

    def __enter__(self) -> Place:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._end.wait(0.005) and not self.manager.stopped:
            self.manager.tick()


@pytest.fixture
def place() -> Iterator[Place]:
    with Place() as found:
        yield found


def test_pause_and_resume_are_heard(place: Place) -> None:
    wishes.pause(place.store, "run", "solver", reason="lunch", timeout_s=10)
    assert place.manager.state.policies["solver"].pause_reason == "lunch"
    wishes.pause(place.store, "run", "", reason="", timeout_s=10)
    assert place.manager.state.ledger.paused
    wishes.resume(place.store, "run", "", timeout_s=10)
    assert not place.manager.state.ledger.paused and not place.manager.state.policies["solver"].paused


def test_a_drain_may_be_said_again(place: Place) -> None:
    for _ in range(2):
        wishes.drain(place.store, "run", "pool-local-1", reason="enough", timeout_s=10)
    assert place.manager.state.participants["pool-local-1"].draining


@pytest.mark.parametrize("name", ["pool-local-9", "manager", "operator-1"])
def test_only_who_could_leave_is_drained(place: Place, name: str) -> None:
    place.store.put(KEYS.status("operator-1"), encode(Status(participant="operator-1", role="operator", state="left")))
    place.store.put(KEYS.status("junk"), b"{")
    with pytest.raises(ConfigError, match="could leave") as caught:
        wishes.drain(place.store, "run", name, reason="", timeout_s=10)
    assert caught.value.remedy == "There are: pool-local-1"


def test_who_has_left_is_not_drained(place: Place) -> None:
    place.say("left", 2)
    with pytest.raises(ConfigError) as caught:
        wishes.drain(place.store, "run", "pool-local-1", reason="", timeout_s=10)
    assert caught.value.remedy == "There are: none yet"


def test_a_policy_that_is_not_there(place: Place) -> None:
    with pytest.raises(ConfigError, match="no policy 'judge'"):
        wishes.pause(place.store, "run", "judge", reason="", timeout_s=10)


def test_stop_ends_the_run_once(place: Place) -> None:
    place.outbox.append([Left()])
    assert wishes.stop(place.store, "run", reason="enough", timeout_s=10) == "enough"
    assert wishes.stop(place.store, "run", reason="again", timeout_s=10) == "enough"
    with pytest.raises(ConfigError, match="the run is over: enough"):
        wishes.pause(place.store, "run", "solver", reason="", timeout_s=10)


def late(place: Place, config: RunConfig) -> AstraFlowError:
    with pytest.raises(DeadlineError) as caught:
        wishes.stop(place.store, config.name, reason="", timeout_s=0.3)
    return caught.value


def test_a_stop_that_takes_longer_says_what_is_so() -> None:
    slow = make_config(drain_s=500, silence_s=500)
    with Place(slow) as place:
        assert "is draining" in late(place, slow).what
        decided = [d for d in place.manager.state.participants.values() if d.draining]
        assert decided
    assert "when one runs" in late(Place(slow), slow).what, "no manager ticks here"


def test_a_drain_names_its_participant(place: Place) -> None:
    wishes.drain(place.store, "run", "pool-local-1", reason="why not", timeout_s=10)
    records = [place.store.get(info.key) for info in place.store.list("run/decisions/")]
    assert any(b'"DrainRequested"' in data and b"why not" in data for data in records)


TWO_REGIONS = CONFIG.model_copy(update={"pools": {"home": Pool(), "far": Pool(region="west")}})
MOVED = TWO_REGIONS.model_copy(update={"scale": Scale(mode="act")})


def test_a_region_gets_the_pools_that_a_person_asks_for() -> None:
    with Place(TWO_REGIONS) as place:
        wanted = wishes.scale(place.store, "run", "west", 3, reason="more", timeout_s=10)
        assert wanted == {"local": 1, "west": 3} and place.manager.state.ledger.scaling.held == ["west"]
        assert wishes.scaled_text("west", 3, wanted).startswith("pools wanted are local 1, west 3; west stays so")
        again = wishes.scale(place.store, "run", "west", None, reason="", timeout_s=10)
        assert again == {"local": 1, "west": 3} and place.manager.state.ledger.scaling.held == []
        assert wishes.scaled_text("west", None, again).endswith("nothing holds west any more")


@pytest.mark.parametrize(
    ("region", "pools", "kind", "what", "remedy"),
    [
        ("east", 1, "region", "no pool in a region 'east'", "Pools are configured in: local, west"),
        ("", 1, "region", "no pool in a region ''", "Pools are configured in: local, west"),
        ("west", -1, "pools", "-1 pools are not possible", "Say 0 to 1000"),
        ("west", 1001, "pools", "1001 pools are not possible", "Say 0 to 1000"),
        ("west", None, "not_scaled", "its scale.mode is 'off'", 'has [scale] mode = "act"'),
    ],
)
def test_a_number_of_pools_that_cannot_be(region: str, pools: int | None, kind: str, what: str, remedy: str) -> None:
    with Place(TWO_REGIONS) as place:
        with pytest.raises(ConfigError) as caught:
            wishes.scale(place.store, "run", region, pools, reason="", timeout_s=10)
        assert (caught.value.kind, place.manager.state.ledger.scaling.changes) == (kind, 0)
        assert what in caught.value.what and remedy in caught.value.remedy


def test_the_last_pool_of_a_run_stays() -> None:
    with Place(TWO_REGIONS) as place:
        assert wishes.scale(place.store, "run", "local", 0, reason="", timeout_s=10) == {"local": 0, "west": 1}
        with pytest.raises(ConfigError, match="would have no pool left") as caught:
            wishes.scale(place.store, "run", "west", 0, reason="", timeout_s=10)
        assert "`astraflow pause run`" in caught.value.remedy
        assert wishes.scale(place.store, "run", "local", 1, reason="", timeout_s=10) == {"local": 1, "west": 1}
        assert wishes.scale(place.store, "run", "west", 0, reason="", timeout_s=10) == {"local": 1, "west": 0}


def test_a_region_is_paused_and_goes_on_alone_or_with_the_run() -> None:
    with Place(TWO_REGIONS) as place:
        book = place.manager.state.ledger.scaling
        wishes.pause(place.store, "run", "", region="west", reason="lunch", timeout_s=10)
        assert book.paused == {"west": "lunch"} and not place.manager.state.ledger.paused
        wishes.resume(place.store, "run", "", region="west", timeout_s=10)
        assert book.paused == {}
        for region in ("west", "local"):
            wishes.pause(place.store, "run", "", region=region, reason="lunch", timeout_s=10)
        assert set(book.paused) == {"west", "local", EVERYWHERE}
        wishes.resume(place.store, "run", "", timeout_s=10)  # everything, however it was paused
        assert book.paused == {}


@pytest.mark.parametrize("say", [partial(wishes.pause, reason=""), wishes.resume])
@pytest.mark.parametrize(
    ("policy", "region", "kind", "what", "remedy"),
    [
        ("", "east", "region", "no pool in a region 'east'", "Pools are configured in: local, west"),
        ("", EVERYWHERE, "region", "no pool in a region '*'", "Pools are configured in: local, west"),
        ("solver", "west", "pause", "not of both", "Name one of them"),
        ("jim", "", "policy", "no policy 'jim'", "There are: solver"),
    ],
)
def test_what_cannot_be_paused(say: Any, policy: str, region: str, kind: str, what: str, remedy: str) -> None:
    with Place(TWO_REGIONS) as place:
        with pytest.raises(ConfigError) as caught:
            say(place.store, "run", policy, region=region, timeout_s=10)
        assert caught.value.kind == kind and what in caught.value.what and remedy in caught.value.remedy
        assert not place.manager.state.ledger.scaling.paused and not place.manager.state.ledger.paused


def test_a_run_that_follows_its_load_can_be_left_to_it() -> None:
    with Place(MOVED) as place:
        assert wishes.scale(place.store, "run", "west", None, reason="", timeout_s=10) == {"local": 1, "west": 1}
        assert place.manager.state.ledger.scaling.changes == 1


def test_a_run_that_is_over_is_not_scaled(place: Place) -> None:
    place.outbox.append([Left()])
    wishes.stop(place.store, "run", reason="enough", timeout_s=10)
    with pytest.raises(ConfigError, match="the run is over: enough") as caught:
        wishes.scale(place.store, "run", "local", 2, reason="", timeout_s=10)
    assert caught.value.remedy == "Nothing of it can scale"


@pytest.mark.parametrize(("text", "pools"), [("0", 0), (" 12 ", 12), ("-1", -1), ("auto", None)])
def test_a_number_of_pools_as_it_is_written(text: str, pools: int | None) -> None:
    assert wishes.pools_of(text) == pools


@pytest.mark.parametrize("text", ["", "two", "1.5", "Auto", "None"])
def test_what_is_no_number_of_pools(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a number of pools") as caught:
        wishes.pools_of(text)
    assert (caught.value.where, caught.value.remedy) == ("pools", "Say 0, 1, 2, … or auto")
