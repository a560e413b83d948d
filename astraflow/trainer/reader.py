"""From a recorded batch to its sequences: read the parts' objects, verify, or skip a part and say why.

Whatever is wrong with stored data (missing, damaged, not finite, of a version nobody published) costs that part only
and is told to the manager with a reason; what is wrong with the *store* is raised, since the same batch must give the
same sequences whenever it is trained again. Of a region's store that holds only while there is hope (``objects``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from astraflow.records import Batched
from astraflow.trainer.columns import Columns, Ints, Unusable
from astraflow.trainer.objects import Away, ObjectName, ObjectReader
from astraflow.trainer.versions import VersionSteps
from storage import open_store
from storage.store import ObjectStore


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
    """Batch ``n``: usable parts in the recorded order, and the groups that were skipped with the reasons.

    ``away`` are those among them that lie in a region's store that cannot be read now: with nothing wrong in them.
    """

    n: int
    parts: list[Part]
    skipped: dict[int, str]
    away: tuple[int, ...] = ()

    @property
    def is_lost(self) -> bool:
        """Whether regions' stores keep back what there is, and nothing else is left."""
        return bool(self.away) and not self.parts


class PartReader:
    """Loads recorded batches of one policy. One thread at a time."""

    def __init__(
        self,
        store: ObjectStore,
        versions: VersionSteps,
        *,
        vocabulary: int,
        context: int | None,
        opened: Callable[[str], ObjectStore] = open_store,
    ) -> None:
        self._versions = versions
        self._vocabulary = vocabulary
        self._context = context
        self._objects = ObjectReader(store, opened=opened)

    def load(self, batch: Batched, skip: Collection[int] = ()) -> LoadedBatch:
        """The usable parts of ``batch``. Groups in ``skip`` are left out, as they were when it was first trained.

        Raises ``StoreError`` if a store does not answer; then the same call may be made again.
        """
        names = list(map(ObjectName, batch.stores, batch.paths, batch.hashes))
        wanted = {batch.objects[entry]: None for entry, group in enumerate(batch.groups) if group not in skip}
        objects = self._objects.read([names[source] for source in wanted])
        parts: list[Part] = []
        skipped: dict[int, str] = {}
        away = []
        for entry, group in enumerate(batch.groups):
            if group in skip:
                skipped[group] = "recorded"
                continue
            found = objects[names[batch.objects[entry]]]
            if isinstance(found, Away):
                skipped[group] = found.why
                away.append(group)
                continue
            try:
                parts.append(self._part(batch, entry, found))
            except Unusable as error:
                skipped[group] = str(error)
        return LoadedBatch(batch.n, parts, skipped, tuple(away))

    def give_up(self) -> bool:
        """Skip what lies in regions' stores that do not answer, until they do; False if none is waited for."""
        return self._objects.give_up()

    @property
    def is_cut_off(self) -> bool:
        """Whether a region's store was given up and has not answered since."""
        return self._objects.has_given_up

    def _part(self, batch: Batched, entry: int, columns: Columns | str) -> Part:
        if isinstance(columns, str):
            raise Unusable(columns)
        start, count = batch.row_starts[entry], batch.row_counts[entry]
        if count < 1 or start < 0 or start + count > columns.rows:
            raise Unusable(f"rows {start}..{start + count} of an object with {columns.rows}")
        if (columns.group_id[start : start + count] != batch.groups[entry]).any():
            raise Unusable("rows of another group")
        return Part(batch.groups[entry], [self._sequence(columns, row, batch.n) for row in range(start, start + count)])

    def _sequence(self, columns: Columns, row: int, step: int) -> Sequence:
        prompt, response = columns.list_at("prompt_ids", row), columns.list_at("response_ids", row)
        logprobs, mask = columns.list_at("logprobs", row), columns.list_at("loss_mask", row)
        lags = self._plain_lags(columns, row, len(prompt), len(response), step)
        if lags is None:
            self._check(columns, row)
            lags = self._lags(columns, row, len(response), step)
        return Sequence(
            pool=columns.pool[row],
            prompt_ids=prompt,
            response_ids=response,
            logprobs=logprobs,
            loss_mask=mask,
            lags=lags,
            reward=float(columns.reward[row]),
            temperature=float(columns.temperature[row]),
            role=columns.role[row],
            slot=columns.slot[row],
            top_p=columns.samplers[row][0],
            top_k=columns.samplers[row][1],
            min_p=columns.samplers[row][2],
        )

    def _plain_lags(self, columns: Columns, row: int, prompt: int, response: int, step: int) -> Ints | None:
        """The lags of a row that is known to be right in everything; None if it has to be looked at."""
        low, high = columns.token_ids
        version = columns.version[row]
        if version < 0 or low < 0 or high >= self._vocabulary:
            return None
        if self._context is not None and prompt + response > self._context:
            return None
        lag = step - self._version_step(version)
        return None if lag < 0 else np.full(response, lag, dtype=np.int64)

    def _check(self, columns: Columns, row: int) -> None:
        """Raise ``Unusable`` if the row cannot be trained on, its versions aside."""
        prompt, response = columns.list_at("prompt_ids", row), columns.list_at("response_ids", row)
        logprobs, mask = columns.list_at("logprobs", row), columns.list_at("loss_mask", row)
        if len(prompt) == 0 or len(response) == 0:
            raise Unusable("an empty prompt or response")
        if not len(response) == len(logprobs) == len(mask):
            raise Unusable("token columns of unequal length")
        if self._context is not None and len(prompt) + len(response) > self._context:
            raise Unusable(f"{len(prompt) + len(response)} tokens are more than the model's {self._context}")
        if not np.isfinite(logprobs[mask]).all() or not np.isfinite(columns.reward[row]):
            raise Unusable("a log-prob or reward that is not finite")
        if not (columns.temperature[row] > 0 and np.isfinite(columns.temperature[row])):
            raise Unusable(f"temperature {columns.temperature[row]:g}")
        for ids in (prompt, response):
            if ids.min() < 0 or ids.max() >= self._vocabulary:
                raise Unusable(f"a token id outside the vocabulary of {self._vocabulary}")

    def _lags(self, columns: Columns, row: int, length: int, step: int) -> Ints:
        """Lag of each token, [T]: the step that trains on it minus the step of the version that sampled it."""
        starts, ids = columns.list_at("version_start", row), columns.list_at("version_id", row)
        if len(starts) != len(ids) or len(ids) == 0 or starts[0] != 0:
            raise Unusable("version runs that do not cover the response")
        steps = np.array([self._version_step(int(version)) for version in ids], dtype=np.int64)
        counts = np.diff(np.append(starts, length))
        if (counts < 0).any():
            raise Unusable("version runs that are not in order")
        lags: Ints = np.repeat(step - steps, counts)
        if len(lags) and lags.min() < 0:
            raise Unusable(f"lag {lags.min()}: sampled by a version of a later step")
        return lags

    def _version_step(self, version: int) -> int:
        step = self._versions.step_of(version)
        if step is None:
            raise Unusable(f"version {version} was never published")
        return step
