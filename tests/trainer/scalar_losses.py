"""The losses once more, a token at a time in plain Python, written from the papers' formulas.

``held`` is the log-prob at which a quantity without gradient was computed: equal to ``new`` for the value, fixed for
finite differences.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Token:
    """One trained token, and its whole sequence for losses that look at it."""

    new: float
    held: float
    old: float
    proximal: float
    advantage: float
    row_held: Sequence[float]
    row_old: Sequence[float]


def ppo(ratio: float, a: float, low: float, high: float, dual: float | None = None) -> float:
    loss = max(-a * ratio, -a * min(max(ratio, 1 - low), 1 + high))
    return min(loss, -a * dual) if dual is not None and a < 0 else loss


def grpo(token: Token) -> float:
    return ppo(math.exp(token.new - token.old), token.advantage, 0.2, 0.28)


def grpo_dual(token: Token) -> float:
    return ppo(math.exp(token.new - token.old), token.advantage, 0.2, 0.28, dual=1.5)


def grpo_kl(token: Token) -> float:
    ratio = math.exp(token.new - token.old)
    return ppo(ratio, token.advantage, 0.2, 0.28) + 0.1 * (1 / ratio - 1 + math.log(ratio))


def gspo(token: Token) -> float:
    mean = sum(n - o for n, o in zip(token.row_held, token.row_old, strict=True)) / len(token.row_old)
    return ppo(math.exp(mean + token.new - token.held), token.advantage, 0.03, 0.04)


def cispo(token: Token) -> float:
    weight = min(max(math.exp(token.held - token.old), 0.0), 1.2)
    return -token.advantage * weight * token.new


def _behaviour(token: Token) -> float:
    return math.exp(token.proximal - token.old)


def _step(token: Token, high: float) -> float:
    return ppo(math.exp(token.new - token.proximal), token.advantage, 0.2, high)


def decoupled(token: Token) -> float:
    return _behaviour(token) * _step(token, 0.2)


def decoupled_capped(token: Token) -> float:
    return _behaviour(token) * _step(token, 0.2) if _behaviour(token) <= 1.3 else 0.0


def tis(token: Token) -> float:
    return min(_behaviour(token), 1.2) * _step(token, 0.28)


def icepop(token: Token) -> float:
    return _behaviour(token) * _step(token, 0.28) if 0.7 <= _behaviour(token) <= 1.4 else 0.0


SCALAR: dict[str, Callable[[Token], float]] = {
    "grpo": grpo,
    "grpo_dual": grpo_dual,
    "grpo_kl": grpo_kl,
    "gspo": gspo,
    "cispo": cispo,
    "decoupled": decoupled,
    "decoupled_capped": decoupled_capped,
    "tis": tis,
    "icepop": icepop,
    "m2po": grpo,  # on the tokens that are selected
}


def m2po_kept(moments: Sequence[float], threshold: float) -> list[int]:
    """Indices of the moments that stay: take away the largest until the mean of the others is below."""
    kept = sorted(range(len(moments)), key=lambda i: moments[i])
    if not kept or sum(moments) / len(moments) <= threshold:
        return sorted(kept)
    while kept and sum(moments[i] for i in kept) / len(kept) >= threshold:
        kept.pop()
    return sorted(kept)
