from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astraflow.trainer.advantage import part_advantages, rewards_are_equal

KINDS = ["mean_std", "mean"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "rewards",
    [[1.0], [0.5] * 8, [0.0] * 4, [0.1 + 0.2, 0.3, 0.3], [1e6, 1e6 + 0.01], [0.3, np.float64(np.float32(0.3))]],
)
def test_no_signal_gives_exactly_zero(kind, rewards):
    assert (part_advantages(np.array(rewards), kind) == 0.0).all()


def test_values():
    rewards = np.array([1.0, 0.0, 0.0, 0.0])
    np.testing.assert_allclose(part_advantages(rewards, "mean"), [0.75, -0.25, -0.25, -0.25])
    std = np.sqrt(3) / 4
    expected = np.array([0.75, -0.25, -0.25, -0.25]) / std
    np.testing.assert_allclose(part_advantages(rewards, "mean_std"), expected, rtol=1e-5)


@given(st.lists(st.floats(-10, 10, width=32), min_size=2, max_size=12), st.sampled_from(KINDS), st.randoms())
def test_sums_to_zero_and_follows_a_permutation(rewards, kind, random):
    values = np.array(rewards)
    advantages = part_advantages(values, kind)
    assert np.isfinite(advantages).all()
    assert abs(advantages.sum()) < 1e-6 * len(rewards)
    order = list(range(len(rewards)))
    random.shuffle(order)
    np.testing.assert_allclose(part_advantages(values[order], kind), advantages[order], atol=1e-9)
    if not rewards_are_equal(values):
        assert advantages[values.argmax()] == advantages.max()  # rounding may make others as good
