"""Padded micro-batches out of sequences, in an order that depends on nothing but the batch.

Rows are padded on the right, so positions count from 0 and causality alone keeps padding out: the model needs no
attention mask. Only the columns that can hold response tokens get logits: ``keep`` is the number of columns from the
shortest prompt's end on.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from astraflow.trainer.reader import Sequence


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """One forward pass of B rows. Token columns [B, K] are the last K columns of ``input_ids`` [B, T]."""

    rows: list[int]  # numbers of the sequences in the batch
    input_ids: Tensor  # [B, T] int64
    old_logprobs: Tensor  # [B, K] float32, 0 where masked
    mask: Tensor  # [B, K] bool: sampled tokens that are trained
    advantages: Tensor  # [B] float32
    temperatures: Tensor  # [B] float32
    weights: Tensor  # [B] float32, of ``losses.row_weights``

    @property
    def keep(self) -> int:
        """K: columns that have a log-prob."""
        return self.mask.shape[1]


def pack_rows(lengths: Rows[int], budget_tokens: int) -> list[list[int]]:
    """Row numbers by micro-batch: longest first, as many as fit ``budget_tokens`` padded tokens, at least one."""
    order = sorted(range(len(lengths)), key=lambda row: (-lengths[row], row))
    packs: list[list[int]] = []
    for row in order:
        # The first row of a pack is its longest: a pack's padded size is its row count times that.
        if packs and (len(packs[-1]) + 1) * lengths[packs[-1][0]] <= budget_tokens:
            packs[-1].append(row)
        else:
            packs.append([row])
    return packs


def micro_batches(
    sequences: Rows[Sequence], advantages: Rows[float], weights: Tensor, *, pad_id: int, budget_tokens: int
) -> list[MicroBatch]:
    """Cut the batch's sequences [N] (with advantages [N] and weights [N]) into micro-batches of ``budget_tokens``."""
    lengths = [len(row.prompt_ids) + len(row.response_ids) for row in sequences]
    packs = pack_rows(lengths, budget_tokens)
    return [
        _pack(pack, sequences, advantages, weights, width=max(lengths[row] for row in pack), pad_id=pad_id)
        for pack in packs
    ]


def _pack(
    pack: list[int], sequences: Rows[Sequence], advantages: Rows[float], weights: Tensor, *, width: int, pad_id: int
) -> MicroBatch:
    first = min(len(sequences[row].prompt_ids) for row in pack)  # the first column that holds a response token
    shape = (len(pack), width - first)
    input_ids = np.full((len(pack), width), pad_id, dtype=np.int64)
    old_logprobs = np.zeros(shape, dtype=np.float32)
    mask = np.zeros(shape, dtype=np.bool_)
    for line, row in enumerate(pack):
        sequence = sequences[row]
        start = len(sequence.prompt_ids)
        end = start + len(sequence.response_ids)
        input_ids[line, :start] = sequence.prompt_ids
        input_ids[line, start:end] = sequence.response_ids
        mask[line, start - first : end - first] = sequence.loss_mask
        old_logprobs[line, start - first : end - first] = sequence.logprobs
    old_logprobs[~mask] = 0
    return MicroBatch(
        rows=pack,
        input_ids=torch.from_numpy(input_ids),
        old_logprobs=torch.from_numpy(old_logprobs),
        mask=torch.from_numpy(mask),
        advantages=torch.tensor([advantages[row] for row in pack], dtype=torch.float32),
        temperatures=torch.tensor([sequences[row].temperature for row in pack], dtype=torch.float32),
        weights=weights[pack],
    )
