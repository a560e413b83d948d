"""Publish and fetch: chains of deltas, anchors, catching up from anywhere, and the bytes it takes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from astraflow.weights.catch_up import plan_catch_up
from astraflow.weights.container import read_blob
from astraflow.weights.manifest import Blob, Manifest
from astraflow.weights.publisher import Publisher
from astraflow.weights.subscriber import Subscriber
from astraflow.weights.update import WeightUpdate
from storage.errors import DataError, NotFound
from storage.keys import RunKeys
from storage.memory import FaultPlan, MemoryStore

KEYS = RunKeys("run")
Weights = dict[str, torch.Tensor]


def first_weights(seed: int = 0) -> Weights:
    draw = torch.Generator().manual_seed(seed)
    embedding = torch.randn(40, 8, generator=draw).bfloat16()
    return {
        "embed": embedding,
        "lm_head": embedding,
        "layer.0": torch.randn(30, 9, generator=draw).bfloat16(),
        "layer.1": torch.randn(8, generator=draw),
        "norm": torch.ones(3).bfloat16(),
        "none": torch.empty(0, 4).bfloat16(),
    }


def nudge(weights: Weights, rng: np.random.Generator, share: float = 0.02) -> None:
    """Step some values by an ulp or two, in place."""
    for tensor in weights.values():
        words = tensor.view(torch.uint16 if tensor.element_size() == 2 else torch.uint32).numpy().reshape(-1)
        at = np.flatnonzero(rng.random(words.size) < share)
        words[at] ^= rng.integers(1, 4, at.size).astype(words.dtype)


def copied(weights: Weights) -> Weights:
    return {name: tensor.clone() for name, tensor in weights.items()}


def same(update: WeightUpdate, weights: Weights) -> bool:
    return update.tensors.keys() == weights.keys() and all(
        torch.equal(update.tensors[name], tensor) and update.tensors[name].dtype == tensor.dtype
        for name, tensor in weights.items()
    )


def publisher(store: MemoryStore, anchor_every: int = 16, blob_bytes: int = 2**28) -> Publisher:
    return Publisher(store, KEYS, "solver", anchor_every=anchor_every, block_elements=100, blob_bytes=blob_bytes)


def chain(store: MemoryStore, length: int, anchor_every: int = 16) -> tuple[list[Weights], list[Manifest]]:
    weights, rng, out = first_weights(), np.random.default_rng(0), publisher(store, anchor_every)
    versions, manifests = [], []
    for step in range(length):
        manifests.append(out.publish(weights, step=step, incarnation=1, batch=step - 1))
        versions.append(copied(weights))
        nudge(weights, rng)
    return versions, manifests


def test_fifty_versions_are_caught_up_from_any() -> None:
    store = MemoryStore()
    versions, manifests = chain(store, 50)
    assert [manifest.version for manifest in manifests] == list(range(50))
    assert [manifest.version for manifest in manifests if manifest.kind == "anchor"] == [0, 16, 32, 48]
    for start in range(0, 50, 7):
        for end in [*range(0, 50, 11), 49]:
            reader = Subscriber(store, KEYS, "solver")
            assert same(reader.fetch(start), versions[start])
            update = reader.fetch(end)
            assert same(update, versions[end])
            assert (update.version, update.step, update.digest) == (end, end, manifests[end].digest)
            assert reader.version == end


def test_newest_is_found_and_followed() -> None:
    store = MemoryStore()
    reader = Subscriber(store, KEYS, "solver")
    assert (reader.newest(), reader.version) == (-1, -1)
    chain(store, 9)
    assert (reader.newest(), reader.newest(), reader.version) == (8, 8, -1)
    assert reader.fetch(8).tensors["embed"] is not None
    assert reader.version == 8


def test_a_reader_one_behind_never_fetches_a_snapshot() -> None:
    store = MemoryStore()
    versions, manifests = chain(store, 20, anchor_every=4)
    reader = Subscriber(store, KEYS, "solver")
    assert reader.fetch(0).payload_bytes == manifests[0].snapshot_bytes
    for version in range(1, 20):
        update = reader.fetch(version)
        assert same(update, versions[version])
        assert update.payload_bytes == sum(blob.size_bytes for blob in manifests[version].delta)


def test_changed_names_what_changed() -> None:
    store, weights = MemoryStore(), first_weights()
    out, reader = publisher(store), Subscriber(store, KEYS, "solver")
    out.publish(weights, step=0, incarnation=0, batch=-1)
    assert reader.fetch(0).changed == weights.keys()
    weights["embed"][3, 3] = 9.0
    out.publish(weights, step=1, incarnation=0, batch=0)
    assert reader.fetch(1).changed == {"embed", "lm_head"}
    weights["layer.0"].copy_(torch.randn(30, 9))  # dense
    out.publish(weights, step=2, incarnation=0, batch=1)
    assert reader.fetch(2).changed == {"layer.0"}
    assert reader.fetch(2).changed == frozenset()


def test_unchanged_weights_make_an_empty_delta() -> None:
    store, weights, out = MemoryStore(), first_weights(), publisher(MemoryStore())
    out = publisher(store)
    first = out.publish(weights, step=0, incarnation=0, batch=-1)
    again = out.publish(weights, step=0, incarnation=0, batch=-1, skipped={"0": [3]})
    assert (again.version, again.base, again.kind, again.size_bytes, again.changed) == (1, 0, "delta", 0, 0)
    assert again.digest == first.digest == again.base_digest
    assert again.skipped == {"0": [3]}
    assert [info.key for info in store.list(KEYS.version("solver", 1))] == [KEYS.manifest("solver", 1)]
    assert same(Subscriber(store, KEYS, "solver").fetch(1), weights)


def test_an_anchor_can_be_asked_for() -> None:
    store, weights = MemoryStore(), first_weights()
    out = publisher(store)
    out.publish(weights, step=0, incarnation=0, batch=-1)
    asked = out.publish(weights, step=0, incarnation=0, batch=-1, anchor=True)
    assert (asked.kind, asked.base, asked.anchor) == ("anchor", 0, 1)
    assert same(Subscriber(store, KEYS, "solver").fetch(1), weights)


@pytest.mark.parametrize("change", ["name", "shape", "dtype", "tie", "more"])
def test_another_layout_forces_an_anchor(change: str) -> None:
    store, weights = MemoryStore(), first_weights()
    out, reader = publisher(store), Subscriber(store, KEYS, "solver")
    out.publish(weights, step=0, incarnation=0, batch=-1)
    reader.fetch(0)
    if change == "name":
        weights["other"] = weights.pop("norm")
    elif change == "shape":
        weights["norm"] = weights["norm"].reshape(3, 1)
    elif change == "dtype":
        weights["norm"] = weights["norm"].half()
    elif change == "tie":
        weights["lm_head"] = weights["lm_head"].clone()
    else:
        weights["more"] = torch.ones(1000).bfloat16()
    manifest = out.publish(weights, step=1, incarnation=0, batch=0)
    assert (manifest.kind, manifest.base) == ("anchor", -1)
    assert manifest.size_bytes == manifest.snapshot_bytes
    update = reader.fetch(1)
    assert same(update, weights)
    assert update.changed == weights.keys()
    nudge(weights, np.random.default_rng(1))
    assert out.publish(weights, step=2, incarnation=0, batch=1).kind == "delta"
    assert same(reader.fetch(2), weights)


def test_large_versions_are_cut_into_several_blobs() -> None:
    store, weights = MemoryStore(), first_weights()
    out, reader = publisher(store, blob_bytes=300), Subscriber(store, KEYS, "solver")
    first = out.publish(weights, step=0, incarnation=0, batch=-1)
    assert len(first.snapshot) == 6
    keys = [KEYS.version("solver", 0) + blob.name for blob in first.snapshot]
    assert [read_blob(store.get(key), where=key)[0].layout is None for key in keys] == [False] + 5 * [True]
    assert same(reader.fetch(0), weights)
    nudge(weights, np.random.default_rng(0), share=0.9)
    second = out.publish(weights, step=1, incarnation=0, batch=0)
    assert len(second.delta) > 1
    assert same(reader.fetch(1), weights)


def test_weights_without_elements_are_a_version_too() -> None:
    store = MemoryStore()
    out = publisher(store)
    for step, weights in enumerate(({}, {"a": torch.empty(0)})):
        out.publish(weights, step=step, incarnation=0, batch=step - 1)
        assert same(Subscriber(store, KEYS, "solver").fetch(step), weights)


def test_a_resumed_trainer_goes_on_with_a_delta_if_it_has_the_same_weights() -> None:
    store = MemoryStore()
    versions, _ = chain(store, 5)
    weights = copied(versions[4])
    weights["lm_head"] = weights["embed"]
    resumed = publisher(store)
    head = resumed.head()
    assert head is not None
    assert (head.version, head.step, head.batch) == (4, 4, 3)
    assert resumed.hold(weights, head) is True
    claim = resumed.publish(weights, step=4, incarnation=2, batch=3)
    assert (claim.version, claim.size_bytes, claim.digest) == (5, 0, head.digest)
    nudge(weights, np.random.default_rng(5))
    assert resumed.publish(weights, step=5, incarnation=2, batch=4).base == 5


def test_a_resumed_trainer_with_other_weights_publishes_an_anchor() -> None:
    store = MemoryStore()
    versions, _ = chain(store, 5)
    weights = copied(versions[3])
    weights["lm_head"] = weights["embed"]
    resumed = publisher(store)
    head = resumed.head()
    assert head is not None
    assert resumed.hold(weights, head) is False
    claim = resumed.publish(weights, step=4, incarnation=2, batch=3)
    assert (claim.version, claim.kind, claim.base) == (5, "anchor", -1)
    reader = Subscriber(store, KEYS, "solver")
    reader.fetch(4)
    assert same(reader.fetch(5), weights)


def test_without_hold_equal_weights_are_still_an_empty_delta() -> None:
    store = MemoryStore()
    versions, _ = chain(store, 3)
    weights = copied(versions[2])
    weights["lm_head"] = weights["embed"]
    claim = publisher(store).publish(weights, step=2, incarnation=2, batch=1)
    assert (claim.kind, claim.base, claim.size_bytes) == ("delta", 2, 0)


def test_hold_knows_the_head_it_is_given() -> None:
    store = MemoryStore()
    versions, manifests = chain(store, 3)
    resumed = publisher(store)
    weights = copied(versions[2])
    weights["lm_head"] = weights["embed"]
    assert resumed.hold(weights, manifests[2])
    nudge(weights, np.random.default_rng(5))
    assert resumed.publish(weights, step=3, incarnation=2, batch=2).base == 2


def test_non_finite_weights_leave_the_store_untouched() -> None:
    store, weights = MemoryStore(), first_weights()
    out = publisher(store)
    weights["layer.0"][29, 8] = float("nan")
    with pytest.raises(DataError, match=r"layer\.0") as caught:
        out.publish(weights, step=0, incarnation=0, batch=-1)
    assert caught.value.kind == "non_finite"
    assert list(store.list("")) == []
    weights["layer.0"][29, 8] = 0
    assert out.publish(weights, step=0, incarnation=0, batch=-1).version == 0


@pytest.mark.parametrize(("step", "batch"), [(3, 3), (4, 2)])
def test_a_trainer_behind_the_head_may_not_publish(step: int, batch: int) -> None:
    store = MemoryStore()
    versions, _ = chain(store, 5)
    before = len(list(store.list("")))
    with pytest.raises(DataError) as caught:
        publisher(store).publish(versions[0], step=step, incarnation=2, batch=batch)
    assert caught.value.kind == "behind"
    assert len(list(store.list(""))) == before


def test_a_version_that_is_not_there_is_not_found() -> None:
    store = MemoryStore()
    chain(store, 2)
    reader = Subscriber(store, KEYS, "solver")
    with pytest.raises(NotFound, match="version 7 of solver"):
        reader.fetch(7)


def test_a_bad_network_changes_nothing_but_time() -> None:
    clean, weights, rng = MemoryStore(), first_weights(), np.random.default_rng(0)
    faults = FaultPlan(seed=3, error_before=0.1, lost_answer=0.15, duplicate=0.1)
    out = publisher(clean.client(faults), anchor_every=4)
    reader = Subscriber(clean, KEYS, "solver")
    for step in range(12):
        assert out.publish(weights, step=step, incarnation=0, batch=step - 1).version == step
        assert same(reader.fetch(step), weights)
        nudge(weights, rng)


def manifest(version: int, delta_bytes: int, snapshot_bytes: int = 0, anchor: int = 0) -> Manifest:
    blobs = [Blob(name="x.safetensors", size_bytes=size, hash="") for size in (delta_bytes, snapshot_bytes)]
    return Manifest(
        policy="solver",
        version=version,
        step=version,
        incarnation=0,
        batch=version - 1,
        skipped={},
        kind="anchor" if snapshot_bytes else "delta",
        base=version - 1 if delta_bytes else -1,
        base_digest="",
        digest="",
        layout="",
        anchor=version if snapshot_bytes else anchor,
        delta=(blobs[0],) if delta_bytes else (),
        snapshot=(blobs[1],) if snapshot_bytes else (),
        size_bytes=delta_bytes or snapshot_bytes,
        full_bytes=1000,
        changed=1,
        writer="w",
    )


VERSIONS = [manifest(0, 0, 100), *(manifest(v, 15) for v in range(1, 8)), manifest(8, 15, 100)]
VERSIONS += [manifest(9, 15, anchor=8), manifest(10, 0, 100), manifest(11, 15, anchor=10)]


@pytest.mark.parametrize(
    ("held", "wanted", "snapshot", "deltas", "size_bytes"),
    [
        (-1, 0, 0, [], 100),
        (-1, 5, 0, [1, 2, 3, 4, 5], 175),
        (5, 5, None, [], 0),
        (2, 5, None, [3, 4, 5], 45),
        (5, 2, None, [5, 4, 3], 45),  # back along the same deltas
        (7, 0, 0, [], 100),  # 105 bytes of deltas back are more than the snapshot
        (11, 9, 8, [9], 115),  # nothing leads back over version 10
        (7, 8, None, [8], 15),  # a delta although there is a snapshot
        (6, 9, None, [7, 8, 9], 45),
        (0, 9, 8, [9], 115),  # 135 bytes of deltas are more than the snapshot
        (0, 8, 8, [], 100),
        (9, 8, None, [9], 15),
        (9, 11, 10, [11], 115),  # version 10 has no delta
        (-1, 9, 8, [9], 115),
    ],
)
def test_the_cheaper_way_is_taken(
    held: int, wanted: int, snapshot: int | None, deltas: list[int], size_bytes: int
) -> None:
    plan = plan_catch_up(VERSIONS.__getitem__, wanted, held)
    assert (plan.snapshot.version if plan.snapshot else None) == snapshot
    assert [delta.version for delta in plan.deltas] == deltas
    assert plan.size_bytes == size_bytes


def test_no_more_manifests_are_read_than_a_cheaper_way_needs() -> None:
    asked: list[int] = []

    def read(version: int) -> Manifest:
        asked.append(version)
        return VERSIONS[version]

    plan_catch_up(read, 9, 0)
    assert asked == [9, 8, 7, 6, 5, 4, 3, 2]


def test_places_name_every_element_that_may_differ() -> None:
    store, weights, rng = MemoryStore(), first_weights(), np.random.default_rng(1)
    out, reader = publisher(store, anchor_every=7), Subscriber(store, KEYS, "solver")
    versions = []
    for step in range(20):
        versions.append(copied(weights))
        out.publish(weights, step=step, incarnation=0, batch=step - 1)
        nudge(weights, rng, share=0.005)
    engine = {name: torch.full(tensor.shape, 77.0) for name, tensor in weights.items()}  # fp32, as engines have it
    reader.fetch(0).write_into(engine, everything=True)
    in_places = 0
    for version in (1, 2, 5, 4, 19, 18, 0):
        update = reader.fetch(version)
        assert update.places.keys() <= update.changed
        in_places += len(update.places)
        update.write_into(engine, everything=False)
        for name, tensor in versions[version].items():
            assert torch.equal(engine[name], tensor.float())
    assert in_places > 10
    assert reader.fetch(0).places == {}


def test_a_tensor_that_changes_in_many_places_is_copied_whole() -> None:
    store, weights = MemoryStore(), {"a": torch.zeros(1000).bfloat16(), "b": torch.zeros(1000).bfloat16()}
    out, reader = publisher(store), Subscriber(store, KEYS, "solver")
    for step in range(2):
        out.publish(weights, step=step, incarnation=0, batch=step - 1)
        weights["a"][:32] = 1
        weights["b"][:31] = 1
    reader.fetch(0)
    update = reader.fetch(1)
    assert update.changed == {"a", "b"}
    assert update.places.keys() == {"b"}
    assert update.places["b"].tolist() == list(range(31))


def test_what_a_failed_fetch_wrote_is_in_the_next_update() -> None:
    store, weights = MemoryStore(), {"a": torch.zeros(1000).bfloat16()}
    out, reader = publisher(store), Subscriber(store, KEYS, "solver")
    for step in range(3):
        weights["a"][step] = 1
        out.publish(weights, step=step, incarnation=0, batch=step - 1)
    engine = {"a": torch.zeros(1000)}
    reader.fetch(0).write_into(engine, everything=True)
    blob = KEYS.version("solver", 2) + reader.manifest(2).delta[0].name
    good = store.get(blob)
    store.put(blob, b"x")
    with pytest.raises(DataError):
        reader.fetch(2)
    store.put(blob, good)
    reader.fetch(2).write_into(engine, everything=False)
    assert torch.equal(engine["a"], weights["a"].float())
