"""A state machine: trainers that crash anywhere, come back, race; readers that follow. Against a plain list."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from astraflow.weights.manifest import Manifest, decode_manifest
from astraflow.weights.publisher import Publisher, VersionTaken
from astraflow.weights.subscriber import Subscriber
from storage.errors import Fenced
from storage.keys import RunKeys
from storage.memory import MemoryStore
from storage.store import Created

KEYS = RunKeys("run")
SIZE = 120


class Crash(BaseException):
    """The process is gone."""


class Mortal:
    """A client whose process dies just before or just after its n-th create."""

    def __init__(self, inner: MemoryStore) -> None:
        self._inner = inner
        self.left = 10**9
        self.after = False
        self.get, self.get_range, self.put = inner.get, inner.get_range, inner.put
        self.list, self.delete, self.url = inner.list, inner.delete, inner.url

    def create(self, key: str, data: bytes) -> Created:
        self.left -= 1
        if self.left == 0 and not self.after:
            raise Crash
        done = self._inner.create(key, data)
        if self.left == 0:
            raise Crash
        return done


class Trainer:
    """One life: weights, step, and a publisher over a mortal client."""

    def __init__(self, store: MemoryStore, incarnation: int, words: Any, step: int) -> None:
        self.client = Mortal(store)
        self.publisher = Publisher(self.client, KEYS, "solver", anchor_every=3, block_elements=50)
        self.incarnation = incarnation
        self.words = words.copy()
        self.step = step

    @property
    def weights(self) -> dict[str, torch.Tensor]:
        tensor = torch.from_numpy(self.words).view(torch.bfloat16)
        return {"a": tensor[:70], "b": tensor[70:], "tied": tensor[70:]}

    def publish(self) -> Manifest:
        return self.publisher.publish(self.weights, step=self.step, incarnation=self.incarnation, batch=self.step - 1)


class Weights(RuleBasedStateMachine):
    """``versions`` is what the store must hold, by version."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore()
        self.versions: list[Any] = []
        self.trainer: Trainer | None = None
        self.zombie: Trainer | None = None
        self.reader = Subscriber(self.store, KEYS, "solver")

    def record(self, trainer: Trainer) -> None:
        """Take into the model what stands in the store: one more version at most, with this trainer's words."""
        if self.tail() > len(self.versions):
            self.versions.append(trainer.words.copy())
        assert self.tail() == len(self.versions)

    def tail(self) -> int:
        return sum(info.key.endswith("manifest.json") for info in self.store.list(KEYS.weights("solver")))

    def manifest(self, version: int) -> Manifest:
        key = KEYS.manifest("solver", version)
        return decode_manifest(self.store.get(key), where=key, policy="solver", version=version)

    @precondition(lambda self: self.trainer is None)
    @rule(equal=st.booleans())
    def start(self, equal: bool) -> None:
        """A trainer resumes from the head, with the same weights or (another device) slightly other ones."""
        head = Publisher(self.store, KEYS, "solver", anchor_every=3, block_elements=50).head()
        words = self.versions[-1] if self.versions else np.full(SIZE, 0x3F80, np.uint16)
        trainer = Trainer(self.store, head.incarnation + 1 if head else 0, words, head.step if head else 0)
        if not equal:
            trainer.words[5] ^= 1
        if head is not None:
            assert trainer.publisher.hold(trainer.weights, head) == np.array_equal(trainer.words, self.versions[-1])
        manifest = trainer.publish()
        self.record(trainer)
        assert manifest.version == len(self.versions) - 1
        self.trainer = trainer

    @precondition(lambda self: self.trainer is not None)
    @rule(at=st.lists(st.integers(0, SIZE - 1), max_size=30), bits=st.integers(1, 0x3F))
    def train(self, at: list[int], bits: int) -> None:
        """A step and its publish."""
        assert self.trainer is not None
        self.trainer.words[at] ^= np.uint16(bits)
        self.trainer.step += 1
        manifest = self.trainer.publish()
        self.record(self.trainer)
        assert manifest.version == len(self.versions) - 1

    @precondition(lambda self: self.trainer is not None)
    @rule(creates=st.integers(1, 3), after=st.booleans(), at=st.lists(st.integers(0, SIZE - 1), max_size=4))
    def crash(self, creates: int, after: bool, at: list[int]) -> None:
        """A publish that dies at one of its creates; whether the version exists, the store says."""
        assert self.trainer is not None
        trainer, self.trainer = self.trainer, None
        trainer.words[at] ^= np.uint16(1)
        trainer.step += 1
        trainer.client.left, trainer.client.after = creates, after
        with contextlib.suppress(Crash):
            trainer.publish()
        self.record(trainer)

    @precondition(lambda self: self.trainer is not None)
    @rule()
    def stall(self) -> None:
        """The trainer is taken for dead, but lives."""
        self.zombie, self.trainer = self.trainer, None

    @precondition(lambda self: self.zombie is not None)
    @rule()
    def zombie_wakes(self) -> None:
        """It may publish while nobody has taken over, and never afterwards."""
        assert self.zombie is not None
        zombie, taken_over = self.zombie, self.manifest(len(self.versions) - 1).incarnation
        zombie.step += 1
        zombie.words[0] ^= np.uint16(1)
        if taken_over > zombie.incarnation:
            before = self.tail()
            with pytest.raises(Fenced):
                zombie.publish()
            assert self.tail() == before
            self.zombie = None
        else:
            zombie.publish()
            self.record(zombie)

    @precondition(lambda self: self.zombie is not None and self.trainer is None)
    @rule()
    def overtaken(self) -> None:
        """A claim that loses to a zombie is told so, and made again above it."""
        assert self.zombie is not None
        head = self.manifest(len(self.versions) - 1)
        if head.incarnation != self.zombie.incarnation:
            return
        trainer = Trainer(self.store, head.incarnation + 1, self.versions[-1], head.step)
        trainer.publisher.head()
        self.zombie_wakes()
        with pytest.raises(VersionTaken):
            trainer.publish()
        self.record(trainer)

    @precondition(lambda self: self.versions)
    @rule(drawn=st.data())
    def read(self, drawn: st.DataObject) -> None:
        """Any version is had, bit for bit, from wherever the reader is."""
        version = drawn.draw(st.integers(0, len(self.versions) - 1))
        update = self.reader.fetch(version)
        words = torch.cat([update.tensors["a"], update.tensors["b"]]).view(torch.uint16).numpy()
        assert np.array_equal(words, self.versions[version])
        assert update.digest == self.manifest(version).digest

    @invariant()
    def manifests_are_gapless_and_never_fall(self) -> None:
        found = [self.manifest(version) for version in range(self.tail())]
        for before, after in itertools.pairwise(found):
            assert (before.incarnation, before.step, before.batch) <= (after.incarnation, after.step, after.batch)
            assert before.step <= after.step
            assert (before.digest == after.digest) == np.array_equal(
                self.versions[before.version], self.versions[after.version]
            )
        assert self.reader.newest() == len(found) - 1


TestWeights = Weights.TestCase
TestWeights.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
