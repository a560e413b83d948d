"""Draws and the built-in data algorithms, and how they are found."""

from __future__ import annotations

import hashlib
import itertools
import json
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.config import Component
from astraflow.dataflow import builtin
from astraflow.dataflow.algorithms import REPLAYS, filter_reasons, load_algorithms
from astraflow.dataflow.curators import Greso
from astraflow.dataflow.draws import draw, permuted, uniform
from astraflow.dataflow.parts import Columns, Part, PartRows
from astraflow.trainer.advantage import part_advantages
from storage.errors import ConfigError
from tests.dataflow.drive import make_config, make_parts


def _rows(rewards: list[float], **columns: Any) -> PartRows:
    return Columns(make_parts("pool-a", [0], rewards=rewards, **columns)).parts[0]


def _part(version: int, arrival: int) -> Part:
    return Part(arrival, 0, "p", "", "h", 0, 1, version, version, 5, arrival, 1.0)


def test_draws_are_the_same_for_ever() -> None:
    assert draw(0, "curator", 1, 2) == 1437410784561713157
    assert [permuted(i, 8, 7, "curator", 0) for i in range(8)] == [3, 2, 6, 7, 5, 4, 1, 0]


def test_a_long_permutation_is_the_same_for_ever() -> None:
    places = (0, 1023, 1024, 1025, 2047, 2048, 4095, 4999)
    assert [permuted(i, 5000, 7, "curator", 2) for i in places] == [1982, 2218, 3960, 288, 1097, 4278, 1443, 4238]
    whole = [permuted(i, 5000, 7, "curator", 2) for i in range(5000)]
    assert sorted(whole) == list(range(5000))
    assert hashlib.sha256(repr(whole).encode()).hexdigest()[:16] == "5fa1cd70391c05d6"


@given(st.integers(1, 300), st.integers(0, 2**40), st.integers(0, 5))
def test_a_permutation_takes_every_place_once(size: int, seed: int, epoch: int) -> None:
    assert sorted(permuted(i, size, seed, "curator", epoch) for i in range(size)) == list(range(size))


def test_an_index_outside_is_refused() -> None:
    with pytest.raises(ValueError, match="not in range"):
        permuted(3, 3, 0, "x")


@given(st.integers(), st.integers(0, 2**40))
def test_uniform_draws_are_fractions(seed: int, counter: int) -> None:
    assert 0.0 <= uniform(seed, "p", counter) < 1.0


@pytest.mark.parametrize("kind", [builtin.Sequential, builtin.Shuffled])
def test_a_curator_gives_every_problem_once_an_epoch(kind: type[builtin.Sequential]) -> None:
    curator = kind(problem_count=5, seed=3)
    seen = []
    for _ in range(15):
        problem = curator.select()
        assert problem == curator.select()  # asking changes nothing
        curator.leased(problem)
        curator.observe(problem, _rows([0.0, 1.0]))
        seen.append(problem)
    epochs = [sorted(seen[i : i + 5]) for i in (0, 5, 10)]
    assert epochs == [list(range(5))] * 3
    other = kind(problem_count=5, seed=3)
    other.restore(curator.state())
    assert other.select() == curator.select()


def test_shuffling_differs_by_epoch_and_seed() -> None:
    def order(seed: int, epoch: int) -> list[int]:
        curator = builtin.Shuffled(problem_count=20, seed=seed)
        curator.restore({"position": 20 * epoch})
        found = []
        for _ in range(20):
            found.append(curator.select())
            curator.leased(found[-1])
        return found

    assert len({tuple(order(seed, epoch)) for seed in (0, 1) for epoch in (0, 1)}) == 4


@pytest.mark.parametrize(
    ("rewards", "keeps"),
    [
        ([0.0, 1.0], True),
        ([1.0, 1.0], False),
        ([0.1, 0.1 + 1e-9], False),
        ([1e6, 1e6 + 0.5], False),
        ([0.5], False),
        ([0.0, 1e-3], True),
    ],
)
def test_zero_advantage_is_equality_up_to_noise(rewards: list[float], keeps: bool) -> None:
    assert builtin.ZeroAdvantage().keep(_rows(rewards)) is keeps


def test_length_filters() -> None:
    assert builtin.Overlong(max_tokens=5).keep(_rows([0.0, 1.0]))
    assert not builtin.Overlong(max_tokens=4).keep(_rows([0.0, 1.0]))
    assert not builtin.FailedRows().keep(_rows([0.0, 1.0], response_tokens=[3, 0]))
    assert builtin.FailedRows().keep(_rows([0.0, 1.0]))


def test_rows_are_slices_of_an_object() -> None:
    rows = Columns(make_parts("pool-a", [4, 5], version=[1, 2])).parts[1]
    assert (rows.policy, rows.roles, rows.slots, rows.episodes) == ("solver", ["solver"] * 2, [0, 0], [0, 1])
    assert (rows.versions_min, rows.prompt_tokens) == ([2, 2], [3, 3])


@given(st.data(), st.lists(st.integers(1, 4), min_size=1, max_size=6))
def test_parts_come_to_what_their_rows_come_to(data: st.DataObject, counts: list[int]) -> None:
    """Whatever order the parts lie in, and however many rows each has."""
    order = data.draw(st.permutations(range(len(counts))))
    starts = dict(zip(order, itertools.accumulate([counts[part] for part in order], initial=0), strict=False))
    some = st.lists(st.integers(0, 9), min_size=sum(counts), max_size=sum(counts))
    versions, tokens, rewards = data.draw(some), data.draw(some), [n / 4 - 1 for n in data.draw(some)]
    thing = make_parts(
        "pool-a",
        list(range(len(counts))),
        row_starts=[starts[part] for part in range(len(counts))],
        row_counts=counts,
        version_min=versions,
        response_tokens=tokens,
        rewards=rewards,
    )
    for part, rows in enumerate(Columns(msgspec.structs.replace(thing, rewards=rewards)).parts):
        here = slice(starts[part], starts[part] + counts[part])
        assert (rows.start, rows.stop) == (here.start, here.stop)
        assert (rows.version, rows.tokens) == (min(versions[here]), sum(tokens[here]))
        assert (rows.low, rows.high) == (min(rewards[here]), max(rewards[here]))
        assert all(type(value) is int for value in (rows.version, rows.tokens))


def test_orders() -> None:
    parts = [_part(2, 0), _part(1, 1), _part(1, 2), _part(0, 3)]
    arrivals = {
        name: [part.arrival for part in sorted(parts, key=order.rank)]
        for name, order in [("edf", builtin.Edf()), ("fifo", builtin.Fifo()), ("lifo", builtin.Lifo())]
    }
    assert arrivals == {"edf": [3, 1, 2, 0], "fifo": [0, 1, 2, 3], "lifo": [3, 2, 1, 0]}


def test_no_replay_supplies_nothing() -> None:
    replay = builtin.NoReplay(batch_size=2, max_staleness=1, seed=0)
    replay.consumed([_part(0, 0)])
    replay.used(0, [])
    replay.forget([0])
    replay.restore(replay.state())
    assert (replay.supply(3), replay.mix(3)) == (0, [])


@pytest.mark.parametrize("name", ["latest", "uniform", "prioritized"])
def test_replay_gives_a_share_of_each_batch_and_no_part_twice(name: str) -> None:
    replay = REPLAYS[name](batch_size=5, max_staleness=2, seed=1, ratio=0.5, max_uses=2, size=4)
    assert (replay.supply(1), replay.mix(1)) == (0, [])
    replay.consumed([_part(0, group) for group in range(3)])
    replay.consumed([_part(1, group) for group in range(3, 6)])  # six, and four are kept
    assert replay.supply(1) == 2
    mixed = replay.mix(1)
    assert mixed == replay.mix(1) and len({part.group for part in mixed} & {2, 3, 4, 5}) == 2
    again = REPLAYS[name](batch_size=5, max_staleness=2, seed=1, ratio=0.5, max_uses=2, size=4)
    again.restore(json.loads(json.dumps(replay.state())))
    assert again.mix(1) == mixed
    for _ in range(2):
        replay.used(1, [5])
    replay.used(3, [99])  # group 2 is too stale at step 3
    replay.forget([4])
    assert [part.group for part in replay.mix(3)] == [3]
    assert replay.supply(4) == 0


def test_the_latest_and_the_most_telling_parts_come_first() -> None:
    parts = [Part(g, 0, "p", "", "h", 0, 1, 0, 0, 5, g, 1000.0 if g == 1 else 0.0) for g in range(4)]
    chosen = {}
    for name in ("latest", "prioritized"):
        replay = REPLAYS[name](batch_size=2, max_staleness=9, seed=0, ratio=0.5)
        replay.consumed(parts)
        chosen[name] = [part.group for part in replay.mix(1)]
    assert chosen == {"latest": [3], "prioritized": [1]}


class KeepSome:
    """A filter of the user's own."""

    def __init__(self, *, above: float) -> None:
        self.above = above

    def keep(self, rows: PartRows) -> bool:
        return max(rows.rewards) > self.above


def test_algorithms_are_found_by_name_or_import_path() -> None:
    path = f"{__name__}:KeepSome"
    config = make_config(
        filters=[Component(name="zero_advantage"), Component(name=path, options={"above": 0.5})],
        order=Component(name="lifo"),
    )
    found = load_algorithms(config)
    assert list(found.filters) == ["zero_advantage", "KeepSome"]
    assert not found.filters["KeepSome"].keep(_rows([0.0, 0.4]))
    assert isinstance(found.order, builtin.Lifo) and list(found.replays) == ["solver"]


@pytest.mark.parametrize(
    ("flow", "where", "what"),
    [
        ({"curator": Component(name="random")}, "dataflow.curator.name", "'random' is not built in"),
        ({"order": Component(name="nowhere:Order")}, "dataflow.order.name", "cannot be imported"),
        ({"order": Component(name="json:Order")}, "dataflow.order.name", "cannot be imported"),
        ({"filters": [Component(name="overlong")]}, "dataflow.filters[0].options", "wrong options: missing"),
        ({"curator": Component(name="greso", options={"seed": 1})}, "dataflow.curator.options", "seed cannot be set"),
        ({"filters": [Component(name="failed")] * 2}, "dataflow.filters", "two filters"),
        ({"replay": Component(name="none", options={"ratio": 1})}, "dataflow.replay.options", "unexpected keyword"),
        ({"replay": Component(name="latest", options={"ratio": 1.5})}, "dataflow.replay.options", "ratio must be"),
        ({"problem_count": 0}, "dataflow.curator.options", "there are no problems"),
    ],
)
def test_a_wrong_name_says_where_it_stands(flow: dict[str, Any], where: str, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_algorithms(make_config(**flow))
    assert caught.value.where == where and what in caught.value.what


def test_a_filter_is_never_taken_for_the_managers_own_reason() -> None:
    config = make_config(filters=[Component(name="failed"), Component(name=f"{__name__}:stale")])
    assert list(load_algorithms(config).filters) == ["filter_failed", "filter_stale"] == filter_reasons(config)


def stale() -> builtin.FailedRows:
    """An own filter with an unlucky name."""
    return builtin.FailedRows()


def test_a_near_miss_is_guessed() -> None:
    with pytest.raises(ConfigError) as caught:
        load_algorithms(make_config(curator=Component(name="shufled")))
    assert "Did you mean 'shuffled'?" in caught.value.remedy


def test_dynamic_sampling_compares_what_shares_a_baseline() -> None:
    thing = make_parts(
        "pool-a",
        [0],
        rewards=[1.0, 0.0, 1.0, 0.5],
        roles=["a", "b", "a", "b"],
        slots=[0, 0, 0, 1],
        episodes=[0, 0, 1, 1],
    )
    rows = Columns(thing).parts[0]
    kept = {within: builtin.ZeroAdvantage(within=within).keep(rows) for within in ("part", "role", "slot")}
    assert kept == {"part": True, "role": True, "slot": False}
    with pytest.raises(ValueError, match="within is"):
        builtin.ZeroAdvantage(within="policy")  # type: ignore[arg-type]


NOISE = st.floats(-1e-9, 1e-9)


@given(st.lists(NOISE, min_size=1, max_size=8), st.sampled_from([0.0, 0.1, 1 / 3, 1.0, -1.0, 250.0]))
def test_float_noise_around_one_reward_is_no_variance_for_anybody(noise: list[float], reward: float) -> None:
    """The filter, GRESO's streaks and the trainer's advantages agree: none takes noise for a signal."""
    rewards = [reward * (1 + wobble) + wobble for wobble in noise]
    assert not builtin.ZeroAdvantage().keep(_rows(rewards))
    curator = Greso(problem_count=2, seed=0)
    curator.observe(0, _rows(rewards))
    assert curator.state()["streaks"] == {"0": ["easy" if reward > 0.5 else "hard", 1]}
    for kind in ("mean_std", "mean"):
        assert not part_advantages(np.array(rewards), kind).any()


NEAR = st.sampled_from([0.25, 0.25 + 5e-7, 0.25 + 2e-6, 0.25 + 2e-5])


@given(st.lists(NEAR, min_size=1, max_size=4) | st.lists(st.floats(-2, 2), min_size=1, max_size=8))
def test_what_dynamic_sampling_drops_is_what_has_no_advantage(rewards: list[float]) -> None:
    is_dropped = not builtin.ZeroAdvantage().keep(_rows(rewards))
    assert is_dropped == (not part_advantages(np.array(rewards), "mean_std").any())
