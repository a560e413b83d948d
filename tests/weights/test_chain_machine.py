"""A state machine over a chain of fifty versions: publishes, merges, collections and mirrors that crash anywhere.

Against a plain model: the words of every version, and which of them must still be readable. What must be readable is,
bit for bit and from wherever a reader is; what was given up is either right or said to be gone.
"""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from astraflow.weights.garbage import collect, find_garbage
from astraflow.weights.layout import Layout, layout_of
from astraflow.weights.merged import Merges
from astraflow.weights.merger import Merger
from astraflow.weights.mirror import Mirror
from astraflow.weights.publisher import Publisher
from astraflow.weights.subscriber import Subscriber
from storage.errors import DataError
from storage.memory import MemoryStore
from storage.store import Created
from tests.weights.chains import KEYS

SIZE, BLOCK, EVERY, ANCHOR = 600, 128, (4, 16), 12


class Crash(BaseException):
    """The process is gone."""


class Mortal:
    """A client whose process dies just before or just after its n-th write."""

    def __init__(self, inner: MemoryStore, left: int = 10**9, *, after: bool = False) -> None:
        self._inner, self.left, self.after = inner, left, after
        self.get, self.get_range, self.list, self.url = inner.get, inner.get_range, inner.list, inner.url

    def create(self, key: str, data: bytes) -> Created:
        return self._mortal(lambda: self._inner.create(key, data))

    def put(self, key: str, data: bytes) -> None:
        self._mortal(lambda: self._inner.put(key, data))

    def delete(self, key: str) -> None:
        self._mortal(lambda: self._inner.delete(key))

    def _mortal(self, write: Any) -> Any:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise Crash
        done = write()
        if self.left == 0:
            raise Crash
        return done


crashes = st.tuples(st.integers(1, 12), st.booleans()) | st.just((10**9, False))


class Chain(RuleBasedStateMachine):
    """``versions`` are the words of every version; ``readable`` those that nobody has given up."""

    def __init__(self) -> None:
        super().__init__()
        self.store, self.region = MemoryStore(), MemoryStore()
        self.versions: list[Any] = []
        self.readable: set[int] = set()
        self.rng = np.random.default_rng(0)
        self.readers = [Subscriber(self.store, KEYS, "solver") for _ in range(2)]
        self.incarnation = -1
        self.step = 0

    @initialize(length=st.integers(1, 24))
    def begin(self, length: int) -> None:
        """A life that publishes a first stretch of the chain."""
        self.words = self.rng.integers(0x3E00, 0x3F80, SIZE).astype(np.uint16)
        self.resume()
        for _ in range(length):
            self.train((10**9, False), dense=False)

    def resume(self) -> None:
        """A new life takes over with the weights of the newest version."""
        self.client = Mortal(self.store)
        self.out = Publisher(self.client, KEYS, "solver", anchor_every=ANCHOR, block_elements=BLOCK)  # merges apart
        head = self.out.head()
        self.incarnation = head.incarnation + 1 if head else 0
        if head is not None:
            self.words = self.versions[-1].copy()
            self.step = head.step
            assert self.out.hold(self.weights, head)
        self.publish()

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        flat = torch.from_numpy(self.words).view(torch.bfloat16)
        return {"a": flat[:250], "b": flat[250:]}

    @property
    def layout(self) -> Layout:
        return layout_of(self.weights, BLOCK)

    def publish(self) -> None:
        before = self.tail()
        try:
            self.out.publish(self.weights, step=self.step, incarnation=self.incarnation, batch=self.step - 1)
        finally:
            if self.tail() > before:
                self.readable.add(len(self.versions))
                self.versions.append(self.words.copy())

    def tail(self) -> int:
        return Subscriber(self.store, KEYS, "solver").newest() + 1

    @precondition(lambda self: len(self.versions) < 60)
    @rule(crash=crashes, dense=st.booleans())
    def train(self, crash: tuple[int, bool], dense: bool) -> None:
        """A step and its publish; a trainer that dies in it is followed by the next."""
        count = SIZE if dense and self.step % 9 == 8 else 8
        at = self.rng.choice(SIZE, count, replace=False)
        self.words[at] ^= self.rng.integers(1, 0x40, count).astype(np.uint16)
        self.step += 1
        self.client.left, self.client.after = crash
        try:
            self.publish()
        except Crash:
            self.resume()
        else:
            self.client.left = 10**9

    @rule(crash=crashes, data=st.data())
    def merge(self, crash: tuple[int, bool], data: st.DataObject) -> None:
        """Merges that are due are made, or half made: some or all of them, at once or much later."""
        merger = Merger(
            Mortal(self.store, crash[0], after=crash[1]), KEYS, "solver", every=EVERY, writer=f"w{self.step}"
        )
        until = data.draw(st.integers(0, len(self.versions) - 1))
        with contextlib.suppress(Crash, DataError):  # a delta on the way may have been given up
            for span in merger.due_until(until):
                merger.make(*span, self.layout)

    @rule(crash=crashes, data=st.data())
    def give_up(self, crash: tuple[int, bool], data: st.DataObject) -> None:
        """A collection that keeps some versions, broken off or not, and perhaps finished by another."""
        keep = data.draw(st.none() | st.sets(st.sampled_from(sorted(self.readable)), max_size=4))
        garbage = find_garbage(self.store, KEYS, "solver", keep=keep)
        if keep is not None:
            self.readable &= {*keep, len(self.versions) - 1}
        with contextlib.suppress(Crash):
            collect(Mortal(self.store, crash[0], after=crash[1]), garbage)

    @rule(crash=crashes)
    def mirror(self, crash: tuple[int, bool]) -> None:
        """A mirror catches up, or dies on the way; what it has is whole."""
        with contextlib.suppress(Crash):
            Mirror(self.store, Mortal(self.region, crash[0], after=crash[1]), KEYS, "solver").copy()
        reader = Subscriber(self.region, KEYS, "solver")
        newest = reader.newest()
        if newest in self.readable:
            with contextlib.suppress(DataError):  # what led there may have been given up before it was copied
                self.same(reader.fetch(newest), newest)

    @rule(which=st.integers(0, 1), data=st.data())
    def read(self, which: int, data: st.DataObject) -> None:
        """What must be readable is, from wherever the reader is."""
        version = data.draw(st.sampled_from(sorted(self.readable)))
        self.same(self.readers[which].fetch(version), version)

    @rule(which=st.integers(0, 1), data=st.data())
    def read_anything(self, which: int, data: st.DataObject) -> None:
        """What was given up is right, or said to be gone; the reader stays of use."""
        version = data.draw(st.integers(0, len(self.versions) - 1))
        try:
            self.same(self.readers[which].fetch(version), version)
        except DataError:
            assert version not in self.readable

    @rule(which=st.integers(0, 1))
    def restart_reader(self, which: int) -> None:
        """A pool starts again with nothing."""
        self.readers[which] = Subscriber(self.store, KEYS, "solver")

    def same(self, update: Any, version: int) -> None:
        words = torch.cat([update.tensors["a"], update.tensors["b"]]).view(torch.uint16).numpy()
        assert np.array_equal(words, self.versions[version])
        assert update.version == version

    @invariant()
    def the_newest_is_readable_and_never_dearer_than_its_snapshot(self) -> None:
        if not self.versions:
            return
        reader = Subscriber(self.store, KEYS, "solver")
        assert reader.newest() == len(self.versions) - 1
        self.same(reader.fetch(reader.newest()), len(self.versions) - 1)

    @invariant()
    def merges_name_versions_and_blobs_that_are_there(self) -> None:
        merges = Merges(self.store, KEYS, "solver")
        for base, version in merges.spans():
            (merge,) = [each for each in merges.ending(version) if each.base == base]
            assert version < len(self.versions)
            assert all(self.store.get(KEYS.merged("solver") + blob.name) for blob in merge.blobs)


TestChain = Chain.TestCase
TestChain.settings = settings(max_examples=25, stateful_step_count=20, deadline=None)


def test_a_chain_of_fifty_versions_dies_at_every_write() -> None:
    """Publish, merge and collect along fifty versions, dying at the n-th write of each, for every n there is."""
    for after in (False, True):
        store, reader = MemoryStore(), None
        chain = Chain()
        chain.store, chain.words = store, chain.rng.integers(0x3E00, 0x3F80, SIZE).astype(np.uint16)
        chain.resume()
        reader = Subscriber(store, KEYS, "solver")
        writes = 1
        while len(chain.versions) < 50:
            chain.train((writes % 3 + 1, after), dense=False)
            version = len(chain.versions) - 1
            merger = Merger(Mortal(store, writes % 4 + 1, after=after), KEYS, "solver", every=EVERY, writer=str(writes))
            with contextlib.suppress(Crash):
                for span in merger.due_until(version):
                    merger.make(*span, chain.layout)
            chain.same(reader.fetch(version), version)
            writes += 1
        spans = Merges(store, KEYS, "solver").spans()
        assert spans
        for version in range(0, 50, 7):
            chain.same(Subscriber(store, KEYS, "solver").fetch(version), version)
        keep = [10, 30]
        for left in range(1, 100):
            garbage = find_garbage(store, KEYS, "solver", keep=keep)
            if not garbage.keys:
                break
            with contextlib.suppress(Crash):
                collect(Mortal(store, left, after=after), garbage)
            for version in (*keep, len(chain.versions) - 1):
                chain.same(Subscriber(store, KEYS, "solver").fetch(version), version)
        else:
            pytest.fail("the collection never came to an end")
