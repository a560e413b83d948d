"""Micro-batches out of sequences, padded or packed, in an order that depends on nothing but the batch.

*Padded*: one row a sequence, padded on the right, so positions count from 0 and causality alone keeps padding out: the
model needs no attention mask. *Packed*: all sequences of a micro-batch in one row, one behind the other, with positions
that begin anew: no padding is computed, and the attention is kept within a sequence by the model's packing support.

Either way the tensors of tokens are [B, K], a row a sequence, so losses do not know the difference; ``wanted`` names
the input positions that need logits, the ones before each trained token, in the order of ``mask``.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from astraflow.raas.sampling import Support
from astraflow.trainer.reader import Sequence

Packing = Literal["padded", "packed"]
Advantages = Rows[float] | Rows[npt.NDArray[np.float64]]
"""One a sequence, or an array with one a response token for each sequence."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One forward pass of B sequences. Padded, the token columns [B, K] are the last K columns of ``input_ids``."""

    rows: list[int]  # numbers of the sequences in the batch
    input_ids: Tensor  # [B, T] int64; packed: [1, T]
    old_logprobs: Tensor  # [B, K] float32, 0 where masked
    mask: Tensor  # [B, K] bool: sampled tokens that are trained
    advantages: Tensor  # [B] or [B, K] float32
    temperatures: Tensor  # [B] float32
    weights: Tensor  # [B] float32, of ``surrogate.row_weights``
    wanted: Tensor  # like input_ids, bool: positions whose next token is trained
    tokens: Tensor  # [B, K] int64: the response tokens, 0 beside them
    position_ids: Tensor | None = None  # packed: [1, T], from 0 for each sequence
    supports: Support | None = None  # what could be drawn, a row a trained token; None: everything
    is_idle: bool = False  # a pass that only keeps ranks in step

    @property
    def keep(self) -> int:
        """K: columns that have a log-prob."""
        return self.mask.shape[1]

    @property
    def targets(self) -> Tensor:
        """The trained tokens [N], row by row."""
        return self.tokens[self.mask]

    @property
    def target_temperatures(self) -> Tensor:
        """The temperature of each trained token [N]."""
        return self.temperatures.unsqueeze(-1).expand_as(self.mask)[self.mask]

    def training(self, mask: Tensor, weights: Tensor) -> MicroBatch:
        """The same with fewer trained tokens: ``mask`` within this one's, and the weights [B] that go with it."""
        wanted = self.wanted.clone()
        wanted[self.wanted] = mask[self.mask]
        supports = None if self.supports is None else _some(self.supports, mask[self.mask])
        old_logprobs = torch.where(mask, self.old_logprobs, torch.zeros_like(self.old_logprobs))
        return replace(self, mask=mask, weights=weights, wanted=wanted, supports=supports, old_logprobs=old_logprobs)

    def idle(self) -> MicroBatch:
        """A pass of the same shape that trains nothing."""
        nothing = torch.zeros_like(self.mask)
        return replace(self.training(nothing, torch.zeros_like(self.weights)), rows=[], is_idle=True)

    def to(self, device: torch.device) -> MicroBatch:
        """The same on ``device``."""
        if device.type == "cpu":
            return self
        names = [name for name in self.__slots__ if isinstance(getattr(self, name), Tensor)]
        moved: dict[str, Any] = {name: getattr(self, name).to(device, non_blocking=True) for name in names}
        if self.supports is not None:
            moved["supports"] = Support(*(values.to(device) for values in _fields(self.supports)))
        return replace(self, **moved)


def pack_rows(lengths: Rows[int], budget_tokens: int) -> list[list[int]]:
    """Row numbers by padded micro-batch: longest first, as many as fit ``budget_tokens`` padded, at least one."""
    order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    packs: list[list[int]] = []
    for row in order:
        # The first row of a pack is its longest: a pack's padded size is its row count times that.
        if packs and (len(packs[-1]) + 1) * lengths[packs[-1][0]] <= budget_tokens:
            packs[-1].append(row)
        else:
            packs.append([row])
    return packs


def fill_packs(lengths: Rows[int], budget_tokens: int) -> list[list[int]]:
    """Row numbers by packed micro-batch: longest first, each into the first with room for its tokens."""
    packs: list[list[int]] = []
    used: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: (-lengths[row], row)):
        place = next((i for i, tokens in enumerate(used) if tokens + lengths[row] <= budget_tokens), len(packs))
        if place == len(packs):
            packs.append([])
            used.append(0)
        packs[place].append(row)
        used[place] += lengths[row]
    return packs


def micro_batches(
    sequences: Rows[Sequence],
    advantages: Advantages,
    weights: Tensor,
    *,
    pad_id: int,
    budget_tokens: int,
    packing: Packing = "padded",
    share: tuple[int, int] = (0, 1),
) -> list[MicroBatch]:
    """Cut the batch's sequences [N] (with advantages [N] and weights [N]) into micro-batches of ``budget_tokens``.

    ``share`` is (rank, ranks): every rank gets the same number, filled up with idle ones, of micro-batches of its own.
    """
    lengths = [len(row.prompt_ids) + len(row.response_ids) for row in sequences]
    packs = pack_rows(lengths, budget_tokens) if packing == "padded" else fill_packs(lengths, budget_tokens)
    rank, ranks = share
    micros = []
    for start in range(0, len(packs), ranks):
        pack = packs[start + rank] if start + rank < len(packs) else packs[start]
        make = _padded if packing == "padded" else _packed
        micro = make(pack, sequences, advantages, weights, pad_id)
        micros.append(micro if start + rank < len(packs) else micro.idle())
    return micros


def _padded(
    pack: list[int], sequences: Rows[Sequence], advantages: Advantages, weights: Tensor, pad_id: int
) -> MicroBatch:
    width = max(len(sequences[row].prompt_ids) + len(sequences[row].response_ids) for row in pack)
    first = min(len(sequences[row].prompt_ids) for row in pack)  # the first column that holds a response token
    columns = _Columns(len(pack), width - first)
    input_ids = np.full((len(pack), width), pad_id, dtype=np.int64)
    for line, row in enumerate(pack):
        sequence = sequences[row]
        start = len(sequence.prompt_ids)
        input_ids[line, :start] = sequence.prompt_ids
        input_ids[line, start : start + len(sequence.response_ids)] = sequence.response_ids
        columns.put(line, start - first, sequence, advantages[row])
    wanted = np.zeros((len(pack), width), dtype=np.bool_)
    wanted[:, first - 1 : width - 1] = columns.mask  # column t predicts token t + 1
    return columns.micro(pack, sequences, weights, input_ids=input_ids, wanted=wanted, positions=None)


def _packed(
    pack: list[int], sequences: Rows[Sequence], advantages: Advantages, weights: Tensor, pad_id: int
) -> MicroBatch:
    columns = _Columns(len(pack), max(len(sequences[row].response_ids) for row in pack))
    ids, positions, wanted = [], [], []
    for line, row in enumerate(pack):
        sequence = sequences[row]
        start, length = len(sequence.prompt_ids), len(sequence.response_ids)
        columns.put(line, 0, sequence, advantages[row])
        ids += [sequence.prompt_ids, sequence.response_ids]
        positions.append(np.arange(start + length))
        here = np.zeros(start + length, dtype=np.bool_)
        here[start - 1 : start + length - 1] = sequence.loss_mask
        wanted.append(here)
    line_of: list[Any] = [np.concatenate(values)[None] for values in (ids, positions, wanted)]
    return columns.micro(
        pack, sequences, weights, input_ids=line_of[0].astype(np.int64), wanted=line_of[2], positions=line_of[1]
    )


class _Columns:
    """The token columns [B, K] of a micro-batch in the making."""

    def __init__(self, lines: int, width: int) -> None:
        self.mask = np.zeros((lines, width), dtype=np.bool_)
        self._old = np.zeros((lines, width), dtype=np.float32)
        self._tokens = np.zeros((lines, width), dtype=np.int64)
        self._advantages = np.zeros((lines, width), dtype=np.float32)
        self._by_token = False

    def put(self, line: int, start: int, sequence: Sequence, advantage: float | npt.NDArray[np.float64]) -> None:
        """Write a sequence's response into ``line`` from column ``start`` on."""
        here = slice(start, start + len(sequence.response_ids))
        self.mask[line, here] = sequence.loss_mask
        self._old[line, here] = np.where(sequence.loss_mask, sequence.logprobs, 0)
        self._tokens[line, here] = sequence.response_ids
        self._advantages[line, here] = advantage
        self._by_token = self._by_token or isinstance(advantage, np.ndarray)
        if not self._by_token:
            self._advantages[line] = advantage

    def micro(
        self,
        pack: list[int],
        sequences: Rows[Sequence],
        weights: Tensor,
        *,
        input_ids: npt.NDArray[np.int64],
        wanted: npt.NDArray[np.bool_],
        positions: npt.NDArray[np.int64] | None,
    ) -> MicroBatch:
        advantages = torch.from_numpy(self._advantages)
        return MicroBatch(
            rows=pack,
            input_ids=torch.from_numpy(input_ids),
            old_logprobs=torch.from_numpy(self._old),
            mask=torch.from_numpy(self.mask),
            advantages=advantages if self._by_token else advantages[:, 0].clone(),
            temperatures=torch.tensor([sequences[row].temperature for row in pack], dtype=torch.float32),
            weights=weights[pack],
            wanted=torch.from_numpy(wanted),
            tokens=torch.from_numpy(self._tokens),
            position_ids=None if positions is None else torch.from_numpy(positions),
            supports=_supports([sequences[row] for row in pack], torch.from_numpy(self.mask)),
        )


def _supports(sequences: Rows[Sequence], mask: Tensor) -> Support | None:
    """What could be drawn for each trained token, None if everything could everywhere."""
    if all(s.top_p >= 1 and s.top_k == 0 and s.min_p == 0 for s in sequences):
        return None
    columns = (
        torch.tensor([s.top_k for s in sequences]),
        torch.tensor([s.top_p for s in sequences], dtype=torch.float32),
        torch.tensor([s.min_p for s in sequences], dtype=torch.float32),
    )
    return Support(*(column.unsqueeze(-1).expand_as(mask)[mask] for column in columns))


def _some(support: Support, chosen: Tensor) -> Support:
    return Support(*(values[chosen] for values in _fields(support)))


def _fields(support: Support) -> tuple[Tensor, Tensor, Tensor]:
    return support.top_k, support.top_p, support.min_p
