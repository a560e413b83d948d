"""Drawing a token from logits, row by row, with random numbers that belong to the row alone.

The uniform number of a draw is a hash of (seed, position), not the state of a generator, so a request draws
the same numbers whatever else is in its batch and whenever it joined.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def uniforms(seeds: NDArray[np.uint64], positions: NDArray[np.uint64]) -> NDArray[np.float64]:
    """One number in [0, 1) per (seed, position), [B]: two rounds of splitmix64's finaliser."""
    mixed = _finalise(_finalise(seeds + _GOLDEN) + (positions + np.uint64(1)) * _GOLDEN)
    drawn: NDArray[np.float64] = (mixed >> np.uint64(14)).astype(np.float64) * 2.0**-50
    return drawn


def _finalise(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def sample(
    logits: torch.Tensor, temperatures: torch.Tensor, uniform: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token a row: logits [B, V], temperatures [B], uniform [B] float64 -> ids [B], log-probs [B] fp32.

    Inverse transform: the first token whose cumulated probability exceeds the uniform number. A row of
    temperature 0 takes the most likely token, with its log-prob at temperature 1.
    """
    greedy = temperatures == 0
    scale = torch.where(greedy, torch.ones_like(temperatures), temperatures)
    logprobs = torch.log_softmax(logits.float() / scale[:, None], dim=-1)  # [B, V]
    cumulated = logprobs.double().exp_().cumsum(-1)  # fp64: the tail of a large vocabulary must not be lost
    wanted = uniform * cumulated[:, -1]
    ids = torch.searchsorted(cumulated, wanted[:, None], right=True)[:, 0]
    if bool(greedy.any()):
        ids = torch.where(greedy, logprobs.argmax(-1), ids)
    return ids, logprobs.gather(1, ids[:, None])[:, 0]
