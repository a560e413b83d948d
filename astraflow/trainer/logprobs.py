"""Log-probs of given tokens under a model: the same numbers that an engine reports when it samples them.

Only the positions that are asked for get logits, and the softmax over the vocabulary is made in slices that fit a
cache, once forward (log-prob and entropy together) and once backward. So beside the logits and their gradient nothing
of their size is ever held, which is what bounds the memory of a step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from astraflow.trainer.batch import MicroBatch

SLICE_ELEMENTS = 2**18
"""Logits that are worked on at once: 1 MiB of fp32."""


def token_logprobs(model: Any, input_ids: Tensor, keep: int, temperatures: Tensor) -> Tensor:
    """Log-probs [B, K] of the last ``keep`` = K tokens of right-padded ``input_ids`` [B, T], K < T.

    Under softmax(logits / temperature) with one temperature a row, ``temperatures`` [B], in fp32. Padding needs no
    mask: it stands behind every token that counts, where causal attention does not look.
    """
    output = model(input_ids=input_ids, use_cache=False, logits_to_keep=keep + 1)
    logits = output.logits[:, -keep - 1 : -1]  # [B, K, V]: column t predicts token t + 1
    return logprobs_of(logits, input_ids[:, -keep:], temperatures)


def micro_logprobs(model: Any, micro: MicroBatch) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies [B, K] of a micro-batch's trained tokens, 0 where masked; in fp32.

    The entropy is that of the distribution the token was drawn from, without gradient.
    """
    wanted = micro.wanted  # [B, T] or, packed, [1, T]: positions whose next token is trained
    positions = {} if micro.position_ids is None else {"position_ids": micro.position_ids}
    output = model(input_ids=micro.input_ids, use_cache=False, logits_to_keep=wanted, **positions)
    logits = output.logits
    if logits.dim() == 3:  # a model that does not select positions gives all of them
        logits = logits[wanted]
    logits = logits if micro.supports is None else _cut(logits, micro)
    logprobs, entropy = _apply(logits, micro.targets, micro.target_temperatures)
    place = micro.mask.flatten().nonzero().squeeze(-1)  # of each target among [B, K]
    flat = logprobs.new_zeros(micro.mask.numel())
    spread = (flat.index_put((place,), values).view_as(micro.mask) for values in (logprobs, entropy.detach()))
    first, second = spread
    return first, second


def logprobs_of(logits: Tensor, tokens: Tensor, temperatures: Tensor) -> Tensor:
    """``log softmax(logits / temperature)`` at ``tokens``: logits [B, K, V], tokens [B, K], temperatures [B]."""
    each = temperatures.view(-1, 1).expand_as(tokens).reshape(-1)
    logprobs, _ = _apply(logits.reshape(-1, logits.shape[-1]), tokens.reshape(-1), each)
    found: Tensor = logprobs.view_as(tokens)
    return found


def _cut(logits: Tensor, micro: MicroBatch) -> Tensor:
    """Logits [N, V] with -inf for tokens that could not be drawn; the token that was drawn always could."""
    assert micro.supports is not None
    with torch.no_grad():
        scaled = torch.log_softmax(logits.float() / micro.target_temperatures.unsqueeze(-1), -1)
        kept = torch.isfinite(micro.supports.cut(scaled))
        kept.scatter_(-1, micro.targets.unsqueeze(-1), True)
    return logits.masked_fill(~kept, -torch.inf)


def _apply(logits: Tensor, tokens: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor]:
    function: Any = _TokenLogprobs
    logprobs, entropy = function.apply(logits, tokens, temperatures)
    return logprobs, entropy


class _TokenLogprobs(torch.autograd.Function):
    """(logits [N, V], tokens [N], temperatures [N]) -> log-probs [N] and entropies [N] (no gradient), fp32."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, tokens: Tensor, temperatures: Tensor) -> tuple[Tensor, Tensor]:
        count, vocabulary = logits.shape
        logprobs = torch.empty(count, dtype=torch.float32, device=logits.device)
        entropy, normaliser = torch.empty_like(logprobs), torch.empty_like(logprobs)
        rows = max(1, SLICE_ELEMENTS // vocabulary)
        for start in range(0, count, rows):
            here = slice(start, start + rows)
            x = logits[here].float() / temperatures[here].unsqueeze(-1)
            top = x.amax(-1, keepdim=True)
            weights = (x - top).exp_()
            total = weights.sum(-1)
            normaliser[here] = top.squeeze(-1) + total.log()
            logprobs[here] = x.gather(-1, tokens[here].unsqueeze(-1)).squeeze(-1) - normaliser[here]
            mean = weights.mul_(x.clamp_(min=torch.finfo(torch.float32).min)).sum(-1) / total  # 0 · -inf is NaN
            entropy[here] = normaliser[here] - mean
        ctx.save_for_backward(logits, tokens, temperatures, normaliser)
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """``g/T · (one-hot - softmax)``."""
        logits, tokens, temperatures, normaliser = ctx.saved_tensors
        scale = gradients[0].float() / temperatures
        grad = torch.empty_like(logits)
        rows = max(1, SLICE_ELEMENTS // logits.shape[1])
        for start in range(0, logits.shape[0], rows):
            here = slice(start, start + rows)
            x = logits[here].float() / temperatures[here].unsqueeze(-1)
            chances = x.sub_(normaliser[here].unsqueeze(-1)).exp_().mul_(-scale[here].unsqueeze(-1))
            grad[here] = chances.scatter_add_(-1, tokens[here].unsqueeze(-1), scale[here].unsqueeze(-1))
        return grad, None, None
