"""A copy of the weights that outlives its process: a file of words, best on tmpfs, and a note of what it should be.

A pool that is started again finds it, hashes every block, and goes on from there by deltas; without it, it would pull a
snapshot. The note is taken away before the first word of an update is written and put back after the last is checked,
so an update that was broken off is seen at the next start; and whatever the note says, the hash decides.

Invariant: one process at a time has the folder (a lock); a second one keeps its copy in memory only.
"""

from __future__ import annotations

import fcntl
import logging
import os
import uuid
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np

from astraflow.weights.kernels import Words
from astraflow.weights.layout import DTYPES, Layout
from astraflow.weights.manifest import Manifest
from astraflow.weights.replica import Replica
from storage.errors import ConfigError

log = logging.getLogger("astraflow.weights")


class Note(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the words should be: a version's manifest, and the table that says where its tensors lie."""

    manifest: Manifest
    layout: Layout


class KeptCopy:
    """The folder of one policy's copy. Raises ``ConfigError`` where files can not be written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._note = folder / "held.json"
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = (folder / "lock").open("wb")
        except OSError as error:
            raise ConfigError(
                f"no copy of the weights can be kept: {error}",
                where=str(folder),
                remedy="Set the pool's copy_folder to one that it may write to, or to none",
                kind="folder",
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.is_ours = True
        except OSError:
            self.is_ours = False

    def close(self) -> None:
        """Let another process have the folder."""
        self._lock.close()

    def find(self, policy: str) -> tuple[Manifest, Replica] | None:
        """What an earlier process left whole: the words have been hashed. None if it left nothing, or a torn copy."""
        if not self.is_ours:
            return None
        try:
            note = msgspec.json.decode(self._note.read_bytes(), type=Note)
            replica = Replica(note.layout, self._open(note.layout, "r+"))
        except (OSError, ValueError, msgspec.DecodeError):
            return None
        if note.manifest.policy != policy or note.manifest.layout != note.layout.digest:
            return None
        for block in note.layout.blocks:
            replica.rehash(block)
        return (note.manifest, replica) if replica.root() == note.manifest.digest else None

    def new(self, layout: Layout) -> Replica:
        """A copy to be filled, of a new layout; in memory if the folder is another's or full."""
        self.tear()
        try:
            return Replica(layout, self._open(layout, "w+") if self.is_ours else None)
        except OSError as error:
            log.warning("the weights are kept in memory only: %s", error)
            self.is_ours = False
            return Replica(layout)

    def tear(self) -> None:
        """The words are about to change: until ``keep`` they are no version."""
        if self.is_ours:
            self._note.unlink(missing_ok=True)

    def keep(self, manifest: Manifest, layout: Layout) -> None:
        """The words are this version, checked."""
        if not self.is_ours:
            return
        unfinished = self._folder / f".{uuid.uuid4().hex}"
        unfinished.write_bytes(msgspec.json.encode(Note(manifest, layout)))
        unfinished.replace(self._note)

    def _open(self, layout: Layout, mode: str) -> dict[str, Words]:
        """The words of each dtype as mapped files. A file of another size is no copy (``ValueError``)."""
        runs: dict[str, Words] = {}
        for name, size in layout.sizes.items():
            path, word = self._folder / f"{name}.words", DTYPES[name].word
            if mode == "w+":
                with suppress(FileNotFoundError):
                    path.unlink()  # a reader of the old copy keeps what it has mapped
                with path.open("wb") as file:
                    _take_room(file.fileno(), size * word.itemsize)
            elif path.stat().st_size != size * word.itemsize:
                raise ValueError(f"{path} has not {size} words")
            runs[name] = np.memmap(path, word, "r+", shape=(size,)).view(np.ndarray)
        return runs


def _take_room(file: int, size_bytes: int) -> None:
    """Make a file so large; where the system can, its room is taken now, so that a full disk is no signal later."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size_bytes)
    else:  # macOS
        os.ftruncate(file, size_bytes)
