"""Log-probs of given tokens under a model: the same numbers that an engine reports when it samples them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def token_logprobs(model: Any, input_ids: Tensor, keep: int, temperatures: Tensor) -> Tensor:
    """Log-probs [B, K] of the last ``keep`` = K tokens of right-padded ``input_ids`` [B, T], K < T.

    Under softmax(logits / temperature) with one temperature a row, ``temperatures`` [B], in fp32. Padding needs no
    mask: it stands behind every token that counts, where causal attention does not look.
    """
    output = model(input_ids=input_ids, use_cache=False, logits_to_keep=keep + 1)
    logits = output.logits[:, -keep - 1 : -1]  # [B, K, V]: column t predicts token t + 1
    return logprobs_of(logits, input_ids[:, -keep:], temperatures)


def logprobs_of(logits: Tensor, tokens: Tensor, temperatures: Tensor) -> Tensor:
    """``log softmax(logits / temperature)`` at ``tokens``: logits [B, K, V], tokens [B, K], temperatures [B]."""
    scaled = logits.float() / temperatures.view(-1, 1, 1)
    chosen = scaled.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    return chosen - torch.logsumexp(scaled, dim=-1)
