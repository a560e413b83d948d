"""Advantages: how much better a trajectory was than the others of its part.

The baseline is the mean over one part (one policy's trajectories of one group), never over several policies or
groups, so an advantage depends on nothing but the part's own rewards: not on padding, order or neighbours in a batch.
Source: GRPO (arXiv 2402.03300, eq. 3) and Dr. GRPO (arXiv 2503.20783), which leaves out the division.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
import numpy.typing as npt

EPSILON = 1e-6
NOISE = 1e-6
"""Rewards that differ by less than this (relative to the largest) are equal: float noise is no signal."""

Floats = npt.NDArray[np.float64]


def rewards_are_equal(rewards: Floats) -> bool:
    """Whether rewards [N] carry no signal: all equal up to float noise, or a single one."""
    if len(rewards) < 2:
        return True
    return bool(np.ptp(rewards) <= NOISE * max(1.0, float(np.abs(rewards).max())))


def part_advantages(rewards: Floats, kind: Literal["mean_std", "mean"]) -> Floats:
    """Advantages [N] of one part's rewards [N]: ``(r - mean) / (std + eps)`` or ``r - mean``; exactly 0 when equal.

    ``std`` is that of the part itself (divided by N), not an estimate of a population's.
    """
    if rewards_are_equal(rewards):
        return np.zeros_like(rewards)
    centred: Floats = rewards - rewards.mean()
    if kind == "mean":
        return centred
    scaled: Floats = centred / (rewards.std() + EPSILON)
    return scaled
