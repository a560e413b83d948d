"""From a recorded batch to its sequences: read the parts' objects, verify, or skip a part and say why.

Whatever is wrong with stored data (missing, damaged, not finite, of a version nobody published) costs that part only
and is told to the manager with a reason; what is wrong with the *store* (unreachable, denied) is raised, since the
same batch must give the same sequences whenever it is trained again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from astraflow.records import Batched
from astraflow.trainer.versions import VersionSteps
from astraflow.trajectory import SCHEMA
from storage import open_store
from storage.errors import ConfigError, DataError, NotFound, StoreError
from storage.store import ObjectStore
from storage.tables import read_table

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
OBJECTS_KEPT = 64
KEPT_BYTES = 256 * 2**20
"""Of the columns that are kept: the objects of large models' long answers are few, but large."""

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Sequence:
    """One trajectory as arrays; ``response_ids``, ``logprobs``, ``loss_mask`` and ``lags`` have one entry a token."""

    pool: str
    prompt_ids: npt.NDArray[np.int32]
    response_ids: npt.NDArray[np.int32]
    logprobs: npt.NDArray[np.float32]
    loss_mask: npt.NDArray[np.bool_]
    lags: Ints
    reward: float
    temperature: float
    role: str = ""
    slot: int = 0
    top_p: float = 1.0  # the sampler's: log-probs are those among what it could draw
    top_k: int = 0
    min_p: float = 0.0


@dataclass(frozen=True, slots=True)
class Part:
    """The sequences of one group of the trainer's policy."""

    group: int
    sequences: list[Sequence]


@dataclass(frozen=True, slots=True)
class LoadedBatch:
    """Batch ``n``: usable parts in the recorded order, and the groups that were skipped with the reasons."""

    n: int
    parts: list[Part]
    skipped: dict[int, str]


class _Unusable(Exception):
    """A part cannot be trained on; the text is the reason."""


@dataclass(frozen=True, slots=True)
class _Columns:
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

    @property
    def size_bytes(self) -> int:
        """Bytes of the tokens' columns."""
        return sum(values.nbytes + offsets.nbytes for offsets, values in self.lists.values())

    @classmethod
    def of(cls, whole: pa.Table) -> _Columns:
        try:
            table = whole.select(list(COLUMNS)).cast(_SCHEMA)
        except KeyError as error:
            raise _Unusable(f"a column is missing ({error})") from error
        except pa.ArrowException as error:
            raise _Unusable(f"columns of another type ({error})") from error
        lists: dict[str, tuple[Ints, npt.NDArray[Any]]] = {}
        for name in ("prompt_ids", "response_ids", "logprobs", "loss_mask", "version_start", "version_id"):
            column: Any = table.column(name).combine_chunks()
            if column.null_count or column.flatten().null_count:
                raise _Unusable(f"{name} has nulls")
            values = column.flatten().to_numpy(zero_copy_only=False)
            offsets = np.cumsum(np.append(0, column.value_lengths().to_numpy())).astype(np.int64)
            lists[name] = (offsets, values)
        return cls(
            rows=table.num_rows,
            group_id=table.column("group_id").to_numpy(),
            pool=[str(name) for name in table.column("pool").to_pylist()],
            reward=table.column("reward").to_numpy().astype(np.float64),
            temperature=table.column("temperature").to_numpy().astype(np.float64),
            role=[str(name or "") for name in table.column("role").to_pylist()],
            slot=[int(slot or 0) for slot in table.column("slot").to_pylist()],
            samplers=_samplers(whole),
            lists=lists,
        )

    def list_at(self, name: str, row: int) -> npt.NDArray[Any]:
        offsets, values = self.lists[name]
        return values[offsets[row] : offsets[row + 1]]


def _samplers(table: pa.Table) -> list[tuple[float, int, float]]:
    """What each row's tokens were drawn from; objects of before that was recorded drew from everything."""
    if "sampler" not in table.column_names:
        return [(1.0, 0, 0.0)] * table.num_rows
    found = table.column("sampler").to_pylist()
    return [(1.0, 0, 0.0) if s is None else (s["top_p"], s["top_k"], s["min_p"]) for s in found]


class PartReader:
    """Loads recorded batches of one policy. One thread at a time; the last objects read are kept."""

    def __init__(
        self,
        store: ObjectStore,
        versions: VersionSteps,
        *,
        vocabulary: int,
        context: int | None,
    ) -> None:
        self._root = store
        self._versions = versions
        self._vocabulary = vocabulary
        self._context = context
        self._stores: dict[str, ObjectStore] = {"": store}
        self._objects: OrderedDict[tuple[str, str, str], _Columns | str] = OrderedDict()

    def load(self, batch: Batched, skip: Collection[int] = ()) -> LoadedBatch:
        """The usable parts of ``batch``. Groups in ``skip`` are left out, as they were when it was first trained.

        Raises ``StoreError`` if the store does not answer; then the same call may be made again.
        """
        parts: list[Part] = []
        skipped: dict[int, str] = {}
        for entry, group in enumerate(batch.groups):
            if group in skip:
                skipped[group] = "recorded"
                continue
            try:
                parts.append(self._part(batch, entry))
            except _Unusable as error:
                skipped[group] = str(error)
        return LoadedBatch(batch.n, parts, skipped)

    def _part(self, batch: Batched, entry: int) -> Part:
        source = batch.objects[entry]
        columns = self._object(batch.stores[source], batch.paths[source], batch.hashes[source])
        start, count = batch.row_starts[entry], batch.row_counts[entry]
        if count < 1 or start < 0 or start + count > columns.rows:
            raise _Unusable(f"rows {start}..{start + count} of an object with {columns.rows}")
        if (columns.group_id[start : start + count] != batch.groups[entry]).any():
            raise _Unusable("rows of another group")
        return Part(batch.groups[entry], [self._sequence(columns, row, batch.n) for row in range(start, start + count)])

    def _sequence(self, columns: _Columns, row: int, step: int) -> Sequence:
        prompt, response = columns.list_at("prompt_ids", row), columns.list_at("response_ids", row)
        logprobs, mask = columns.list_at("logprobs", row), columns.list_at("loss_mask", row)
        if len(prompt) == 0 or len(response) == 0:
            raise _Unusable("an empty prompt or response")
        if not len(response) == len(logprobs) == len(mask):
            raise _Unusable("token columns of unequal length")
        if self._context is not None and len(prompt) + len(response) > self._context:
            raise _Unusable(f"{len(prompt) + len(response)} tokens are more than the model's {self._context}")
        if not np.isfinite(logprobs[mask]).all() or not np.isfinite(columns.reward[row]):
            raise _Unusable("a log-prob or reward that is not finite")
        if not (columns.temperature[row] > 0 and np.isfinite(columns.temperature[row])):
            raise _Unusable(f"temperature {columns.temperature[row]:g}")
        for ids in (prompt, response):
            if ids.min() < 0 or ids.max() >= self._vocabulary:
                raise _Unusable(f"a token id outside the vocabulary of {self._vocabulary}")
        return Sequence(
            pool=columns.pool[row],
            prompt_ids=prompt,
            response_ids=response,
            logprobs=logprobs,
            loss_mask=mask,
            lags=self._lags(columns, row, len(response), step),
            reward=float(columns.reward[row]),
            temperature=float(columns.temperature[row]),
            role=columns.role[row],
            slot=columns.slot[row],
            top_p=columns.samplers[row][0],
            top_k=columns.samplers[row][1],
            min_p=columns.samplers[row][2],
        )

    def _lags(self, columns: _Columns, row: int, length: int, step: int) -> Ints:
        """Lag of each token, [T]: the step that trains on it minus the step of the version that sampled it."""
        starts, ids = columns.list_at("version_start", row), columns.list_at("version_id", row)
        if len(starts) != len(ids) or len(ids) == 0 or starts[0] != 0:
            raise _Unusable("version runs that do not cover the response")
        steps = np.array([self._version_step(int(version)) for version in ids], dtype=np.int64)
        counts = np.diff(np.append(starts, length))
        if (counts < 0).any():
            raise _Unusable("version runs that are not in order")
        lags: Ints = np.repeat(step - steps, counts)
        if len(lags) and lags.min() < 0:
            raise _Unusable(f"lag {lags.min()}: sampled by a version of a later step")
        return lags

    def _version_step(self, version: int) -> int:
        step = self._versions.step_of(version)
        if step is None:
            raise _Unusable(f"version {version} was never published")
        return step

    def _object(self, store_url: str, path: str, digest: str) -> _Columns:
        """The object's columns, from memory if it was read lately. A damaged object is remembered as such."""
        key = (store_url, path, digest)
        found = self._objects.get(key)
        if found is None:
            found = self._read(store_url, path, digest)
            self._objects[key] = found
            while len(self._objects) > 1 and (len(self._objects) > OBJECTS_KEPT or self._kept_bytes() > KEPT_BYTES):
                self._objects.popitem(last=False)
        else:
            self._objects.move_to_end(key)
        if isinstance(found, str):
            raise _Unusable(found)
        return found

    def _kept_bytes(self) -> int:
        return sum(found.size_bytes for found in self._objects.values() if isinstance(found, _Columns))

    def _read(self, store_url: str, path: str, digest: str) -> _Columns | str:
        try:
            if store_url not in self._stores:
                self._stores[store_url] = open_store(store_url)
            return _Columns.of(read_table(self._stores[store_url], path, hash=digest))
        except NotFound:
            return f"missing: {path}"
        except DataError as error:
            return f"{error.kind or 'undecodable'}: {path}"
        except _Unusable as error:
            return f"undecodable: {error}"
        except (ConfigError, StoreError) as error:
            # The run's own store must answer; another one may be named wrongly by the pool that wrote there.
            if store_url == "" or error.kind == "unreachable":
                raise
            return f"{error.kind or 'unusable'} store {store_url!r}: {path}"
