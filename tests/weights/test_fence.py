"""Two trainers of one policy: the manifest decides, and nobody's bytes are overwritten."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from astraflow.weights.publisher import Publisher, VersionTaken
from astraflow.weights.subscriber import Subscriber
from storage.errors import DataError, Fenced, StoreError
from storage.keys import RunKeys
from storage.memory import MemoryStore
from storage.store import Created, ObjectStore

KEYS = RunKeys("run")


class Interposed:
    """A store that calls ``before`` or ``after`` around each create: another process's move, or a lost answer."""

    def __init__(
        self,
        inner: MemoryStore,
        before: Callable[[str], None] = lambda key: None,
        after: Callable[[str], None] = lambda key: None,
    ) -> None:
        self._inner = inner
        self._before = before
        self._after = after
        self.get, self.get_range, self.put = inner.get, inner.get_range, inner.put
        self.list, self.delete, self.url = inner.list, inner.delete, inner.url

    def create(self, key: str, data: bytes) -> Created:
        self._before(key)
        done = self._inner.create(key, data)
        self._after(key)
        return done


def trainer(store: ObjectStore) -> Publisher:
    return Publisher(store, KEYS, "solver", anchor_every=8, block_elements=64)


def weights(value: float) -> dict[str, torch.Tensor]:
    return {"a": torch.full((100,), value).bfloat16()}


def once(act: Callable[[], object], on: str) -> Callable[[str], None]:
    """Call ``act`` the first time that a key ending with ``on`` is met."""
    left = [act]

    def call(key: str) -> None:
        if key.endswith(on) and left:
            left.pop()()

    return call


def test_a_fenced_trainer_finds_out_at_its_next_publish() -> None:
    store = MemoryStore()
    old, new = trainer(store), trainer(store)
    old.publish(weights(1), step=0, incarnation=1, batch=-1)
    new.publish(weights(1), step=0, incarnation=2, batch=-1)
    with pytest.raises(Fenced) as caught:
        old.publish(weights(2), step=1, incarnation=1, batch=0)
    assert caught.value.exit_code == 5
    assert caught.value.where == KEYS.manifest("solver", 1)
    with pytest.raises(Fenced):  # and again: it knows now
        old.publish(weights(2), step=1, incarnation=1, batch=0)
    assert new.publish(weights(3), step=1, incarnation=2, batch=0).version == 2


def test_a_trainer_that_reads_a_higher_incarnation_is_fenced_before_it_writes() -> None:
    store = MemoryStore()
    trainer(store).publish(weights(1), step=0, incarnation=3, batch=-1)
    before = len(list(store.list("")))
    with pytest.raises(Fenced):
        trainer(store).publish(weights(1), step=0, incarnation=2, batch=-1)
    assert len(list(store.list(""))) == before


@pytest.mark.parametrize("other", [2, 3])
def test_of_two_claims_at_one_version_one_wins(other: int) -> None:
    store = MemoryStore()
    trainer(store).publish(weights(1), step=0, incarnation=1, batch=-1)
    rival = trainer(store)
    racing = Interposed(
        store,
        before=once(lambda: rival.publish(weights(5), step=0, incarnation=other, batch=-1), "manifest.json"),
    )
    with pytest.raises(Fenced):
        trainer(racing).publish(weights(7), step=0, incarnation=2, batch=-1)
    update = Subscriber(store, KEYS, "solver").fetch(1)
    assert update.tensors["a"][0] == 5
    assert rival.publish(weights(6), step=1, incarnation=other, batch=0).version == 2


def test_a_claim_that_an_older_trainer_overtook_is_made_again_above_it() -> None:
    store = MemoryStore()
    old = trainer(store)
    old.publish(weights(1), step=0, incarnation=1, batch=-1)
    racing = Interposed(
        store, before=once(lambda: old.publish(weights(2), step=1, incarnation=1, batch=0), "manifest.json")
    )
    resumed = trainer(racing)
    head = resumed.head()
    assert head is not None
    assert resumed.hold(weights(1), head)
    with pytest.raises(VersionTaken):
        resumed.publish(weights(1), step=0, incarnation=2, batch=-1)
    with pytest.raises(DataError):  # the head has trained batch 0 meanwhile
        resumed.publish(weights(1), step=0, incarnation=2, batch=-1)
    head = resumed.head()
    assert head is not None
    assert (head.version, head.batch) == (1, 0)
    assert resumed.hold(weights(2), head)
    assert resumed.publish(weights(2), step=1, incarnation=2, batch=0).version == 2
    with pytest.raises(Fenced):
        old.publish(weights(3), step=2, incarnation=1, batch=1)


def test_a_lost_answer_does_not_fence_its_own_sender() -> None:
    store = MemoryStore()

    def lose() -> None:
        raise StoreError("the answer was lost", kind="denied")  # not retried within the call

    out = trainer(Interposed(store, after=once(lose, "manifest.json")))
    with pytest.raises(StoreError):
        out.publish(weights(1), step=0, incarnation=1, batch=-1)
    manifest = out.publish(weights(1), step=0, incarnation=1, batch=-1)
    assert (manifest.version, manifest.step) == (0, 0)
    assert out.publish(weights(2), step=1, incarnation=1, batch=0).base == 0
    assert Subscriber(store, KEYS, "solver").fetch(1).tensors["a"][99] == 2


def test_a_lost_answer_and_then_other_weights_is_a_version_taken() -> None:
    store = MemoryStore()

    def lose() -> None:
        raise StoreError("the answer was lost", kind="denied")

    out = trainer(Interposed(store, after=once(lose, "manifest.json")))
    with pytest.raises(StoreError):
        out.publish(weights(1), step=0, incarnation=1, batch=-1)
    with pytest.raises(VersionTaken):
        out.publish(weights(2), step=0, incarnation=1, batch=-1)
    assert out.publish(weights(2), step=0, incarnation=1, batch=-1).version == 1


def test_blobs_of_two_trainers_never_share_a_name() -> None:
    store = MemoryStore()
    first, second = trainer(store), trainer(store)
    first.publish(weights(1), step=0, incarnation=1, batch=-1)
    with pytest.raises(Fenced):
        Publisher(
            Interposed(store, before=once(lambda: None, "")), KEYS, "solver", anchor_every=1, block_elements=64
        ).publish(weights(2), step=0, incarnation=0, batch=-1)
    racing = Interposed(
        store,
        before=once(lambda: second.publish(weights(3), step=1, incarnation=1, batch=0, anchor=True), "manifest.json"),
    )
    third = trainer(racing)
    with pytest.raises(Fenced):
        third.publish(weights(4), step=1, incarnation=1, batch=0)
    names = [info.key for info in store.list(KEYS.version("solver", 1))]
    assert len(names) == 3  # two snapshots and the winner's manifest
    assert all("/1-" in name for name in names if name.endswith(".safetensors"))


def test_a_store_that_has_a_new_blobs_name_is_refused() -> None:
    store = MemoryStore()

    def squat(key: str) -> None:
        if key.endswith(".safetensors"):
            store.put(key, b"something else")

    with pytest.raises(DataError) as caught:
        trainer(Interposed(store, before=squat)).publish(weights(1), step=0, incarnation=1, batch=-1)
    assert caught.value.kind == "taken"
