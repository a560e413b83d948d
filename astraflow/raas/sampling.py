"""Drawing a token from logits, row by row, with random numbers that belong to the row alone.

The uniform number of a draw is a hash of (seed, position), not the state of a generator, so a request draws
the same numbers whatever else is in its batch and whenever it joined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

if TYPE_CHECKING:
    from astraflow.raas.engine import GenerationRequest

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


@dataclass(frozen=True, slots=True)
class Support:
    """Which tokens a row may draw: those that are at least ``min_p`` times as likely as the likeliest, of these the
    ``top_k`` likeliest, of these the fewest that hold ``top_p`` of their mass. The likeliest always stays. Each [B].

    The order is vLLM's: where several cuts are set, engines of one run and the trainer must leave the same tokens.
    """

    top_k: torch.Tensor  # 0: all
    top_p: torch.Tensor
    min_p: torch.Tensor

    @classmethod
    def of(cls, requests: Sequence[GenerationRequest], device: torch.device) -> Support | None:
        """The support of each request, None if all of them draw from the whole vocabulary."""
        if all(r.top_k == 0 and r.top_p >= 1 and r.min_p == 0 for r in requests):
            return None
        return cls(
            torch.tensor([r.top_k for r in requests], device=device),
            torch.tensor([r.top_p for r in requests], dtype=torch.float32, device=device),
            torch.tensor([r.min_p for r in requests], dtype=torch.float32, device=device),
        )

    def cut(self, logprobs: torch.Tensor) -> torch.Tensor:
        """Log-probs [B, V] of what is left, renormalised; -inf elsewhere. Equal tokens fall by their id."""
        vocabulary = logprobs.shape[1]
        ordered, ids = logprobs.sort(dim=-1, descending=True, stable=True)
        rank = torch.arange(vocabulary, device=logprobs.device)
        top_k = torch.where(self.top_k == 0, vocabulary, self.top_k)
        out = (rank >= top_k[:, None]) | (ordered < ordered[:, :1] + self.min_p.log()[:, None])
        ordered = torch.log_softmax(ordered.masked_fill(out, -torch.inf), -1)
        before = ordered.double().exp().cumsum(-1).roll(1, dims=-1)  # mass of what is likelier
        out |= (before >= self.top_p[:, None]) & (self.top_p < 1)[:, None]
        out[:, 0] = False
        kept = torch.log_softmax(ordered.masked_fill(out, -torch.inf), -1)
        return torch.empty_like(kept).scatter_(-1, ids, kept)


def sample(
    logits: torch.Tensor, temperatures: torch.Tensor, uniform: torch.Tensor, support: Support | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one token a row: logits [B, V], temperatures [B], uniform [B] float64 -> ids [B], log-probs [B] fp32.

    Inverse transform: the first token whose cumulated probability exceeds the uniform number. A row of
    temperature 0 takes the most likely token, with its log-prob at temperature 1. Log-probs are those under the
    distribution that was drawn from, after ``support`` has cut it.
    """
    greedy = temperatures == 0
    scale = torch.where(greedy, torch.ones_like(temperatures), temperatures)
    logprobs = torch.log_softmax(logits.float() / scale[:, None], dim=-1)  # [B, V]
    if support is not None:
        logprobs = support.cut(logprobs)
    cumulated = logprobs.double().exp_().cumsum(-1)  # fp64: the tail of a large vocabulary must not be lost
    wanted = uniform * cumulated[:, -1]
    ids = torch.searchsorted(cumulated, wanted[:, None], right=True)[:, 0]
    if bool(greedy.any()):
        ids = torch.where(greedy, logprobs.argmax(-1), ids)
    return ids, logprobs.gather(1, ids[:, None])[:, 0]
