"""Checkpoints: all that a trainer needs to go on, bit for bit, written beside the training.

A checkpoint is a folder of torch.distributed.checkpoint and, last, a marker object ``complete.json`` made through the
object store. Without its marker it does not exist. Everything in it is a tensor: parameters, optimizer state, the
state of torch's generator; the counters stand in the marker. The learning rate is a function of the step, so there
is no scheduler to keep. A checkpoint is made only of a step that is published, so none is ever ahead of the manifests.

With several ranks each writes its own rows, and any other number of ranks can load them.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from concurrent.futures import Future
from typing import Any

import msgspec
import torch
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem
from torch import Tensor
from torch.distributed.checkpoint._fsspec_filesystem import FileSystem
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

from astraflow.trainer.checkpoint_folders import MARKER, folders, surplus
from astraflow.trainer.learner import Learner
from astraflow.trainer.team import ALONE, Ranks, Team
from storage.commit_points import commit_point
from storage.errors import DataError, NotFound, StoreError
from storage.filesystem import open_filesystem
from storage.keys import RunKeys
from storage.store import ObjectStore

# torch warns of what no_dist asks for.
warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")

log = logging.getLogger("astraflow.trainer")

MAX_FAILURES = 3


class Mark(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The marker: counters at the checkpoint. ``cursor`` is the decision that held the last batch trained."""

    incarnation: int
    step: int
    cursor: int
    bad_steps: int = 0
    paused: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET  # pauses in force at the cursor; left out if none

    @property
    def age(self) -> tuple[int, int]:
        """What orders checkpoints: by step, then by the later life."""
        return (self.step, self.incarnation)


def learner_tensors(learner: Learner) -> dict[str, Tensor]:
    """Every tensor of a learner by name, sharing its memory; tied parameters once, under their first name."""
    tensors: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in learner.model.state_dict(keep_vars=True).items():
        if id(tensor) not in seen:
            seen.add(id(tensor))
            tensors[f"model.{name}"] = tensor.detach()
    for name, parameter in learner.model.named_parameters():
        for kind, tensor in learner.optimizer.state.get(parameter, {}).items():
            tensors[f"optimizer.{name}.{kind}"] = tensor
    tensors["rng.torch"] = torch.get_rng_state()
    return tensors


class Checkpoints:
    """The checkpoints of one policy: at most one is being written, the newest ``keep`` complete ones are kept."""

    def __init__(self, store: ObjectStore, keys: RunKeys, policy: str, *, keep: int, team: Team = ALONE) -> None:
        self._team = team
        self._store = store
        self._keys = keys
        self._policy = policy
        self._keep = keep
        self._files: AbstractFileSystem | None = None
        self._root = ""
        self._writing: tuple[Mark, Future[Any]] | None = None
        self.failures = 0  # in a row
        self.written_step = -1  # of the newest checkpoint that was completed here

    def newest(self, *, step: int) -> Mark | None:
        """The newest complete checkpoint that is not ahead of ``step``, or None."""
        marks = [mark for mark in self._complete() if mark.step <= step]
        return max(marks, key=lambda mark: mark.age, default=None)

    def load(self, mark: Mark, learner: Learner) -> None:
        """Put the checkpoint's state into ``learner``. Raises ``DataError`` if it does not fit its model."""
        tensors = learner_tensors(learner)
        try:
            load(tensors, storage_reader=_Reader(*self._folder(*mark.age)), **self._together())
        except OSError as error:  # of the filesystem, which has tried again by itself
            raise StoreError(
                f"a checkpoint could not be read: {error}",
                where=self._keys.checkpoint(self._policy, mark.incarnation, mark.step),
                remedy="The same call may be made again",
                kind="unreachable",
            ) from error
        except CheckpointException as error:
            raise DataError(
                f"the checkpoint does not fit the model or is damaged: {error}",
                where=self._keys.checkpoint(self._policy, mark.incarnation, mark.step),
                remedy="Use the model the run was started with, or delete the checkpoint: the one before is used then",
                kind="checkpoint",
            ) from error
        torch.set_rng_state(tensors["rng.torch"])
        learner.step = mark.step
        learner.bad_steps = mark.bad_steps

    def save(self, mark: Mark, learner: Learner) -> None:
        """Copy the state and begin to write it; waits for the one before if that is still being written."""
        self.settle(wait=True)
        files, folder = self._folder(*mark.age)
        # The call copies every tensor before it returns: training may go on in place at once.
        future = async_save(learner_tensors(learner), storage_writer=_Writer(files, folder), **self._together())
        assert isinstance(future, Future)
        self._writing = (mark, future)

    def settle(self, *, wait: bool, must: bool = False) -> None:
        """Finish what was begun: if it is written (or ``wait``), create its marker and delete old ones.

        A failed write is counted and tried again with the next checkpoint; with ``must``, or at the third failure in
        a row, ``StoreError`` is raised.
        """
        if self._writing is None or not (wait or self._writing[1].done()):
            return
        mark, future = self._writing
        error = future.exception()
        if error is not None:
            self._writing = None
            self.failures += 1
            if must or self.failures >= MAX_FAILURES:
                raise StoreError(
                    f"the checkpoint could not be written: {error}",
                    where=f"{self._store.url}/{self._keys.checkpoint(self._policy, mark.incarnation, mark.step)}",
                    remedy="Check space and rights there; the trainer goes on from the checkpoint before",
                    kind="checkpoint",
                ) from error
            return
        commit_point("trainer.before_checkpoint_marker")
        self._store.put(self._marker_key(mark), msgspec.json.encode(mark))
        self._writing = None  # only now: a call that the store refused is made again
        self.failures, self.written_step = 0, mark.step
        commit_point("trainer.after_checkpoint")
        self._prune()

    def wait(self) -> None:
        """Another rank: wait until its part of what was begun is written, or has failed (rank 0 says so)."""
        if self._writing is not None:
            self._writing[1].exception()
            self._writing = None

    def _together(self) -> dict[str, Any]:
        """How torch shall talk about the checkpoint: not at all, or among the ranks in a group of its own."""
        if isinstance(self._team, Ranks):
            return {"process_group": self._team.files}
        return {"no_dist": True}

    def _complete(self) -> list[Mark]:
        """All complete checkpoints, oldest first. One whose marker is damaged is none: the one before it serves."""
        marks = []
        for folder in folders(self._store, self._keys, self._policy):
            if folder.marker is not None:
                try:
                    marks.append(msgspec.json.decode(self._store.get(folder.marker), type=Mark))
                except (msgspec.DecodeError, NotFound) as error:
                    log.warning("the checkpoint's marker %s is passed over: %s", folder.marker, error)
        return sorted(marks, key=lambda mark: mark.age)

    def _prune(self) -> None:
        """Delete old checkpoints, and what a life that was killed left half-written or half-deleted."""
        for gone in surplus(folders(self._store, self._keys, self._policy), keep=self._keep):
            for key in gone.keys:
                self._store.delete(key)
            files, folder = self._folder(*gone.age)
            if isinstance(files, LocalFileSystem):  # elsewhere a folder goes with its last object
                with contextlib.suppress(OSError):
                    files.rmdir(folder)

    def _marker_key(self, mark: Mark) -> str:
        return self._keys.checkpoint(self._policy, mark.incarnation, mark.step) + MARKER

    def _folder(self, step: int, incarnation: int) -> tuple[AbstractFileSystem, str]:
        if self._files is None:
            self._files, self._root = open_filesystem(self._store.url)
        key = self._keys.checkpoint(self._policy, incarnation, step)
        return self._files, f"{self._root.rstrip('/')}/{key.rstrip('/')}"


def _streams(files: AbstractFileSystem) -> Any:
    streams: Any = FileSystem()
    streams.fs = files
    return streams


class _Writer(FileSystemWriter):
    """torch's writer over a filesystem that is open already (torch's own fsspec writer opens one from a URL)."""

    def __init__(self, files: AbstractFileSystem, folder: str) -> None:
        super().__init__(folder, single_file_per_rank=True, sync_files=False, overwrite=True)
        self.fs = _streams(files)
        self.path = folder


class _Reader(FileSystemReader):
    """torch's reader over a filesystem that is open already."""

    def __init__(self, files: AbstractFileSystem, folder: str) -> None:
        super().__init__(folder)
        self.fs = _streams(files)
        self.path = folder
