"""Problems of an environment that makes its own: each is a seed."""

from __future__ import annotations

from astraflow.problems import Problem


def episodes(seed: int, *, count: int = 512, prompt: str = "episode {number}") -> list[Problem]:
    """``count`` problems whose ``meta["seed"]`` is what the environment is reset with."""
    first = seed * 1_000_000
    return [
        Problem(index, f"episode-{index}", prompt.replace("{number}", str(index)), "", {"seed": str(first + index)})
        for index in range(count)
    ]
