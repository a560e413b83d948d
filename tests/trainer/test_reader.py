"""What of a recorded batch is trained on, and what is skipped with which reason."""

from __future__ import annotations

import numpy as np
import pytest

from astraflow.records import Batched
from astraflow.trainer.reader import PartReader, Sequence
from astraflow.trajectory import SCHEMA
from storage.errors import ConfigError, NotFound, StoreError
from storage.tables import encode_table, hash_bytes

VOCABULARY = 128


class Steps:
    """Version v has step v; versions above 5 were never published."""

    def step_of(self, version):
        return version if 0 <= version <= 5 else None


def reader_of(run, store=None, **changes):
    return PartReader(store or run.store, Steps(), vocabulary=VOCABULARY, context=64, **changes)


def three_rows(run, n=5, **changes):
    """A batch of groups 0, 1, 2 with two rows each; ``changes`` alter the first row of group 1."""
    rows = [[_row(group, run.rng) for _ in range(2)] for group in (0, 1, 2)]
    rows[1][0] |= changes
    return run.batch_of(n, [0, 1, 2], rows)


def _row(group, rng):
    response = int(rng.integers(2, 6))
    return {
        "group_id": group,
        "pool": "local",
        "prompt_ids": [4, 5],
        "response_ids": rng.integers(3, VOCABULARY, response).tolist(),
        "logprobs": [-1.0] * response,
        "loss_mask": [True] * response,
        "version_start": [0, 1],
        "version_id": [2, 4],
        "reward": 0.5,
        "temperature": 1.0,
    }


def test_reads_parts_in_the_recorded_order_with_lags(make_run):
    run = make_run()
    batch = reader_of(run).load(three_rows(run))
    assert [part.group for part in batch.parts] == [0, 1, 2] and not batch.skipped
    for part in batch.parts:
        assert len(part.sequences) == 2
        for sequence in part.sequences:
            assert sequence.lags.tolist() == [3] + [1] * (len(sequence.response_ids) - 1)
            assert sequence.prompt_ids.tolist() == [4, 5] and sequence.reward == 0.5


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"prompt_ids": []}, "empty prompt"),
        ({"response_ids": [], "logprobs": [], "loss_mask": []}, "empty prompt or response"),
        ({"logprobs": [-1.0]}, "unequal length"),
        ({"loss_mask": [True]}, "unequal length"),
        ({"response_ids": [9] * 63, "logprobs": [-1.0] * 63, "loss_mask": [True] * 63}, "more than the model's 64"),
        ({"response_ids": [9, 9], "logprobs": [-1.0, float("nan")], "loss_mask": [True, True]}, "not finite"),
        ({"response_ids": [9, 9], "logprobs": [-1.0, float("-inf")], "loss_mask": [True, True]}, "not finite"),
        ({"reward": float("inf")}, "not finite"),
        ({"reward": None}, "not finite"),
        ({"temperature": 0.0}, "temperature 0"),
        ({"temperature": None}, "temperature nan"),
        ({"prompt_ids": [4, VOCABULARY]}, "outside the vocabulary"),
        ({"prompt_ids": [4, -1]}, "outside the vocabulary"),
        ({"prompt_ids": [4, None]}, "prompt_ids has nulls"),
        ({"version_start": [], "version_id": []}, "do not cover"),
        ({"version_start": [1], "version_id": [0]}, "do not cover"),
        ({"version_start": [0, 0, 90], "version_id": [0, 1, 1]}, "not in order"),
        ({"version_id": [2, 9]}, "version 9 was never published"),
        ({"group_id": 7}, "rows of another group"),
    ],
)
def test_a_bad_row_costs_its_part_only(make_run, changes, reason):
    run = make_run()
    batch = reader_of(run).load(three_rows(run, **changes))
    assert [part.group for part in batch.parts] == [0, 2]
    assert list(batch.skipped) == [1] and reason in batch.skipped[1]


def test_a_bad_value_that_is_masked_is_no_harm(make_run):
    run = make_run()
    changes = {"response_ids": [9, 9], "logprobs": [-1.0, float("nan")], "loss_mask": [True, False]}
    assert not reader_of(run).load(three_rows(run, **changes)).skipped


def test_a_negative_lag_is_refused(make_run):
    run = make_run()
    batch = reader_of(run).load(three_rows(run, n=3))
    assert not batch.parts and all("lag -1" in reason for reason in batch.skipped.values())


def test_damaged_missing_and_foreign_objects(make_run):
    run = make_run()
    decision = three_rows(run)
    data = bytearray(run.store.get(decision.paths[1]))
    data[len(data) // 2] ^= 1
    run.store.put(decision.paths[1], bytes(data))
    batch = reader_of(run).load(decision)
    assert [part.group for part in batch.parts] == [0, 2] and batch.skipped[1].startswith("digest")
    run.store.delete(decision.paths[1])
    assert reader_of(run).load(decision).skipped[1].startswith("missing")
    for data in (b"no parquet", encode_table(SCHEMA.empty_table().select(["pool"]))):
        run.store.put(decision.paths[1], data)
        changed = Batched(**{name: getattr(decision, name) for name in decision.__struct_fields__ if name != "hashes"},
                          hashes=[decision.hashes[0], hash_bytes(data)])  # fmt: skip
        assert reader_of(run).load(changed).skipped[1].startswith("undecodable")


def test_rows_outside_the_object(make_run):
    run = make_run()
    decision = three_rows(run)
    fields = {name: getattr(decision, name) for name in decision.__struct_fields__}
    batch = reader_of(run).load(Batched(**(fields | {"row_counts": [2, 9, 0]})))
    assert [part.group for part in batch.parts] == [0] and list(batch.skipped) == [1, 2]


def test_recorded_skips_are_left_out(make_run):
    run = make_run()
    batch = reader_of(run).load(three_rows(run), skip=[0, 2])
    assert [part.group for part in batch.parts] == [1] and list(batch.skipped) == [0, 2]


class Flaky:
    """A store whose reads fail some times first."""

    def __init__(self, store, failures, kind="unreachable"):
        self.store, self.failures, self.kind, self.reads = store, failures, kind, 0
        self.url = store.url

    def get(self, key):
        self.reads += 1
        if self.reads <= self.failures:
            raise StoreError("no answer", kind=self.kind)
        return self.store.get(key)


def test_a_store_that_does_not_answer_is_raised_never_skipped(make_run):
    run = make_run()
    decision = three_rows(run)
    flaky = Flaky(run.store, 1)
    reader = reader_of(run, flaky)
    with pytest.raises(StoreError) as raised:
        reader.load(decision)
    assert not isinstance(raised.value, NotFound)
    assert len(reader.load(decision).parts) == 3
    assert flaky.reads == 3  # the failure, then each object once: the even groups share one


def test_objects_of_another_store_are_read_there(make_run):
    run, far = make_run(), make_run(name="far", url="memory://far")
    decision = three_rows(run)
    fields = {name: getattr(decision, name) for name in decision.__struct_fields__}
    for path in decision.paths:
        far.store.put(path, run.store.get(path))
        run.store.delete(path)
    batch = reader_of(run).load(Batched(**(fields | {"stores": ["memory://far", "memory://far"]})))
    assert len(batch.parts) == 3
    assert np.isfinite(batch.parts[0].sequences[0].logprobs).all()


@pytest.mark.parametrize("url", ["nonsense://x", "s3://no-such-bucket-of-a-test"])
def test_a_store_that_cannot_be_opened_costs_the_part_only(make_run, url):
    run = make_run()
    decision = three_rows(run)
    fields = {name: getattr(decision, name) for name in decision.__struct_fields__}

    def refuse(asked):
        kind = "no_bucket" if asked.startswith("s3:") else "store_url"
        raise (StoreError if asked.startswith("s3:") else ConfigError)("cannot be opened", kind=kind)

    batch = reader_of(run, opened=refuse).load(Batched(**(fields | {"stores": ["", url]})))
    assert [part.group for part in batch.parts] == [0, 2]
    assert url in batch.skipped[1]


def test_a_region_that_does_not_answer_is_waited_for_until_it_is_given_up(make_run):
    run = make_run()
    decision = three_rows(run)
    fields = {name: getattr(decision, name) for name in decision.__struct_fields__}
    far = Flaky(run.store, 3)
    reader, batch = reader_of(run, opened=lambda _: far), Batched(**(fields | {"stores": ["", "far"]}))
    assert not reader.give_up(), "nothing is silent yet"
    with pytest.raises(StoreError) as raised:
        reader.load(batch)
    assert not isinstance(raised.value, NotFound)
    assert reader.give_up() and not reader.give_up()
    for _ in range(2):  # asked again each time, and nothing of it is remembered
        loaded = reader.load(batch)
        assert [part.group for part in loaded.parts] == [0, 2]
        assert loaded.skipped == {1: f"unreachable store 'far': {decision.paths[1]}"}
    assert len(reader.load(batch).parts) == 3
    assert far.reads == 4
    far.failures = 9
    following = three_rows(run, n=6)
    following = Batched(**({name: getattr(following, name) for name in fields} | {"stores": ["", "far"]}))
    with pytest.raises(StoreError):  # it had come back: it is waited for anew
        reader.load(following)


def test_rows_that_are_checked_together_are_read_as_those_that_are_checked_alone(make_run, monkeypatch):
    run = make_run()
    rows = [[_row(group, run.rng) | {"version_start": [0], "version_id": [3]} for _ in range(2)] for group in (0, 1, 2)]
    rows[1][1] |= {"version_start": [0, 1], "version_id": [2, 4]}
    batch = run.batch_of(5, [0, 1, 2], rows)
    together = reader_of(run).load(batch)
    monkeypatch.setattr(PartReader, "_plain_lags", lambda *_: None)
    alone = reader_of(run).load(batch)
    assert together.skipped == alone.skipped == {}
    pairs = zip(together.parts, alone.parts, strict=True)
    for one, other in [pair for a, b in pairs for pair in zip(a.sequences, b.sequences, strict=True)]:
        for field in Sequence.__slots__:
            assert np.array_equal(getattr(one, field), getattr(other, field)), field
        assert one.lags.dtype == other.lags.dtype


@pytest.mark.parametrize(
    "changes",
    [
        {"logprobs": [float("nan")], "response_ids": [4], "loss_mask": [True]},
        {"logprobs": [-1.0], "response_ids": [4], "loss_mask": [True, True]},
        {"version_start": [1], "version_id": [2]},
        {"version_start": [0], "version_id": [9]},
        {"version_start": [], "version_id": []},
        {"prompt_ids": []},
        {"temperature": 0.0},
        {"reward": float("inf")},
    ],
)
def test_a_bad_row_among_plain_ones_costs_its_part_only(make_run, changes):
    run = make_run()
    rows = [[_row(group, run.rng) | {"version_start": [0], "version_id": [3]} for _ in range(2)] for group in (0, 1, 2)]
    rows[1][0] |= changes
    loaded = reader_of(run).load(run.batch_of(5, [0, 1, 2], rows))
    assert [part.group for part in loaded.parts] == [0, 2] and list(loaded.skipped) == [1]


def test_a_log_prob_that_is_not_trained_may_be_anything(make_run):
    run = make_run()
    row = _row(0, run.rng) | {"response_ids": [4, 5], "logprobs": [float("nan"), -1.0], "loss_mask": [False, True]}
    loaded = reader_of(run).load(run.batch_of(5, [0], [[row | {"version_start": [0], "version_id": [3]}]]))
    assert not loaded.skipped
