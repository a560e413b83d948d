"""The folders of a policy's checkpoints: which are whole, which are not needed any more, and their removal.

A checkpoint is a folder of objects and, last, its marker; without it the checkpoint does not exist. This is all that
can be known without torch, so whoever tidies up needs none.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field

from storage.keys import RunKeys
from storage.store import ObjectInfo, ObjectStore

MARKER = "complete.json"
_FOLDER = re.compile(r"(?P<incarnation>\d+)-(?P<step>\d+)/")


@dataclass(slots=True)
class Folder:
    """One checkpoint, whole or not, with what lies in it. ``age`` is (step, incarnation): what orders them."""

    age: tuple[int, int]
    objects: list[ObjectInfo] = field(default_factory=list)

    @property
    def marker(self) -> str | None:
        """The key of its marker, if it is whole."""
        return next((info.key for info in self.objects if info.key.endswith(f"/{MARKER}")), None)

    @property
    def keys(self) -> list[str]:
        """In the order of their deletion: the marker first, since a half-deleted checkpoint must not look whole."""
        return sorted((info.key for info in self.objects), key=lambda key: not key.endswith(f"/{MARKER}"))

    @property
    def size_bytes(self) -> int:
        return sum(info.size_bytes for info in self.objects)


def folders(store: ObjectStore, keys: RunKeys, policy: str) -> list[Folder]:
    """All checkpoints of a policy, the oldest first."""
    found: dict[tuple[int, int], Folder] = {}
    root = keys.checkpoints(policy)
    for info in store.list(root):
        name = _FOLDER.match(info.key.removeprefix(root))
        if name is not None:
            age = (int(name["step"]), int(name["incarnation"]))
            found.setdefault(age, Folder(age)).objects.append(info)
    return [found[age] for age in sorted(found)]


def surplus(found: Collection[Folder], *, keep: int, is_over: bool = False) -> list[Folder]:
    """What can go if the newest ``keep`` whole ones stay: older ones, and halves that killed lives have left.

    While a run goes on, a half that is newer than what stays may be being written: it stays, unless ``is_over``.
    """
    whole = [folder.age for folder in found if folder.marker is not None]
    kept = set(whole[-keep:])
    newest = max(kept, default=(-1, -1))
    gone = []
    for folder in found:
        may_be_written = folder.marker is None and folder.age > newest and folder.age[1] >= newest[1]
        if folder.age not in kept and (is_over or not may_be_written):
            gone.append(folder)
    return gone
