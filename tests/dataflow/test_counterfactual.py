"""A run's outcomes under its own and under other algorithms."""

from __future__ import annotations

import pytest

from astraflow.config import Component
from astraflow.dataflow.counterfactual import replay_outcomes
from astraflow.dataflow.outcomes import Outcomes, Recorded, read_outcomes
from astraflow.dataflow.replay import prove_run
from storage.errors import DataError
from storage.keys import RunKeys
from storage.memory import MemoryStore
from tests.dataflow.drive import make_config
from tests.simulation.world import World, draw_config

KEYS = RunKeys("run")


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    """A run with many groups without variance, on few problems."""
    base = draw_config(1)
    flow = base.dataflow.model_copy(
        update={
            "group_size": 2,
            "max_staleness": 2,
            "prefetch": 1,
            "filters": [Component(name="zero_advantage")],
            "curator": Component(name="shuffled"),
            "replay": Component(name="none"),
            "order": Component(name="edf"),
            "coupling": "none",
            "max_redraw": 8,
        }
    )
    trainer = base.trainer.model_copy(update={"steps": 8, "batch_size": 4})
    config = base.model_copy(
        update={
            "dataflow": flow,
            "trainer": trainer,
            "problem_count": 7,
            "policies": {"solver": base.policies["solver"]},
        }
    )
    world = World(1, config)
    world.stop_at = None
    world.run()
    store = world.base.client()
    proof = prove_run(store, KEYS, config)
    assert proof.records == proof.identical_bytes > 0 and proof.decisions > proof.records / 2
    return read_outcomes(store, KEYS, config)


def test_outcomes_are_what_was_admitted(recorded: Recorded) -> None:
    assert recorded.count == recorded.tally.admitted == sum(map(len, recorded.outcomes.values()))
    assert recorded.tally.steps == {"solver": 8}
    assert recorded.tally.dropped["zero_advantage"] > 0
    assert all(outcome.seconds > 0 and outcome.parts for found in recorded.outcomes.values() for outcome in found)
    plain = recorded.tally.to_dict(2)
    assert plain["rollouts"] == 2 * plain["groups_leased"] and 0 < plain["kept"] < 1


def test_a_replay_is_the_same_every_time_and_does_the_recorded_steps(recorded: Recorded) -> None:
    first, second = (replay_outcomes(recorded, recorded.config) for _ in range(2))
    assert first == second
    assert first.is_finished and first.tally.steps == {"solver": 8}
    assert 8 <= first.tally.trained <= 32, "dynamic sampling may make a batch short"
    assert first.borrowed == 0
    assert first.tally.dropped["zero_advantage"] > 0
    assert max(first.tally.lags) <= 2


def test_other_algorithms_do_something_else(recorded: Recorded) -> None:
    own = replay_outcomes(recorded, recorded.config)
    flow = recorded.config.dataflow
    vanilla = recorded.config.model_copy(update={"dataflow": flow.model_copy(update={"filters": []})})
    replay = Component(name="latest", options={"ratio": 0.5, "max_uses": 2})
    again = recorded.config.model_copy(update={"dataflow": flow.model_copy(update={"replay": replay})})
    found = replay_outcomes(recorded, vanilla)
    assert not found.tally.dropped["zero_advantage"] and found.tally.admitted < own.tally.admitted
    found = replay_outcomes(recorded, again)
    assert found.tally.replayed > 0 and found.tally.trained < own.tally.trained


def test_outcomes_are_given_by_nearness_and_borrowed_where_there_are_none(recorded: Recorded) -> None:
    outcomes = Outcomes(recorded, 0)
    problem, found = max(recorded.outcomes.items(), key=lambda item: len(item[1]))
    given = [outcomes.give(problem, 0, lease) for lease in range(len(found))]
    assert sorted(outcome.number for outcome in given) == [outcome.number for outcome in found]
    assert [outcome.version for outcome in given] == sorted(outcome.version for outcome in given)
    assert not outcomes.reused
    outcomes.give(problem, 0, 99)
    assert outcomes.reused == 1
    outcomes.give(10**6, 0, 100)
    assert outcomes.borrowed == 1


def test_a_run_without_outcomes_says_so() -> None:
    with pytest.raises(DataError, match="nothing to replay"):
        read_outcomes(MemoryStore(), KEYS, make_config())
