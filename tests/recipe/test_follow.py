"""The follower reads a run little by little."""

import pytest

from astraflow.config import RunConfig
from astraflow.follow import RunFollower
from astraflow.records import (
    AnyFact,
    Consumed,
    DecisionRecord,
    Ended,
    Epoch,
    FactRecord,
    Published,
    Status,
    Stopped,
    encode,
)
from astraflow.report import chart, downsample, flatten, size, sparkline
from storage.errors import DataError
from storage.keys import RunKeys
from storage.memory import MemoryStore

KEYS = RunKeys("followed")
CONFIG = RunConfig.model_validate(
    {
        "name": "followed",
        "policies": {"solver": {"model": "tiny-qwen3"}, "judge": {"model": "tiny-qwen3", "frozen": True}},
        "problems": {"source": "addition"},
        "trainer": {"steps": 10},
    }
)


def facts(store: MemoryStore, participant: str, seq: int, *said: AnyFact) -> None:
    record = FactRecord(id=f"{participant}{seq}", participant=participant, facts=list(said))
    store.create(KEYS.outbox(participant, seq), encode(record))


def status(store: MemoryStore, name: str, role: str, **fields: object) -> None:
    store.put(KEYS.status(name), encode(Status(participant=name, role=role, state="running", **fields)))  # type: ignore[arg-type]


def step(number: int, reward: float, *, version: int) -> list[AnyFact]:
    return [
        Published(
            policy="solver", version=version, step=number, incarnation=0, digest="d", delta_bytes=10, full_bytes=90
        ),
        Consumed(
            policy="solver",
            batch=number - 1,
            step=number,
            incarnation=0,
            metrics={"reward_mean": reward, "wait_s": 1.0, "step_s": 3.0, "lag_mean": 0.5, "lag_max": number},
        ),
    ]


def test_follows_steps_over_two_lives_of_a_trainer() -> None:
    store = MemoryStore("memory://follow-1")
    view = RunFollower(store, CONFIG)
    assert not view.poll()
    status(store, "trainer-solver-a", "trainer", waiting="batch 0")
    facts(store, "trainer-solver-a", 0, *step(1, 0.1, version=1))
    assert view.poll()
    assert view.waiting() == ["trainer-solver-a: batch 0"]
    assert not view.poll()
    facts(store, "trainer-solver-a", 1, *step(2, 0.2, version=2))
    status(store, "trainer-solver-b", "trainer")
    facts(store, "trainer-solver-b", 0, *step(2, 0.9, version=2), *step(3, 0.3, version=4), Ended(policy="solver"))
    view.poll()
    progress = view.policies["solver"]
    assert set(view.policies) == {"solver"}
    assert progress.curve == [0.1, 0.2, 0.3]
    assert (progress.step, progress.version, progress.ended) == (3, 4, "done")
    assert (progress.delta_bytes, progress.full_bytes) == (30, 270)
    assert progress.wait_ratio == 0.25
    assert progress.lag_max == 3
    assert view.steps == 3


def test_bad_objects_are_passed_over() -> None:
    store = MemoryStore("memory://follow-2")
    store.put(KEYS.status("junk"), b"{")
    status(store, "trainer-solver-a", "trainer")
    store.put(KEYS.outbox("trainer-solver-a", 0), b"not json")
    facts(store, "trainer-solver-a", 1, *step(1, 0.4, version=1))
    view = RunFollower(store, CONFIG)
    view.poll()
    assert view.policies["solver"].curve == [0.4]
    assert list(view.statuses) == ["trainer-solver-a"]


def test_the_end_is_the_last_decision() -> None:
    store = MemoryStore("memory://follow-3")
    epoch = Epoch(n=1, holder="m", data_hash="", config_hash="", code="")
    for seq in range(40):
        record = DecisionRecord(id=str(seq), epoch=1, now=0, cursors={}, observations={}, decisions=[epoch])
        store.create(KEYS.decision(seq), encode(record))
    view = RunFollower(store, CONFIG)
    view.poll()
    assert not view.is_over
    last = DecisionRecord(id="end", epoch=1, now=0, cursors={}, observations={}, decisions=[Stopped(reason="wanted")])
    store.create(KEYS.decision(40), encode(last))
    assert view.poll()
    assert view.stopped == "wanted"


def test_nested_figures_get_dotted_names() -> None:
    figures = {"steps": 3, "policies": {"solver": {"reward_last20": 0.51234, "rewards": [1, 2]}}}
    assert flatten(figures) == {"steps": 3, "policies.solver.reward_last20": 0.51234}


def test_small_pictures() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([]) == ""
    assert sparkline([2.0, 0.0]) == "█▁"
    assert len(sparkline([0.1] * 500, 40)) == 40
    assert downsample([1, 2, 3, 4], 2) == [1.5, 3.5]
    assert chart([]) == "(no steps yet)"
    lines = chart([0.0, 1.0], height=4).splitlines()
    assert lines[0] == " 1.00 ┤ █"
    assert lines[-1] == "       step 1 … 2"
    assert [size(n) for n in (12, 1500, 2_500_000, 3e12)] == ["12 B", "1.5 kB", "2.5 MB", "3.0 TB"]


@pytest.mark.parametrize(("first", "second"), [("a", "b"), ("b", "a")])
def test_figures_do_not_depend_on_the_names_of_lives(first: str, second: str) -> None:
    store = MemoryStore()
    for seq in range(5):
        facts(store, f"trainer-solver-{first}", seq, *step(seq + 1, 0.1, version=seq + 1))
    facts(store, f"trainer-solver-{second}", 0, *step(6, 0.2, version=7))
    for name in (first, second):
        status(store, f"trainer-solver-{name}", "trainer")
    view = RunFollower(store, CONFIG)
    view.poll()
    progress = view.policies["solver"]
    assert (progress.wait_s, progress.step_s, progress.lag_max) == (6.0, 18.0, 6)
    assert (progress.step, progress.metrics["reward_mean"], len(progress.curve)) == (6, 0.2, 6)


def test_a_damaged_last_decision_is_told_again_and_again() -> None:
    store = MemoryStore()
    store.put(KEYS.decision(0), b"{")
    view = RunFollower(store, CONFIG)
    for _ in range(2):
        with pytest.raises(DataError):
            view.poll()
