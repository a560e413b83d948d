"""What a reader keeps of a committed object: the columns of its record, packed.

A fold keeps them for every trajectory of a run, for as long as somebody looks. As a record is decoded each number is
a Python object of its own; packed into arrays, of the narrowest kind that holds them, a trajectory takes some twenty
bytes.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Sequence
from dataclasses import dataclass

from astraflow.records import PartsObject

_KINDS = ((7, "b"), (15, "h"), (31, "i"), (63, "q"))
_ROLES_KEPT = 256


@dataclass(frozen=True, slots=True)
class KeptObject:
    """As ``PartsObject``: an entry a part in ``groups``, ``row_starts`` and ``row_counts``, one a row in the rest."""

    policy: str
    path: str
    size_bytes: int
    hash: str
    store: str
    groups: Sequence[int]
    row_starts: Sequence[int]
    row_counts: Sequence[int]
    episodes: Sequence[int]
    roles: Sequence[str]
    slots: Sequence[int]
    version_min: Sequence[int]
    version_max: Sequence[int]
    rewards: Sequence[float]
    prompt_tokens: Sequence[int]
    response_tokens: Sequence[int]

    @classmethod
    def of(cls, said: PartsObject) -> KeptObject:
        """The packed form of what a pool said."""
        oldest = packed(said.version_min)
        return cls(
            policy=said.policy,
            path=said.path,
            size_bytes=said.size_bytes,
            hash=said.hash,
            store=said.store,
            groups=packed(said.groups),
            row_starts=packed(said.row_starts),
            row_counts=packed(said.row_counts),
            episodes=packed(said.episodes),
            roles=_shared(tuple(said.roles)),
            slots=packed(said.slots),
            version_min=oldest,
            version_max=oldest if said.version_max == said.version_min else packed(said.version_max),
            rewards=array("d", said.rewards),
            prompt_tokens=packed(said.prompt_tokens),
            response_tokens=packed(said.response_tokens),
        )


def packed(numbers: Sequence[int]) -> Sequence[int]:
    """The same numbers in less memory."""
    low, high = min(numbers, default=0), max(numbers, default=0)
    bits = max(low.bit_length(), high.bit_length())
    for most, kind in _KINDS:
        if bits <= most:
            return array(kind, numbers)
    return tuple(numbers)


@functools.lru_cache(maxsize=_ROLES_KEPT)
def _shared(roles: tuple[str, ...]) -> tuple[str, ...]:
    """One tuple for all objects whose roles are the same: most of a run's are."""
    return roles
