"""A trajectory: one token sequence of one policy, as a record in memory and as a row of Parquet.

Token ids are the truth: ``response_ids`` are what was sampled (or injected, with ``loss_mask`` false),
never text tokenised again. Each response token has the log-prob under the weights that sampled it and,
as runs, the version of those weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

_TURN = pa.struct(
    [
        ("role", pa.string()),
        ("start", pa.int32()),
        ("end", pa.int32()),
        ("finish_reason", pa.string()),
        ("tool", pa.string()),
        ("error", pa.string()),
    ]
)

_SAMPLER = pa.struct(
    [
        ("top_p", pa.float32()),
        ("top_k", pa.int32()),
        ("min_p", pa.float32()),
        ("stop", pa.list_(pa.string())),
        ("seeds", pa.list_(pa.uint64())),  # one a sampled turn
    ]
)

_COLUMNS: list[tuple[str, pa.DataType]] = [
    ("trajectory_id", pa.string()),
    ("group_id", pa.int64()),
    ("problem_id", pa.string()),
    ("episode", pa.int32()),
    ("attempt", pa.int32()),
    ("run", pa.string()),
    ("pool", pa.string()),
    ("region", pa.string()),
    ("engine", pa.string()),
    ("role", pa.string()),
    ("slot", pa.int32()),
    ("turns", pa.list_(_TURN)),
    ("prompt_ids", pa.list_(pa.int32())),
    ("response_ids", pa.list_(pa.int32())),
    ("logprobs", pa.list_(pa.float32())),
    ("loss_mask", pa.list_(pa.bool_())),
    ("version_start", pa.list_(pa.int32())),
    ("version_id", pa.list_(pa.int32())),
    ("version_min", pa.int32()),
    ("version_max", pa.int32()),
    ("reward", pa.float32()),
    ("reward_parts", pa.map_(pa.string(), pa.float32())),
    ("temperature", pa.float32()),
    ("sampler", _SAMPLER),  # null in objects of before it was recorded
    ("queue_s", pa.float32()),
    ("prefill_s", pa.float32()),
    ("decode_s", pa.float32()),
    ("environment_s", pa.float32()),
    ("created_at", pa.timestamp("us", tz="UTC")),
    ("error_kind", pa.string()),
    ("error_message", pa.string()),
    ("meta", pa.map_(pa.string(), pa.string())),
]

SCHEMA = pa.schema(_COLUMNS)
"""Columns inside a trajectory object. ``policy`` and ``version`` are the hive partition of its path."""


@dataclass(frozen=True, slots=True)
class Turn:
    """A stretch ``[start, end)`` of the response: who wrote it and how it ended."""

    role: str  # assistant, tool, user
    start: int
    end: int
    finish_reason: str = ""  # stop, length, aborted
    tool: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True)
class Sampler:
    """From which distribution an answer is drawn, and which texts end it. ``temperature`` 0 is greedy."""

    temperature: float = 1.0
    top_p: float = 1.0  # 1: all tokens, as 0 for the next two
    top_k: int = 0
    min_p: float = 0.0
    stop: tuple[str, ...] = ()


@dataclass(slots=True)
class Trajectory:
    """One sequence of one policy. All response lists have one entry a response token, [T].

    ``versions`` are those of sampled tokens; an injected token (``loss_mask`` false) repeats its
    neighbour's, so that ``version_min`` speaks of sampled tokens only.
    """

    policy: str
    role: str
    slot: int
    prompt_ids: list[int]
    response_ids: list[int]
    logprobs: list[float]
    loss_mask: list[bool]
    versions: list[int]
    reward: float = 0.0
    reward_parts: dict[str, float] = field(default_factory=dict)
    turns: list[Turn] = field(default_factory=list)
    temperature: float = 1.0
    sampler: Sampler = Sampler()
    seeds: list[int] = field(default_factory=list)
    queue_s: float = 0.0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    environment_s: float = 0.0
    meta: dict[str, str] = field(default_factory=dict)

    @property
    def version_min(self) -> int:
        return self.versions[0] if is_constant(self.versions) else min(self.versions)

    @property
    def version_max(self) -> int:
        return self.versions[0] if is_constant(self.versions) else max(self.versions)


def is_constant(values: Sequence[int]) -> bool:
    """Whether there is one value only: most answers are sampled by one version, and counting is quick."""
    return len(values) > 0 and values.count(values[0]) == len(values)


def id_lists(lists: Iterable[list[int]]) -> pa.Array[Any]:
    """Lists of token ids as an Arrow column. Equal neighbours, as the prompts of a group are, are converted once."""
    arrays: list[npt.NDArray[np.int32]] = []
    lengths: list[int] = []
    last: list[int] | None = None
    for ids in lists:
        arrays.append(arrays[-1] if ids == last else np.array(ids, dtype=np.int32))
        lengths.append(len(ids))
        last = ids
    return _list_column(np.concatenate(arrays) if arrays else np.zeros(0, np.int32), lengths)


def number_lists(lists: Sequence[Sequence[float]], kind: type[np.generic]) -> pa.Array[Any]:
    """Lists of numbers as an Arrow column: one conversion for all of them."""
    lengths = [len(values) for values in lists]
    return _list_column(np.fromiter(chain.from_iterable(lists), kind, sum(lengths)), lengths)


def flag_lists(lists: Sequence[Sequence[bool]]) -> pa.Array[Any]:
    """Lists of booleans as an Arrow column."""
    flags = np.frombuffer(b"".join(map(bytes, lists)), np.bool_)
    return _list_column(flags, [len(values) for values in lists])


def _list_column(values: npt.NDArray[Any], lengths: Sequence[int]) -> pa.Array[Any]:
    offsets: Any = pa.array(np.cumsum([0, *lengths], dtype=np.int32))
    flat: Any = pa.array(values)
    column: pa.Array[Any] = pa.ListArray.from_arrays(offsets, flat)
    return column


def to_runs(values: Sequence[int]) -> tuple[list[int], list[int]]:
    """Run-length form: starts and values of the runs, ``[1,1,4] -> ([0,2],[1,4])``."""
    if is_constant(values):
        return [0], [values[0]]
    starts: list[int] = []
    ids: list[int] = []
    for position, value in enumerate(values):
        if not ids or ids[-1] != value:
            starts.append(position)
            ids.append(value)
    return starts, ids


def from_runs(starts: Sequence[int], ids: Sequence[int], length: int) -> list[int]:
    """Inverse of ``to_runs`` for a sequence of ``length``."""
    values: list[int] = []
    ends = [*starts[1:], length]
    for start, end, value in zip(starts, ends, ids, strict=True):
        values.extend([value] * (end - start))
    return values
