"""The rows of a trajectory object as flat arrays, and which of them have nothing wrong with them.

All rows of an object are checked together: a check a row costs more than reading it. What is wrong with a row that is
not plain is for the reader to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from astraflow.trajectory import SCHEMA

COLUMNS = (
    "group_id",
    "pool",
    "prompt_ids",
    "response_ids",
    "logprobs",
    "loss_mask",
    "version_start",
    "version_id",
    "reward",
    "temperature",
    "role",
    "slot",
)
_SCHEMA = pa.schema([SCHEMA.field(name) for name in COLUMNS])

Ints = npt.NDArray[np.int64]


class Unusable(Exception):
    """A part cannot be trained on; the text is the reason."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns of an object as flat arrays; list columns are (offsets [N+1], values)."""

    rows: int
    group_id: Ints
    pool: list[str]
    reward: npt.NDArray[np.float64]
    temperature: npt.NDArray[np.float64]
    role: list[str]
    slot: list[int]
    samplers: list[tuple[float, int, float]]  # top_p, top_k, min_p
    lists: dict[str, tuple[Ints, npt.NDArray[Any]]]
    bounds: dict[str, list[int]]  # the offsets again: plain integers cut arrays faster
    version: list[int]  # of rows that one version sampled and that have nothing wrong with them, else -1
    token_ids: tuple[int, int]  # the smallest and the largest

    @property
    def size_bytes(self) -> int:
        """Bytes of the tokens' columns."""
        return sum(values.nbytes + offsets.nbytes for offsets, values in self.lists.values())

    @classmethod
    def of(cls, whole: pa.Table) -> Columns:
        try:
            table = whole.select(list(COLUMNS)).cast(_SCHEMA)
        except pa.ArrowException as error:
            raise Unusable(f"columns of another type ({error})") from error
        lists: dict[str, tuple[Ints, npt.NDArray[Any]]] = {}
        for name in ("prompt_ids", "response_ids", "logprobs", "loss_mask", "version_start", "version_id"):
            column: Any = table.column(name).combine_chunks()
            if column.null_count or column.flatten().null_count:
                raise Unusable(f"{name} has nulls")
            values = column.flatten().to_numpy(zero_copy_only=False)
            offsets = np.cumsum(np.append(0, column.value_lengths().to_numpy())).astype(np.int64)
            lists[name] = (offsets, values)
        reward = table.column("reward").to_numpy().astype(np.float64)
        temperature = table.column("temperature").to_numpy().astype(np.float64)
        return cls(
            rows=table.num_rows,
            group_id=table.column("group_id").to_numpy(),
            pool=[str(name) for name in table.column("pool").to_pylist()],
            reward=reward,
            temperature=temperature,
            role=[str(name or "") for name in table.column("role").to_pylist()],
            slot=[int(slot or 0) for slot in table.column("slot").to_pylist()],
            samplers=_samplers(whole),
            lists=lists,
            bounds={name: offsets.tolist() for name, (offsets, _) in lists.items()},
            version=_plain_versions(lists, np.isfinite(reward) & np.isfinite(temperature) & (temperature > 0)),
            token_ids=_range_of(lists["prompt_ids"][1], lists["response_ids"][1]),
        )

    def list_at(self, name: str, row: int) -> npt.NDArray[Any]:
        bounds = self.bounds[name]
        return self.lists[name][1][bounds[row] : bounds[row + 1]]


def _range_of(*arrays: npt.NDArray[np.int32]) -> tuple[int, int]:
    filled = [array for array in arrays if len(array)]
    return min((int(a.min()) for a in filled), default=0), max((int(a.max()) for a in filled), default=0)


def _plain_versions(lists: dict[str, tuple[Ints, npt.NDArray[Any]]], plain: npt.NDArray[np.bool_]) -> list[int]:
    """The version of each row that is ``plain``: one version sampled it, and its lists fit each other and are finite.

    All rows of an object are looked at together; only the others (-1) are looked at one by one, to say what is wrong.
    """
    lengths = {name: np.diff(offsets) for name, (offsets, _) in lists.items()}
    response = lengths["response_ids"]
    plain = plain & (lengths["prompt_ids"] > 0) & (response > 0)
    plain &= (lengths["version_start"] == 1) & (lengths["version_id"] == 1)
    for name in ("logprobs", "loss_mask"):
        if not np.array_equal(lengths[name], response):
            return [-1] * len(plain)
    offsets, logprobs = lists["logprobs"]
    bad = np.flatnonzero(~np.isfinite(logprobs) & lists["loss_mask"][1])
    plain[np.searchsorted(offsets, bad, side="right") - 1] = False
    rows = np.flatnonzero(plain)
    versions = np.full(len(plain), -1, dtype=np.int64)
    versions[rows] = lists["version_id"][1][lists["version_id"][0][rows]]
    versions[rows[lists["version_start"][1][lists["version_start"][0][rows]] != 0]] = -1
    found: list[int] = versions.tolist()
    return found


def _samplers(table: pa.Table) -> list[tuple[float, int, float]]:
    """What each row's tokens were drawn from; objects of before that was recorded drew from everything."""
    if "sampler" not in table.column_names:
        return [(1.0, 0, 0.0)] * table.num_rows
    column: Any = table.column("sampler").combine_chunks()
    there = column.is_valid().to_pylist()
    top_p, top_k, min_p = (column.field(name).to_pylist() for name in ("top_p", "top_k", "min_p"))
    rows = zip(there, top_p, top_k, min_p, strict=True)
    return [(p, k, m) if is_there else (1.0, 0, 0.0) for is_there, p, k, m in rows]
